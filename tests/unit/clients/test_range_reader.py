"""What the client tells beside a range's records."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.clients import range_reader
from kunicorn.clients.range_reader import FetchPositions, RangeReader, RangeUnreadable
from kunicorn.positions import NO_OFFSET, OffsetRange, TopicPartition

WANTED = OffsetRange("orders", 0, 10, 13)
NOBODY_ASKED_FOR = 8680820740569200761
"""What librdkafka 2.16.1 made of the bytes behind a damaged batch."""


class Scripted:
    """Of a client: what it gives out at once, and the log's first and last offset."""

    def __init__(self, *batches: list[Message]) -> None:
        self._batches = list(batches)

    def consume(self, count: int, timeout: float) -> list[Message]:
        return self._batches.pop(0) if self._batches else []

    def poll(self, timeout: float) -> None: ...

    def list_topics(self, topic: str, timeout: float) -> None: ...
    def assign(self, partitions: list[Any]) -> None: ...
    def unassign(self) -> None: ...
    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        return 11, 13


def record(offset: int, partition: int = 0) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, value=b"v")


def told(code: int, offset: int, partition: int = 0) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, error=KafkaError(code))


def gone(offset: int) -> Message:
    return told(KafkaError._AUTO_OFFSET_RESET, offset)


def end(offset: int, partition: int = 0) -> Message:
    return told(KafkaError._PARTITION_EOF, offset, partition)


def reader(*batches: list[Message], patience: float = 60.0) -> RangeReader:
    client: Any = Scripted(*batches)
    return RangeReader(client, patience)


def read(*batches: list[Message]) -> list[int | None]:
    return [message.offset() for batch in reader(*batches).read(WANTED) for message in batch]


def places(batches: Iterable[list[Message]]) -> list[tuple[int | None, int | None]]:
    return [(message.partition(), message.offset()) for batch in batches for message in batch]


@pytest.mark.parametrize("offset", [NOBODY_ASKED_FOR, 9, 14])
def test_a_gone_offset_of_the_range_before_neither_ends_this_one_nor_hides_its_records(offset: int) -> None:
    assert read([gone(offset), record(10), record(11)], [record(12)]) == [10, 11, 12]
    assert read([record(10), record(11)], [gone(offset)], [record(12)]) == [10, 11, 12]


def test_a_gone_offset_of_this_range_ends_it() -> None:
    with pytest.raises(RangeUnreadable, match="orders-0: offsets 10 to 11 are gone, the log has 11 to 13 now"):
        read([gone(10)])


TWO = (WANTED, OffsetRange("orders", 1, 0, 2))


def test_while_no_records_come_the_caller_gets_an_empty_list_each_time() -> None:
    found = reader([], [record(10), record(11)], [told(KafkaError._ALL_BROKERS_DOWN, 0)], [record(12)]).read(WANTED)
    assert [len(batch) for batch in found] == [0, 2, 0, 1]


def test_the_time_that_the_caller_takes_over_an_empty_list_is_not_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(range_reader, "time", SimpleNamespace(monotonic=lambda: now))
    found = []
    for batch in reader([], [record(10)], [], [record(11)], [record(12)]).read(WANTED):
        found.append(len(batch))
        now += 3600.0
    assert found == [0, 1, 0, 1, 1]


class Assigned(Scripted):
    """Keeps what it is assigned, and is where its records end."""

    def __init__(self, *batches: list[Message]) -> None:
        super().__init__(*batches)
        self.assigned: list[list[tuple[int, int]]] = []
        self.held: list[tuple[int, int, int | None]] = []
        """Against the log: partition, offset, leader epoch."""
        self._at: dict[int, int] = {}

    def consume(self, count: int, timeout: float) -> list[Message]:
        found = super().consume(count, timeout)
        self._at |= {message.partition() or 0: (message.offset() or 0) + 1 for message in found}
        return found

    def assign(self, partitions: list[Any]) -> None:
        self.assigned.append([(each.partition, each.offset) for each in partitions])

    def seek(self, partition: ClientPartition) -> None:
        self.held.append((partition.partition, partition.offset, partition.leader_epoch))

    def position(self, partitions: list[Any]) -> list[ClientPartition]:
        return [
            ClientPartition("orders", each.partition, self._at.get(each.partition, -1001), leader_epoch=7)
            for each in partitions
        ]


