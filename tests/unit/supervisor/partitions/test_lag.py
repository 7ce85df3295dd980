"""Lag in seconds: 0 when there is none, absent when unknown, never a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kunicorn.group.protocol import LogOffset
from kunicorn.positions import NO_TIMESTAMP, Position, TopicPartition
from kunicorn.supervisor import snapshot
from kunicorn.supervisor.partitions.lag import INTERVAL, refresh_ends, watch_ends
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.snapshot import _partition, lag_seconds
from tests.fakes.stage import PlayedTopics, Stage, consumed
from tests.fakes.virtual_loop import virtual_time

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall's clock."""
    monkeypatch.setattr(snapshot, "time", SimpleNamespace(time=lambda: NOW))


def ago(seconds: float) -> int:
    return int((NOW - seconds) * 1000)


def test_without_lag_it_is_zero_however_old_the_last_record_is() -> None:
    assert lag_seconds(0, ago(3600)) == 0.0


def test_behind_it_is_the_age_of_the_record_last_taken_in_hand() -> None:
    assert lag_seconds(5, ago(90)) == 90


@pytest.mark.parametrize(("lag", "timestamp"), [(None, 1_700_000_000_000), (5, NO_TIMESTAMP)])
def test_it_is_absent_while_the_lag_or_the_time_is_unknown(lag: int | None, timestamp: int) -> None:
    assert lag_seconds(lag, timestamp) is None


def test_a_record_from_the_future_is_not_negative_lag() -> None:
    assert lag_seconds(5, ago(-3600)) == 0.0


def test_where_records_wait_for_their_time_it_counts_from_when_the_record_could_be_handled() -> None:
    assert lag_seconds(5, ago(90), waits_ms=60_000) == 30
    assert lag_seconds(5, ago(30), waits_ms=60_000) == 0.0


@pytest.mark.parametrize(("stop", "lag"), [(None, 400), (300, 200), (100, 0)])
def test_what_a_job_is_not_to_handle_is_no_lag_of_it(stop: int | None, lag: int) -> None:
    partition = Partition(TopicPartition("orders", 0))
    partition.position, partition.log_end = Position(100), 500
    if stop is not None:
        partition.stop = stop
    status = _partition(partition, {}, 0, 0.0, kept=False)
    assert status.lag == lag
    assert (status.lag_seconds == 0.0) == (lag == 0)


class Logs:
    """Brokers whose logs all end at `end`; `meanwhile` happens while the answer is on its way."""

    def __init__(self, end: int, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.end = end
        self.meanwhile = meanwhile

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        self.meanwhile()
        return {tp: LogOffset(0, self.end) for tp in queries}


@pytest.mark.parametrize(("end", "doubts"), [(99, 1), (100, 0), (101, 0)])
async def test_a_log_that_ends_before_what_was_consumed_of_it_may_be_of_a_topic_created_anew(
    end: int, doubts: int
) -> None:
    topics = PlayedTopics()
    stage = Stage(topics=topics)
    stage.give(0)
    logs: Any = Logs(end)
    await refresh_ends(logs, stage.assignment, stage.assignment.table)
    assert topics.doubts == doubts


@pytest.mark.parametrize(
    ("ends", "stop", "doubts"),
    [((103, 103), 103, 1), ((103, 104), 104, 1), ((103, 105), 105, 1), ((105, 105), 105, 0), ((99, 99), 105, 2)],
    ids=["cut", "written to since", "written to as far", "whole", "what is consumed is not in it"],
)
@virtual_time(sockets=False)
async def test_a_log_that_was_cut_before_a_partitions_stop_is_handled_up_to_its_end_once_its_topic_was_looked_up(
    ends: tuple[int, int], stop: int, doubts: int
) -> None:
    topics = PlayedTopics()
    stage = Stage(topics=topics)
    stage.give(0)
    partition = stage.assignment.table[TopicPartition("orders", 0)]
    partition.end_at(105)
    for end in ends:
        logs: Any = Logs(end)
        assert partition.stop == 105, "it may be a topic created anew, whose end is another one"
        await refresh_ends(logs, stage.assignment, stage.assignment.table)
        await asyncio.sleep(INTERVAL)
    assert partition.stop == stop
    assert topics.doubts == doubts


async def test_what_is_consumed_while_the_end_is_asked_for_is_no_reason_to_doubt_the_topic() -> None:
    topics = PlayedTopics()
    stage = Stage(topics=topics)
    stage.give(0)
    logs: Any = Logs(100, meanwhile=lambda: stage.workers[0].consume(stage.start_of(0), 150))
    await refresh_ends(logs, stage.assignment, stage.assignment.table)
    assert consumed(stage) == {0: 150}
    assert topics.doubts == 0


@virtual_time(sockets=False)
async def test_each_second_only_those_are_asked_for_whose_end_is_not_known() -> None:
    asked: list[set[int]] = []

    class Silent(Logs):
        """The leader of partition 1 does not answer."""

        async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
            asked.append({tp.partition for tp in queries})
            answer = await super().list_offsets(queries)
            return {tp: found for tp, found in answer.items() if tp.partition != 1}

    stage = Stage()
    stage.give(0, 1)
    silent: Any = Silent(500)
    watching = asyncio.ensure_future(watch_ends(silent, stage.assignment))
    await asyncio.sleep(3.5)
    assert asked == [{0, 1}, {1}, {1}, {1}]
    stage.give(2)
    await asyncio.sleep(1.0)
    assert asked[4:] == [{1, 2}], "a newcomer's lag is not blank for long"
    await asyncio.sleep(INTERVAL - 4.0)
    assert [each for each in asked if 0 in each] == [{0, 1}, {0, 1, 2}]
    watching.cancel()
