"""What brokers make of transactions of several producers: a log, the group's offsets, and faults on demand.

Offsets are kept as Kafka keeps them (OffsetMetadataManager.java): what a transaction has sent is pending until its end,
and of what is committed for a partition the one that was written last counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

ABORTABLE = KafkaError(KafkaError.ILLEGAL_GENERATION, "the generation is over", False, False, True)
RETRIABLE = KafkaError(KafkaError._TIMED_OUT, "no answer", False, True, False)
FATAL = KafkaError(KafkaError._FENCED, "another one has the id", True, False, False)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
TOO_LARGE_VALUE = b"too large"


@dataclass(eq=False)
class Transaction:
    """One of them; None: open."""

    committed: bool | None = None


class Written(NamedTuple):
    """What is committed of a partition."""

    number: int
    """When it was written, among all."""
    offset: int
    metadata: str


@dataclass
class TransactionalBrokers:
    """Shared by the producers."""

    faults: dict[tuple[str, int], KafkaError] = field(default_factory=dict)
    """By call and how many of its kind came before: what it is answered with, once; the call has no effect then."""
    log: list[tuple[Transaction, bytes]] = field(default_factory=list)
    pending: dict[Transaction, dict[int, Written]] = field(default_factory=dict)
    """By partition, as below."""
    offsets: dict[int, Written] = field(default_factory=dict)
    commits: list[dict[int, int]] = field(default_factory=list)
    """What the group's offsets were behind each commit."""
    calls: list[str] = field(default_factory=list)
    open: set[Transaction] = field(default_factory=set)
    written: int = 0
    largest_batch: int | None = None
    """Bytes of values; more at a time are refused as a whole."""

    def called(self, name: str) -> None:
        """Answer with the fault that is due."""
        error = self.faults.pop((name, self.calls.count(name)), None)
        self.calls.append(name)
        if error is not None:
            raise KafkaException(error)

    def committed_values(self) -> list[bytes]:
        """As a consumer with read_committed has them."""
        return [value for transaction, value in self.log if transaction.committed]

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Write the markers."""
        transaction.committed = commit
        self.open.discard(transaction)
        for partition, written in self.pending.pop(transaction, {}).items():
            if commit:
                self.offsets[partition] = max(self.offsets.get(partition, written), written)
        if commit:
            self.commits.append({partition: found.offset for partition, found in self.offsets.items()})


class TransactionalProducer:
    """In confluent-kafka's place: what of it `Transactions` uses, without a thread of its own."""

    def __init__(self, brokers: TransactionalBrokers) -> None:
        self._brokers = brokers
        self._transaction = Transaction(False)
        self._reports: list[tuple[Callable[[KafkaError | None, Any], None], KafkaError | None]] = []
        self._batch = 0
        """Bytes that are not reported yet."""

    def begin_transaction(self) -> None:
        """Nothing is known of it at the brokers yet."""
        self._brokers.called("begin")
        self._transaction = Transaction()
        self._reports.clear()
        self._batch = 0

    def produce(self, topic: str, value: bytes, key: Any, partition: int, told: Any, *more: Any) -> None:
        """Append it."""
        self._brokers.open.add(self._transaction)
        self._batch += len(value)
        if value == TOO_LARGE_VALUE:
            self._reports.append((told, TOO_LARGE))
            return
        self._brokers.log.append((self._transaction, value))
        self._reports.append((told, None))

    def flush(self, seconds: float) -> int:
        """Report what became of everything."""
        self._brokers.called("flush")
        self.poll(0)
        return 0

    def poll(self, seconds: float) -> int:
        """Likewise."""
        most = self._brokers.largest_batch
        refused = TOO_LARGE if most is not None and self._batch > most else None
        while self._reports:
            told, error = self._reports.pop()
            told(refused or error, None)
        self._batch = 0
        return 0

    def send_offsets_to_transaction(self, offsets: Sequence[TopicPartition], group: bytes, seconds: float) -> None:
        """They count once the transaction is committed."""
        self._brokers.called("offsets")
        self._brokers.written += 1
        pending = self._brokers.pending.setdefault(self._transaction, {})
        number = self._brokers.written
        pending.update({each.partition: Written(number, each.offset, each.metadata or "") for each in offsets})

    def commit_transaction(self, seconds: float) -> None:
        """All of it counts."""
        self._brokers.called("commit")
        self._brokers.end(self._transaction, commit=True)

    def abort_transaction(self, seconds: float) -> None:
        """Nothing of it counts."""
        self._brokers.called("abort")
        self._brokers.end(self._transaction, commit=False)
