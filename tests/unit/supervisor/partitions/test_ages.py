"""How old the oldest unhandled record is: from the worker where it tells, from the log where it does not."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.protocol import LogOffset, Offsets
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kunicorn.supervisor.partitions.lag import search
from kunicorn.supervisor.partitions.partition import Age

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
    return asyncio.run(search(cast("Offsets", logs), asked, NOW))


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


def test_the_record_in_hand_tells_its_own_time() -> None:
    age = Age()
    age.taken(NOW - HOUR)
    assert age.oldest_ms(7, in_hand=True) == NOW - HOUR
    age.found(7, NOW - DAY)
    assert age.oldest_ms(7, in_hand=True) == NOW - HOUR


def test_the_log_dates_a_position_that_nobody_has_in_hand_and_no_other() -> None:
    age = Age()
    age.taken(NOW - DAY)
    age.found(7, NOW - HOUR)
    assert age.oldest_ms(7, in_hand=False) == NOW - HOUR
    assert age.oldest_ms(8, in_hand=False) == NOW - DAY
    assert age.known_at(7)
    assert not age.known_at(8)


def test_what_comes_after_a_quiet_day_is_not_a_day_old() -> None:
    """The record handled last is from yesterday, the one that waits was written since all was handled."""
    age = Age()
    age.taken(NOW - DAY)
    age.end_seen(position=7, end=7, at_ms=NOW - 10 * SECOND)
    age.end_seen(position=7, end=8, at_ms=NOW)
    assert age.oldest_ms(7, in_hand=False) == NOW - 10 * SECOND


def test_a_partition_that_is_set_back_has_older_records_to_handle_again() -> None:
    age = Age()
    age.end_seen(position=7, end=7, at_ms=NOW)
    age.end_seen(position=2, end=7, at_ms=NOW)
    age.found(2, NOW - DAY)
    assert age.oldest_ms(2, in_hand=False) == NOW - DAY


def test_nothing_known_is_no_age() -> None:
    age = Age()
    age.taken(NO_TIMESTAMP)
    assert age.oldest_ms(NO_OFFSET, in_hand=False) == NO_TIMESTAMP
