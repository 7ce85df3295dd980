"""When records were written that nobody has fetched."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.protocol import LogOffset
from kunicorn.kafka.record_times import record_times
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import NO_TIMESTAMP, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = 1_800_000_000_000
SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000


class Logs:
    """Brokers that answer ListOffsets by time as Kafka does, for logs that begin at offset 0."""

    def __init__(self, times: Mapping[TopicPartition, Sequence[int]]) -> None:
        self.times = times
        self.asked = 0

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        self.asked += 1
        return {tp: self._first(tp, at) for tp, at in queries.items()}

    def _first(self, tp: TopicPartition, at: int) -> LogOffset:
        if tp not in self.times:
            return LogOffset(ErrorCode.LEADER_NOT_AVAILABLE)
        # The time index knows the latest time so far: of records out of order, the first late enough one is found.
        latest = list(accumulate(self.times[tp], max))
        offset = bisect_left(latest, at)
        return LogOffset(0, offset, -1, latest[offset]) if offset < len(latest) else LogOffset(0)


def looked_up(logs: Logs, **positions: int) -> dict[TopicPartition, int]:
    asked = {TopicPartition("orders", int(name[1:])): position for name, position in positions.items()}
    return asyncio.run(record_times(logs.list_offsets, asked, NOW))


@given(ages=st.lists(st.integers(1, 1000 * DAY), min_size=2, max_size=40, unique=True), data=st.data())
def test_the_record_at_a_position_is_dated_to_a_tenth_of_its_age(ages: list[int], data: st.DataObject) -> None:
    times = [NOW - age for age in sorted(ages, reverse=True)]
    position = data.draw(st.integers(0, len(times) - 1))
    found = looked_up(Logs({P0: times}), p0=position)[P0]
    age = NOW - times[position]
    assert 0.9 * age - SECOND <= NOW - found <= age + SECOND


def test_it_takes_as_many_requests_whatever_the_number_of_partitions() -> None:
    times = {TopicPartition("orders", number): [NOW - number * HOUR - 1, NOW] for number in range(300)}
    logs = Logs(times)
    found = looked_up(logs, **{f"p{number}": 0 for number in range(300)})
    assert len(found) == 300
    assert logs.asked <= 9


def test_a_partition_whose_leader_does_not_answer_is_left_out_and_the_others_are_dated() -> None:
    found = looked_up(Logs({P1: [NOW - HOUR, NOW]}), p0=0, p1=0)
    assert found.keys() == {P1}
    assert NOW - found[P1] == pytest.approx(HOUR, rel=0.1)


def test_where_records_carry_no_time_none_is_found() -> None:
    assert looked_up(Logs({P0: [NO_TIMESTAMP] * 3}), p0=1) == {P0: NO_TIMESTAMP}


def test_a_record_of_the_future_is_as_young_as_can_be() -> None:
    assert looked_up(Logs({P0: [NOW + HOUR]}), p0=0)[P0] >= NOW - 2 * SECOND


# -- what is known of one partition --------------------------------------------------------------------------------
