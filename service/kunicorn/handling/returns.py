"""What is done with what a handler returns."""

from __future__ import annotations

import logging

from kunicorn.outcomes import heed

log = logging.getLogger("kunicorn.handling")


class Heed:
    """What one handler of this process returns: an outcome is raised (see `outcomes.heed`), and a mere value, which
    says nothing, is warned of once. Caller: whichever thread called the handler."""

    def __init__(self, entrypoint: str) -> None:
        self._unwarned = [entrypoint]

    def __call__(self, returned: object) -> None:
        if heed(returned) and self._unwarned:
            self._warn(type(returned).__qualname__)

    def _warn(self, kind: str) -> None:
        try:
            entrypoint = self._unwarned.pop()
        except IndexError:
            return  # Another thread has.
        log.warning(
            f"{entrypoint} returned a value of type {kind}, which says nothing here: its record counts as handled, "
            f"as after None. Return nothing, or an outcome such as kunicorn.Skip, or raise what went wrong. "
            f"Each worker says this once."
        )
