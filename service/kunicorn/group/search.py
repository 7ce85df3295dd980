"""Where the coordinator is, as far as a member knows. Pure; times are seconds of the driver's clock."""

from __future__ import annotations

from kunicorn.group import events as ev
from kunicorn.group.events import Command
from kunicorn.group.timing import Patience


class Search:
    """The coordinator is known, being looked up, or to be looked up as soon as patience allows; one look-up at a time.

    Losing it costs a member nothing: id, generation and partitions stay until a coordinator says otherwise.
    """

    def __init__(self, patience: Patience) -> None:
        """`patience` is shared with the member's other retries: a cluster in trouble is not asked twice as often."""
        self.known = False
        self._looking = False
        self._patience = patience

    def found(self) -> None:
        """The look-up succeeded. Whether that helps is for the node to show: a dead one is named until it is fenced,
        seven to twelve seconds later, and each try there fails at once."""
        self._looking, self.known = False, True

    def refused(self, now: float) -> None:
        """The look-up failed: again, after a while."""
        self._looking = False
        self._patience.failed(now)

    def lost(self, why: str, now: float) -> list[Command]:
        """The coordinator is elsewhere or silent."""
        if not self.known:
            return []
        self.known = False
        self._patience.failed(now)
        return [ev.ForgetCoordinator(why)]

    def due(self, now: float) -> list[Command]:
        """The look-up, if one is due."""
        if self.known or self._looking or now < self._patience.until:
            return []
        self._looking = True
        return [ev.FindCoordinator()]

    def deadline(self) -> float:
        """When the next look-up is due; infinity while one is under way. Only while the coordinator is not known."""
        return float("inf") if self._looking else self._patience.until
