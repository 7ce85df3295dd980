"""The client in a worker's hands, with a log in memory behind it: what of confluent-kafka's consumer a worker uses.

It behaves as the real one does where a worker can tell: nothing is fetched of what is not assigned, an assignment
fetches from its offset on, a position is unknown until a record was handed out under this assignment, an assigned
partition is not assigned again. `tests/contract` has both meet the same expectations.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition


class MemoryLog:
    """Records by partition, in the order in which they were given."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._held: dict[tuple[str, int], list[tuple[int, Message]]] = defaultdict(list)
        for order, message in enumerate(messages):
            place = message.topic() or "", message.partition() or 0
            self.offsets[place].append(message.offset() or 0)
            self._held[place].append((order, message))

    def end(self, place: tuple[str, int]) -> int:
        """The offset behind the last record."""
        offsets = self.offsets[place]
        return offsets[-1] + 1 if offsets else 0

    def read(self, positions: dict[tuple[str, int], int], most: int) -> list[Message]:
        """Up to `most` records from `positions` on, and these moved on."""
        ahead = [self._held[place][bisect_left(self.offsets[place], at) :] for place, at in positions.items()]
        found = [message for _, message in heapq.merge(*ahead, key=lambda each: each[0])][:most]
        for message in found:
            positions[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
        return found


class MemoryConsumer:
    """Caller: one thread at a time, as with the real one. Never blocks by itself; `idle` may."""

    def __init__(self, log: MemoryLog, idle: Callable[[float], None]) -> None:
        """`idle` gets the seconds that a real client would have waited for a record."""
        self._log = log
        self._idle = idle
        self._fetching: dict[tuple[str, int], int] = {}
        self._given: dict[tuple[str, int], int] = {}
        self._paused: set[tuple[str, int]] = set()

    def poll(self, timeout: float = -1) -> Message | None:
        """The next record; None if there is none."""
        found = self.consume(1, 0)
        if not found:
            self._idle(timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Up to so many records."""
        positions = {place: at for place, at in self._fetching.items() if place not in self._paused}
        found = self._log.read(positions, num_messages)
        for place in {(message.topic() or "", message.partition() or 0) for message in found}:
            self._given[place] = self._fetching[place] = positions[place]
        return found

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these, too. Raises `KafkaException` if one of them is assigned."""
        for each in partitions:
            if (each.topic, each.partition) in self._fetching:
                raise KafkaException(KafkaError(KafkaError._CONFLICT))
        for each in partitions:
            self._fetching[each.topic, each.partition] = each.offset

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these no more. Raises `KafkaException` if one of them is not assigned."""
        for each in partitions:
            if self._fetching.pop((each.topic, each.partition), None) is None:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
            self._given.pop((each.topic, each.partition), None)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`."""
        self._paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with these behind the last record handed out."""
        self._paused -= {(each.topic, each.partition) for each in partitions}

    def assignment(self) -> list[TopicPartition]:
        """What is assigned."""
        return [TopicPartition(*place, at) for place, at in self._fetching.items()]

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The offset behind the last record handed out of each."""
        return [
            TopicPartition(p.topic, p.partition, self._given.get((p.topic, p.partition), OFFSET_INVALID))
            for p in partitions
        ]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Every topic is known."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""

    def close(self) -> None:
        """Nothing is to be closed."""
