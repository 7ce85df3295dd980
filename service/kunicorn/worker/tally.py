"""What the sender's thread counts and the control thread reports."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from kunicorn.worker.outbox import Entry


class Tallied(NamedTuple):
    """Since the last report."""

    sent: dict[str, int]
    committed_seconds: list[float]
    aborted: int


_OUTPUTS, _TOPIC = attrgetter("outputs"), attrgetter("topic")
NOTHING_SENT = Tallied({}, [], 0)


class Tally:
    """Outputs by topic, and transactions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: Counter[str] = Counter()
        self._committed: list[float] = []
        self._aborted = 0

    def delivered(self, entries: Iterable[Entry]) -> None:
        """The brokers have all their outputs."""
        counts = Counter(map(_TOPIC, chain.from_iterable(map(_OUTPUTS, entries))))
        with self._lock:
            self._sent.update(counts)

    def committed(self, seconds: float) -> None:
        """A transaction took so long."""
        with self._lock:
            self._committed.append(seconds)

    def aborted(self) -> None:
        """A transaction was given up; its batch goes into the next."""
        with self._lock:
            self._aborted += 1

    def take(self) -> Tallied:
        """The changes since the last call."""
        with self._lock:
            taken = Tallied(dict(self._sent), self._committed, self._aborted)
            self._sent, self._committed, self._aborted = Counter(), [], 0
        return taken
