"""A service that runs as a job: up to the logs' ends, for so many records, or for so long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from kunicorn.errors import ConfigError, PeerError
from kunicorn.group.protocol import LogOffset
from kunicorn.group.states import PartitionState, State
from kunicorn.ipc import clock
from kunicorn.ipc.clock import wall_ms
from kunicorn.ipc.messages import Failed, FailureKind, StopFetcher
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.limits import Until, until_of
from kunicorn.supervisor.partitions.lag import watch_ends
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.run_until import RunUntil
from tests.fakes.complete_settings import settings_of
from tests.fakes.played_workers import PlayedWorker
from tests.fakes.stage import Stage, tps
from tests.fakes.virtual_loop import virtual_time

END = 105


class Bench:
    """A stage whose partitions begin at 100 and end at 105; the group is what the test says."""

    def __init__(self, until: Until, failures: int = 0) -> None:
        self.stage, self.failures, self.totals = (
            Stage(),
            failures,
            dict.fromkeys(("records", "skipped", "dead_letters", "retry_topics"), 0),
        )
        self.member = MemberState(state=State.STABLE, joined=True)
        offsets: Any = self
        self.run_until = RunUntil(until, self.member, self.stage.assignment, offsets, self.totals)
        self.end = END

    @property
    def with_end(self) -> list[Partition]:
        """Those that go on to the look-up of their start."""
        found: list[Partition] = []
        while not self.run_until.with_end.empty():
            found += self.run_until.with_end.get_nowait()
        return found

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        if self.failures:
            self.failures -= 1
            raise PeerError("nobody answers")
        return {tp: LogOffset(0, self.end, 3, -1) for tp in queries}

    async def give(self, *numbers: int) -> None:
        self.stage.assignment.assign(tps(*numbers))
        await self.run_until.learn([self.stage.assignment.table[tp] for tp in tps(*numbers)])
        self.stage.resolve(*numbers)

    @property
    def worker(self) -> PlayedWorker:
        return self.stage.workers[0]

    def consume(self, number: int, offset: int) -> None:
        self.worker.consume(self.worker.starts()[tps(number)[0]], offset)

    def why(self, later: float = 0.0) -> str | None:
        """So many seconds after it has begun, however long the test has taken."""
        return self.run_until._why(self.run_until._began + later)


async def test_partitions_are_fetched_up_to_the_end_that_they_had_when_they_came() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0)
    assert bench.worker.starts()[tps(0)[0]].stop == END
    bench.end = 900
    await bench.stage.assignment.revoke(tps(0), clock.now(), clock.now())
    bench.stage.assignment.table.clear()
    await bench.give(0, 1)
    assert {tp.partition: start.stop for tp, start in bench.worker.starts().items()} == {0: END, 1: 900}


@pytest.mark.parametrize(("recreated", "end"), [(False, END), (True, 3)])
async def test_one_that_leaves_and_comes_back_keeps_its_end_unless_it_is_of_another_topic_by_then(
    recreated: bool, end: int
) -> None:
    bench = Bench(Until(end=True))
    stage, (tp,) = bench.stage, tps(0)
    stage.topics.topic_id = lambda _: UUID(int=1)
    await bench.give(0)
    leaving = asyncio.create_task(stage.assignment.revoke([tp], clock.now() + 60, clock.now() + 60))
    await asyncio.sleep(0)
    stage.stopped(stage.start_of(0), 102)
    await leaving
    stage.assignment.forget([tp])
    stage.topics.topic_id = lambda _: UUID(int=2 if recreated else 1)
    bench.end = 3
    await bench.give(0)
    assert stage.assignment.table[tp].stop == end


async def test_one_that_is_at_its_end_rests_and_the_service_ends_when_all_are() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0, 1)
    bench.consume(0, END)
    assert bench.why() is None
    assert (bench.stage.state(0), bench.stage.state(1)) == (PartitionState.PAUSED, PartitionState.STARTING)
    assert bench.stage.assignment.table[tps(0)[0]].reason == f"handled up to its end, offset {END}"
    assert bench.worker.asked_to_stop() == [bench.worker.starts()[tps(0)[0]].grant]
    bench.consume(1, END)
    assert bench.why() == "everything that was assigned is handled up to its end"
    assert bench.run_until.unfinished == 0


async def test_one_that_a_person_puts_back_goes_on_to_its_end() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0)
    bench.consume(0, END)
    bench.member.state = State.SYNCING
    assert bench.why() is None
    bench.stage.stopped(bench.stage.start_of(0), END)
    assert bench.why() is None
    assert bench.stage.state(0) is PartitionState.PAUSED
    bench.stage.assignment.table[tps(0)[0]].put_at(101)
    bench.member.state = State.STABLE
    assert bench.why() is None
    assert bench.stage.start_of(0).offset == 101
    bench.consume(0, END)
    assert bench.why() == "everything that was assigned is handled up to its end"


async def test_one_whose_worker_dies_with_its_last_transaction_is_looked_up_before_it_counts_as_at_its_end() -> None:
    bench = Bench(Until(end=True))
    bench.stage.assignment.table.workers_commit = True
    await bench.give(0)
    bench.consume(0, END)
    bench.member.state = State.SYNCING
    assert bench.why() is None
    assert bench.stage.state(0) is PartitionState.PAUSED
    bench.stage.die_and_revive()
    bench.member.state = State.STABLE
    bench.stage.resolving.clear()
    assert bench.why() is None
    assert bench.stage.state(0) is PartitionState.RESOLVING
    assert bench.stage.resolving == [bench.stage.assignment.table[tps(0)[0]]]
    bench.stage.resolve(0)
    bench.consume(0, END)
    assert bench.why() == "everything that was assigned is handled up to its end"


async def test_those_that_are_at_their_ends_together_cost_one_message_to_their_worker() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0, 1, 2)
    for number in (0, 1, 2):
        bench.consume(number, END)
    bench.worker.told.clear()
    assert bench.why() is not None
    (message,) = bench.worker.told
    assert isinstance(message, StopFetcher)
    assert len(message.grants) == 3


@pytest.mark.parametrize(("state", "joined"), [(State.SYNCING, True), (State.STABLE, False)])
async def test_nobody_leaves_in_the_middle_of_a_rebalance(state: State, joined: bool) -> None:
    bench = Bench(Until(end=True))
    await bench.give(0)
    bench.consume(0, END)
    bench.member.state, bench.member.joined = state, joined
    assert bench.why() is None


async def test_a_halted_partition_holds_nobody_up_and_spoils_the_exit_code() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0, 1)
    bench.consume(0, END)
    grant = bench.worker.starts()[tps(1)[0]].grant
    bench.stage.assignment.worker_failed(bench.worker, Failed(grant, FailureKind.HANDLER, 102, 3, "too bad"))
    assert bench.why() == "everything else that was assigned is handled up to its end"
    assert bench.run_until.unfinished == 1


async def test_a_member_that_gets_no_partition_waits_for_those_of_a_dead_one() -> None:
    bench = Bench(Until(end=True, idle_patience=5))
    assert bench.why(later=4) is None
    assert bench.why(later=6) == "this member has got no partition within 5 s"


async def test_an_empty_partition_is_at_its_end_at_once() -> None:
    bench = Bench(Until(end=True))
    bench.end = 100
    await bench.give(0)
    assert bench.why() is not None


async def test_leaders_that_do_not_answer_are_asked_again() -> None:
    bench = Bench(Until(end=True), failures=1)
    await bench.give(0)
    assert bench.stage.assignment.table[tps(0)[0]].stop == END


@virtual_time(sockets=False)
async def test_leaders_that_do_not_answer_for_long_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench(Until(end=True), failures=1 << 30)
    giving = asyncio.ensure_future(bench.give(0))
    await asyncio.sleep(9.0)
    assert capfd.readouterr().err == ""
    assert bench.stage.assignment.table[tps(0)[0]].reason == "its leader does not tell where its log ends"
    await asyncio.sleep(60.0)
    (told,) = capfd.readouterr().err.splitlines()
    assert "1 partitions do not begin" in told
    assert "orders:0" in told
    bench.failures = 0
    await giving


async def test_a_position_outside_of_the_log_is_looked_up_again_with_the_same_end() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0)
    partition = bench.stage.assignment.table[tps(0)[0]]
    grant = partition.grant
    bench.stage.assignment.worker_failed(bench.worker, Failed(grant, FailureKind.OUT_OF_RANGE, 100, 3, "gone"))
    assert bench.with_end == [partition]
    bench.end = 900
    await bench.run_until.learn([partition])
    assert bench.with_end == [partition]
    assert partition.stop == END


@virtual_time(sockets=False)
async def test_a_job_whose_log_was_cut_below_its_end_ends_where_the_log_does() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0)
    partition = bench.stage.assignment.table[tps(0)[0]]
    lost = Failed(partition.grant, FailureKind.TRUNCATED, 104, 3, "a leader was elected uncleanly")
    bench.stage.assignment.worker_failed(bench.worker, lost)
    bench.end = 101
    offsets: Any = bench
    watching = asyncio.ensure_future(watch_ends(offsets, bench.stage.assignment))
    await bench.run_until.learn([partition])
    bench.stage.resolve(0)
    bench.consume(0, 101)
    assert bench.why() is None
    await asyncio.sleep(30.0)
    assert bench.why() == "everything that was assigned is handled up to its end"
    assert partition.reason == "handled up to its end, offset 101"
    watching.cancel()


def test_so_many_records_and_so_long() -> None:
    bench = Bench(Until(max_records=10, seconds=60))
    assert bench.why() is None
    bench.totals["records"] = 11
    assert bench.why() == "11 records are handled, 10 were asked for"
    bench.totals["records"] = 0
    assert bench.why(later=61) == "has run for 60 s, as asked"


@pytest.mark.parametrize("total", ["skipped", "dead_letters", "retry_topics"])
def test_records_that_their_handler_fails_with_count_for_those_that_were_asked_for(total: str) -> None:
    bench = Bench(Until(max_records=10))
    bench.totals["records"], bench.totals[total] = 4, 6
    assert bench.why() == "10 records are handled, 10 were asked for"


def test_a_time_of_day_is_the_wall_clocks() -> None:
    now_ms = wall_ms()
    assert Bench(Until(stop_at_ms=now_ms + 60_000)).why(later=3600) is None
    why = Bench(Until(stop_at_ms=now_ms)).why()
    assert why is not None
    assert why.startswith("it is 20")


@pytest.mark.parametrize(("state", "joined"), [(State.JOINING, False), (State.SYNCING, True)])
async def test_a_member_without_a_partition_waits_for_some_from_when_it_has_joined(state: State, joined: bool) -> None:
    """Brokers may have been away for longer than its patience, and so may others who drain in the first rebalance."""
    bench = Bench(Until(end=True, idle_patience=5))
    bench.member.state, bench.member.joined = state, joined
    assert bench.why(later=60) is None
    bench.member.state, bench.member.joined = State.STABLE, True
    assert bench.why(later=64) is None
    assert bench.why(later=66) == "this member has got no partition within 5 s"


async def test_a_member_that_was_cut_off_waits_for_its_partitions_again() -> None:
    bench = Bench(Until(end=True, idle_patience=5))
    await bench.give(0)
    assert bench.why(later=60) is None
    losing = asyncio.create_task(bench.stage.assignment.lose(tps(0), clock.now() + 60, clock.now() + 60))
    await asyncio.sleep(0)
    bench.stage.stopped(bench.stage.start_of(0), 102)
    await losing
    assert not bench.stage.assignment.table
    assert bench.why(later=64) is None
    await bench.give(0)
    bench.consume(0, END)
    assert bench.why(later=66) == "everything that was assigned is handled up to its end"


async def test_what_a_lost_partition_was_handled_up_to_is_not_its_end() -> None:
    bench = Bench(Until(end=True))
    await bench.give(0)
    losing = asyncio.create_task(bench.stage.assignment.lose(tps(0), clock.now() + 60, clock.now() + 60))
    await asyncio.sleep(0)
    bench.stage.assignment.assign(tps(0))
    bench.consume(0, END)
    assert bench.why() is None, "nothing of it is committed"
    bench.stage.stopped(bench.stage.start_of(0), END)
    await losing
    assert bench.stage.state(0) is PartitionState.RESOLVING


@pytest.mark.parametrize(("protocol", "patience"), [("classic", 20.0), ("consumer", 45.0)])
def test_those_of_a_dead_member_are_waited_for_by_the_session_that_decides(protocol: str, patience: float) -> None:
    group = {"session_timeout_ms": 20_000, "group_protocol": protocol}
    found = until_of(settings_of(group=group), end=True, max_records=None, run_for=None, stop_at=None)
    assert found.idle_patience == patience


def test_what_the_command_line_asks_for() -> None:
    nothing: dict[str, Any] = {"end": False, "max_records": None, "run_for": None, "stop_at": None}
    assert until_of(settings_of(), **nothing) == Until()
    assert until_of(settings_of(), **{**nothing, "run_for": "10m", "end": True}) == Until(end=True, seconds=600)
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert until_of(settings_of(), **{**nothing, "stop_at": at}).stop_at_ms == pytest.approx(
        wall_ms() + 3_600_000, abs=10_000
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"stop_at": "2h"}, "lies in the past"),
        ({"stop_at": "2026-01-31T12:00:00Z", "run_for": "2h"}, "choose one"),
        ({"run_for": "soon"}, "no length of time"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        until_of(settings_of(), end=False, max_records=None, run_for=given.get("run_for"), stop_at=given.get("stop_at"))


def test_with_assign_the_end_is_a_setting() -> None:
    with pytest.raises(ConfigError, match=r'assign\.stop = "end"'):
        until_of(
            settings_of(group={}, assign={"partitions": ["orders"]}),
            end=True, max_records=None, run_for=None, stop_at=None,
        )  # fmt: skip