def test_a_partition_that_is_set_aside_is_assigned_again_where_it_was() -> None:
    client: Any = Assigned([record(10), record(0, 1)], [record(1, 1)], [], [record(11), record(12), end(2, 1)])
    aside: set[TopicPartition] = set()
    seen = []
    for batch in RangeReader(client, 60.0).read(*TWO, epochs={TWO[1].tp: 3}, aside=aside):
        seen.append(places([batch]))
        if len(seen) == 1:
            aside.add(TWO[0].tp)
        if len(seen) == 2:
            aside.clear()
    assert seen[:2] == [[(0, 10), (1, 0)], [(1, 1)]]
    assert [each for batch in seen[2:] for each in batch] == [(0, 11), (0, 12)]
    assert client.assigned[:2] == [[(0, 10), (1, 0)], [(1, 1)]]
    assert client.assigned[2][0] == (0, 11)
    # Wherever it begins: each log may have been cut meanwhile.
    assert client.held == [(1, 0, 3), (1, 1, 7), (0, 11, 7)]


def test_nobody_waits_for_what_is_set_aside() -> None:
    client: Any = Assigned()
    found = RangeReader(client, -1.0).read(WANTED, aside={WANTED.tp})
    assert [next(found) for _ in range(3)] == [[]] * 3


def test_several_ranges_end_each_at_its_own_place() -> None:
    fetched = reader([record(10), record(0, 1), record(1, 1), record(2, 1)], [record(3, 1), record(12), record(13)])
    assert places(fetched.read(*TWO)) == [(0, 10), (1, 0), (1, 1), (0, 12)]


def test_a_range_whose_last_offset_is_no_record_ends_with_the_log() -> None:
    assert places(reader([record(10), record(1, 1)], [end(13), record(14)]).read(*TWO)) == [(0, 10), (1, 1)]
    assert places(reader([record(1, 1), end(2, 1)], [end(12)], [record(12)]).read(*TWO)) == [(1, 1), (0, 12)]


def test_what_is_damaged_behind_the_end_of_one_range_does_not_end_another() -> None:
    damaged = told(KafkaError._BAD_MSG, 7, 1)
    assert places(reader([record(1, 1), damaged], [record(12)]).read(*TWO)) == [(1, 1), (0, 12)]


def test_what_came_before_damage_is_given_out_before_the_error() -> None:
    batches = reader([record(0, 1), record(10), told(KafkaError._BAD_MSG, 11), record(1, 1)]).read(*TWO)
    assert places([next(batches)]) == [(1, 0), (0, 10), (1, 1)]
    with pytest.raises(RangeUnreadable, match=r"orders-0 cannot be read: .*another replica"):
        next(batches)


def test_empty_ranges_are_no_work() -> None:
    assert places(reader().read(OffsetRange("orders", 0, 5, 5))) == []


def test_a_denied_group_is_no_matter_to_who_reads_ranges() -> None:
    denied = Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert places(reader([denied, record(12), record(1, 1)]).read(*TWO)) == [(0, 12), (1, 1)]


def test_a_range_that_stays_silent_is_an_error_that_names_it() -> None:
    with pytest.raises(RangeUnreadable, match=r"orders-0@10-13: no record for 0 s with some still to come"):
        places(reader([record(1, 1)], patience=0).read(*TWO))


class Moving(FetchPositions):
    """Of a client whose fetches come further for so many looks, and give out nothing: aborted records."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def of(self, partitions: Iterable[TopicPartition]) -> list[int]:
        self.left = max(0, self.left - 1)
        return [-self.left for _ in partitions]


def test_fetches_that_come_further_without_a_record_are_no_silence() -> None:
    client: Any = Scripted(*([[]] * 5), [record(12)])
    assert places(RangeReader(client, 0, fetched=Moving(looks=20)).read(WANTED)) == [(0, 12)]
    silent: Any = Scripted(*([[]] * 5), [record(12)])
    with pytest.raises(RangeUnreadable, match="no record for 0 s"):
        places(RangeReader(silent, 0, fetched=Moving(looks=2)).read(WANTED))


def test_a_clients_statistics_tell_how_far_its_fetches_are() -> None:
    fetched = FetchPositions()
    fetched('{"topics": {"orders": {"partitions": {"0": {"next_offset": 7}, "-1": {"next_offset": -1001}}}}}')
    assert fetched.of([TopicPartition("orders", 0), TopicPartition("orders", 1)]) == [7, NO_OFFSET]
    fetched('{"topics": {}}')
    assert fetched.of([TopicPartition("orders", 0)]) == [7]
