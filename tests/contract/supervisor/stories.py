"""Stories by the hundred."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from kunicorn.observe import logs
from tests.contract.supervisor.story import tell
from tests.contract.worker.choices import simpler

_SIMPLER_TRIES = 200


@dataclass(frozen=True, slots=True)
class Found:
    """A story that did not hold."""

    seed: int
    number: int
    error: BaseException

    def __str__(self) -> str:
        return (
            f"story {self.number} of seed {self.seed}: {self.error}\n"
            f"to read it: python -m tests.contract.supervisor --seed {self.seed} --story {self.number}"
        )


@contextmanager
def silence() -> Iterator[None]:
    """What members log of brokers that fail is not told."""
    with mock.patch.object(logs._output, "threshold", logging.CRITICAL):
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def told(seed: int, numbers: Iterable[int]) -> Found | None:
    """Tell these; the first that does not hold, None where all do."""
    with silence():
        for number in numbers:
            try:
                tell(seed, number)
            except Exception as error:
                return Found(seed, number, error)
    return None


def read(seed: int, number: int, *, simplest: bool = True) -> list[str]:
    """A story line by line, with what was wrong at its end; where something was, the simplest that is found like it."""

    def failing(noted: Sequence[int] | None, trace: list[str] | None = None) -> BaseException | None:
        try:
            tell(seed, number, trace, noted)
        except Exception as error:
            return error
        return None

    with silence():
        noted = None
        if simplest and (error := failing(None)) is not None:
            kind = _kind(error)
            noted = simpler(
                error.choices,  # type: ignore[attr-defined]
                lambda each: (other := failing(each)) is not None and _kind(other) == kind,
                _SIMPLER_TRIES,
            )
        lines: list[str] = []
        error = failing(noted, lines)
        return [*lines, "it holds" if error is None else f"{type(error).__name__}: {error}"]


def _kind(error: BaseException) -> str:
    return "".join(each for each in str(error) if not each.isdigit())[:40]
