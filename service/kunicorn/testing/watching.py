"""The worker's own parts, with somebody looking on: what became of a record that the handler did not simply handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from confluent_kafka import Message

from kunicorn.handling.retry import End
from kunicorn.testing.notes import Fate
from kunicorn.worker.failures import Failures
from kunicorn.worker.fetcher import Fetcher
from kunicorn.worker.grants import Attempt, Grant

F = TypeVar("F", bound=Fetcher)

_FATES = {End.SKIP: Fate.SKIPPED, End.DEAD_LETTER: Fate.DEAD_LETTER, End.RETRY_TOPIC: Fate.RETRY_TOPIC}


def watched_fetcher(kind: type[F], ended: Callable[[Sequence[Message], Fate], None]) -> type[F]:
    """A fetcher of that kind that tells of records passed over or given up."""

    class WatchedFetcher(kind):  # type: ignore[misc, valid-type]
        def pass_over(self, attempt: Attempt[Grant], end: End, label: str | None) -> bool:
            if end in _FATES:
                ended(attempt.records, _FATES[end])
            return bool(super().pass_over(attempt, end, label))

        def give_up(self, attempt: Attempt[Grant], error: str) -> None:
            ended(attempt.records, Fate.GIVEN_UP)
            super().give_up(attempt, error)

    return WatchedFetcher


def watched_failures(raised: Callable[[Sequence[Message], BaseException], None]) -> type[Failures[Grant]]:
    """Failures that are told on."""

    class WatchedFailures(Failures[Grant]):
        def meet(self, attempt: Attempt[Grant], error: BaseException, now: int) -> bool:
            raised(attempt.records, error)
            return super().meet(attempt, error, now)

    return WatchedFailures
