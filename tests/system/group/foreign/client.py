"""What tests ask of a foreign consumer, and what those written in Python have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from kunicorn.commands.demo.audit import AuditLog
from kunicorn.positions import TopicPartition


class Foreign(Protocol):
    """A consumer that is in the group for as long as its block. It commits before it lets go of anything."""

    owned: frozenset[TopicPartition]
    """What it owns now."""
    handled: int
    """Records it has handled so far."""
    unaudited: Mapping[TopicPartition, Collection[int]]
    """What it has handled and committed without writing our audit; final when the block has ended."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Handled(NamedTuple):
    """A record as the audit reads it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None


class Desk:
    """Where a consumer written in Python handles its records: it writes the same audit as our handlers, so that one
    judge sees the whole group."""

    def __init__(self, audit: Path, name: str) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        self.handled = 0
        self._audit = AuditLog(audit, name)
        self._next: dict[TopicPartition, int] = {}

    def handle(self, tp: TopicPartition, offset: int) -> None:
        """One record, handled when it returns."""
        record = _Handled(*tp, offset, None)
        self._audit.begin([record])
        self._audit.end([record])
        self._next[tp] = offset + 1
        self.handled += 1

    def take(self, partitions: Collection[TopicPartition]) -> None:
        """These were assigned."""
        self.owned |= frozenset(partitions)

    def clear(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """These are being revoked: what there is to commit of them."""
        return {tp: self._next.pop(tp) for tp in sorted(partitions) if tp in self._next}

    def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """These are committed and no longer its own."""
        self.owned -= frozenset(partitions)


class InThread(ABC):
    """A `Foreign` that is written in Python: it runs in a thread of its own until the block ends."""

    unaudited: Mapping[TopicPartition, Collection[int]] = {}

    def __init__(self, audit: Path) -> None:
        self._desk = Desk(audit, "foreign")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """Consume until `_stop` is set. Caller: that thread."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """See `Foreign`."""
        return self._desk.owned

    @property
    def handled(self) -> int:
        """See `Foreign`."""
        return self._desk.handled

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the foreign consumer does not end"
