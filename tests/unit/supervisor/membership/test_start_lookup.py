"""From a partition that is ours to one that has a start: what is looked up, committed and handed out, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

import pytest

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer, EpochEnd, LogOffset
from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.ipc import bitmap, clock
from kunicorn.ipc.messages import Failed, FailureKind
from kunicorn.kafka_errors import ErrorCode
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import EARLIEST, Position, TopicPartition
from kunicorn.supervisor.membership.source import StartLookup
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.offsets.start_offsets import Starts
from kunicorn.supervisor.tasks import ServiceTasks
from tests.fakes.driver import until
from tests.fakes.stage import Stage, settings_with, tps
from tests.fakes.virtual_loop import Teller, in_virtual_time, with_scene
from tests.unit.observe.snapshots import status

FIRST, END = 5, 900
"""Where logs begin and end."""
ZERO, ONE = tps(0, 1)


class World:
    """One worker, its member's partitions, and the brokers: `AssignmentSource`, `Offsets` and `CommitTarget`."""

    may_commit = goes_by_ids = True

    def __init__(self, policy: str = "earliest") -> None:
        self.stage = Stage(workers=1)
        self.assignment = self.stage.assignment
        self.committed: dict[TopicPartition, int] = {}
        self.refused: dict[TopicPartition, int] = {}
        """Error codes for commits of these."""
        self.denied = False
        """Whether the committed offsets may not be read."""
        self.truncated: set[TopicPartition] = set()
        """The log was cut before the committed offsets of these."""
        self.unstable: set[TopicPartition] = set()
        """Transactions are open that commit offsets of these: nothing is said of them yet."""
        self.leaderless = False
        """No leader answers where its log begins or ends."""
        self.looked_up = 0
        self.held: list[asyncio.Event] | None = None
        """Look-ups are answered when these are set, one for each; None: at once."""
        self.topic_id: UUID | None = UUID(int=1)
        self.learns: UUID | None = None
        """Which topic has the name, as the brokers tell whoever asks for its id."""
        self.first, self.end = FIRST, END
        self.epoch = EpochEnd(0, 3, END)
        """What leaders say of where the leader epoch of positions ends."""
        self.tasks = ServiceTasks()
        table = self.assignment.table
        self.stage.topics.topic_id = lambda _: self.topic_id
        self.commits = OffsetCommitter(self, table.consumed, table.committed, Metrics())
        self._policy = policy
        untyped: Any = self
        self.start_lookup = StartLookup(settings_with(policy), untyped, untyped, self.assignment, self.tasks)
        self.tasks.start(self.start_lookup.run(table.without_start))

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        starts = Starts()
        self.looked_up += 1
        for tp in partitions:
            if tp in self.unstable:
                starts.waiting[tp] = "it is not stable yet: wait for the transaction"
                continue
            if self.denied:
                starts.denied[tp] = "OffsetFetch was answered with error 29"
            elif tp in self.truncated:
                starts.chosen[tp], starts.truncated = Position(FIRST), starts.truncated | {tp}
            elif tp in self.committed:
                starts.committed[tp] = Position(self.committed[tp], 3)
            else:
                starts.chosen[tp] = Position(FIRST if self._policy == "earliest" else self.end)
        if self.held is not None:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return starts

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        if self.leaderless:
            raise PeerError("nobody leads the partition")
        return {tp: LogOffset(0, self.first if at == EARLIEST else self.end) for tp, at in queries.items()}

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        assert set(queries.values()) == {3}
        return dict.fromkeys(queries, self.epoch)

    async def confirm_ids(self, topics: Collection[str]) -> None:
        if self.learns is not None and self.learns != self.topic_id:
            self.topic_id, now = self.learns, clock.now()
            if gone := self.assignment.table.of_gone_topics():
                self.tasks.start(self.assignment.renew(gone, now + 5, now + 10))

    @property
    def changed(self) -> Notifier:
        return self.stage.assignment.table.changed

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        taken = {tp: position.offset for tp, position in offsets.items() if tp not in self.refused}
        self.committed |= taken
        return CommitAnswer({tp: self.refused.get(tp, 0) for tp in offsets})

    def commit_refused(self, error: int) -> None:
        pass

    def is_gone(self, topic: str) -> bool:
        return False

    def start_of(self, number: int) -> int | None:
        """Where the worker was last told to begin."""
        start = self.stage.workers[0].starts().get(TopicPartition("orders", number))
        return None if start is None else start.offset

    async def give_back(self, tp: TopicPartition) -> None:
        """It is revoked before anything of it is handled."""
        await self.commits.wait_answered()
        await self.assignment.revoke([tp], clock.now() + 5, clock.now() + 10)
        self.assignment.forget([tp])


def play(story: Callable[[World], Any], policy: str = "earliest") -> None:
    async def whole() -> None:
        world = World(policy)
        try:
            await story(world)
        finally:
            world.start_lookup.stop()
            await world.tasks.cancel(5)
        assert world.tasks.error is None

    in_virtual_time(whole, sockets=False)


def told(policy: str = "earliest") -> Teller[World]:
    """Tests of a world of their own."""
    return with_scene(lambda story, _: play(story, policy))


@told()
async def test_an_offset_of_the_topic_that_has_the_name_by_now_is_not_taken_for_one_of_the_topic_before(
    world: World,
) -> None:
    """A member whose metadata is old is given a partition that others have begun: it goes on there, and does not begin
    again when it hears that the topic was created anew."""
    world.committed[ZERO] = 7
    world.learns = UUID(int=2)
    world.assignment.assign([ZERO])
    await until(lambda: world.start_of(0) is not None)
    assert world.start_of(0) == 7
    assert world.assignment.table[ZERO].topic_id == UUID(int=2)
    assert world.assignment.table.of_gone_topics() == []


@told()
async def test_a_topic_that_a_plan_brings_before_the_metadata_is_known_for_another_one_when_it_is_created_anew(
    world: World,
) -> None:
    """It was gone when this member last asked, and its leader has heard since that there is another one."""
    world.topic_id, world.learns = None, UUID(int=2)
    world.committed[ZERO] = 7
    world.assignment.assign([ZERO])
    await until(lambda: world.start_of(0) == 7)
    table = world.assignment.table
    assert (table.topic_ids([ZERO]), table.of_gone_topics()) == ({"orders": UUID(int=2)}, [])
    world.topic_id = UUID(int=3)
    assert table.of_gone_topics() == [ZERO]


@pytest.mark.parametrize(
    ("created_anew", "committed", "told"), [(True, False, True), (True, True, False), (False, False, False)]
)
@told()
async def test_a_topic_deleted_and_created_later_begins_where_its_handler_that_keeps_offsets_is_told_not_where_it_says(
    world: World, created_anew: bool, committed: bool, told: bool
) -> None:
    """Its partitions had left between the two topics. Members commit a start before they begin: where there is none,
    nobody has begun with the new topic, and what the handler has stored is of the old one."""
    world.stage.in_force.keeps_offsets = lambda _: True
    world.stage.topics.created_anew = lambda _: created_anew
    if committed:
        world.committed[ZERO] = 700
    world.assignment.assign([ZERO])
    await until(lambda: world.start_of(0) is not None)
    assert (world.start_of(0), world.stage.start_of(0).reset) == (700 if committed else FIRST, told)
    first = world.stage.start_of(0)
    world.stage.workers[0].consume(first, 710)
    world.stage.stopped(first, 710)
    assert not world.stage.start_of(0).reset


@told()
async def test_a_look_up_that_goes_on_for_others_does_not_choose_again_for_one_that_has_begun_since(
    world: World,
) -> None:
    """Its worker died, and its last transaction is still open: what was chosen at first is older than that."""
    world.assignment.table.workers_commit = True
    world.refused[ONE] = 3
    world.assignment.assign([ZERO, ONE])
    await until(lambda: world.start_of(0) == FIRST)
    world.committed[ZERO] = 700  # in transactions
    world.stage.workers[0].consume(world.stage.start_of(0), 700)
    world.unstable = {ZERO}
    world.stage.die()
    await asyncio.sleep(5.0)
    assert world.committed[ZERO] == 700
    world.unstable.clear()
    world.stage.revive()
    await until(lambda: world.start_of(0) is not None)
    assert (world.start_of(0), world.committed[ZERO]) == (700, 700)


@told(policy="latest")
async def test_a_partition_that_left_and_came_back_does_not_begin_where_nothing_was_committed(world: World) -> None:
    world.may_commit = False
    world.assignment.assign([ZERO])
    await asyncio.sleep(1.0)
    await world.give_back(ZERO)
    world.assignment.assign([ZERO])
    await asyncio.sleep(1.0)
    assert world.start_of(0) is None
    world.may_commit = True
    world.changed.notify()
    await until(lambda: world.start_of(0) == END)
    assert world.committed == {ZERO: END}


@told(policy="latest")
async def test_a_partition_that_left_and_came_back_does_not_begin_where_it_was_when_it_left(world: World) -> None:
    held: list[asyncio.Event] = []
    world.held = held
    world.committed[ZERO] = 510
    world.assignment.assign([ZERO])
    await until(lambda: len(held) == 1)
    await world.give_back(ZERO)
    world.committed[ZERO] = 520  # by its owner in between
    world.assignment.assign([ZERO])
    await until(lambda: len(held) == 2)
    held[0].set()
    await asyncio.sleep(1.0)
    assert world.start_of(0) is None
    held[1].set()
    await until(lambda: world.start_of(0) is not None)
    assert world.start_of(0) == 520


@told()
async def test_a_committed_offset_that_the_log_has_lost_is_counted_and_one_that_it_has_is_not(world: World) -> None:
    world.committed = {ZERO: 700, ONE: 600}
    world.truncated = {ZERO}
    world.assignment.assign([ZERO, ONE])
    await until(lambda: (world.start_of(0), world.start_of(1)) == (FIRST, 600))
    page, _ = world.stage.metrics.render(status(), "text/plain", 10)
    assert 'kunicorn_offset_resets_total{group="shop",reason="truncated"} 1.0' in page.decode()


@told()
async def test_a_start_that_is_not_told_is_named_with_the_remedy_at_its_partition_and_when_it_lasts_in_the_log(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    told = "1 partitions wait for their start offset: it is not stable yet: wait for the transaction"
    world.committed, world.unstable = {ZERO: 700, ONE: 800}, {ZERO}
    world.assignment.assign([ZERO, ONE])
    await until(lambda: world.start_of(1) == 800)
    assert world.assignment.table[ZERO].reason == "it is not stable yet: wait for the transaction"
    await asyncio.sleep(9.0)
    assert told not in capfd.readouterr().err, "an election takes less"
    await asyncio.sleep(4.0)
    log = capfd.readouterr().err
    assert log.count(told) == 1
    assert "orders-0" in log
    await asyncio.sleep(64.0)
    assert capfd.readouterr().err.count(told) == 1, "once a minute"
    world.unstable.clear()
    await until(lambda: world.start_of(0) == 700)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (-1, "UNKNOWN_SERVER_ERROR (-1): see the log of the broker that answered"),
        (16, "NOT_COORDINATOR (16)"),
        (12, "OFFSET_METADATA_TOO_LARGE (12)"),
        (None, "no coordinator takes commits of this member now"),
    ],
)
@told()
async def test_invariant_7_a_start_that_is_not_committed_is_named_with_its_reason_and_when_it_lasts_in_the_log(
    world: World, error: int | None, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not with what it waited for before: that its log's end was not told."""
    told = f"1 partitions wait for their start offset: its start offset is not committed yet: {why}"
    world.unstable = {ZERO}
    world.may_commit, world.refused = error is not None, {ZERO: error or 0}
    world.assignment.assign([ZERO])
    partition = world.assignment.table[ZERO]
    await asyncio.sleep(1.0)
    assert partition.reason == "it is not stable yet: wait for the transaction"
    world.unstable.clear()
    await asyncio.sleep(6.0)
    assert partition.state is PartitionState.RESOLVING
    assert (partition.reason or "").startswith(f"its start offset is not committed yet: {why}")
    capfd.readouterr()
    await asyncio.sleep(20.0)
    log = capfd.readouterr().err
    assert log.count(told) == 1
    assert "WARNING" in next(line for line in log.splitlines() if told in line)
    await asyncio.sleep(60.0)
    assert capfd.readouterr().err.count(told) == 1, "once a minute"
    world.may_commit, world.refused = True, {}
    await asyncio.sleep(5.0)
    assert (world.start_of(0), world.committed) == (FIRST, {ZERO: FIRST})


@told()
async def test_a_start_that_is_not_committed_yet_holds_up_no_other(world: World) -> None:
    world.refused[ONE] = 3
    world.assignment.assign([ZERO, ONE])
    began = asyncio.get_running_loop().time()
    await until(lambda: world.start_of(0) == FIRST)
    assert asyncio.get_running_loop().time() - began < 1.0
    assert world.start_of(1) is None
    world.refused.clear()
    await until(lambda: world.start_of(1) == FIRST)


@told(policy="latest")
async def test_a_start_that_was_chosen_stays_the_one_while_its_commit_is_refused(world: World) -> None:
    """Looked up anew it would be the log's end of a later time, and what was written since be skipped."""
    world.refused[ZERO] = 3
    world.assignment.assign([ZERO])
    await asyncio.sleep(60.0)
    world.end += 50
    await asyncio.sleep(60.0)
    world.refused.clear()
    await until(lambda: world.start_of(0) is not None)
    assert world.start_of(0) == END


@told()
async def test_partitions_whose_logs_are_known_later_do_not_wait_for_a_start_that_is_refused(world: World) -> None:
    world.refused[ZERO] = 3
    known = asyncio.Event()
    look_up = world.look_up

    async def partly(partitions: Collection[TopicPartition]) -> Starts:
        found = await look_up([tp for tp in partitions if tp != ONE or known.is_set()])
        known.set()
        return found

    world.look_up = partly  # type: ignore[method-assign]
    world.assignment.assign([ZERO, ONE])
    began = asyncio.get_running_loop().time()
    await until(lambda: world.start_of(1) == FIRST)
    assert asyncio.get_running_loop().time() - began < 5.0


@told()
async def test_a_right_to_read_that_comes_late_is_found_by_itself_with_one_look_up_for_all(world: World) -> None:
    world.denied = True
    world.assignment.assign([ZERO, ONE])
    await asyncio.sleep(25.0)
    assert {partition.state for partition in world.assignment.table.values()} == {PartitionState.HALTED}
    assert world.looked_up == 3, "at once, and every 10 s"
    world.denied = False
    await until(lambda: (world.start_of(0), world.start_of(1)) == (FIRST, FIRST), within=15.0)
    assert world.looked_up == 4


@told(policy="latest")
async def test_a_start_that_may_not_be_committed_yet_is_kept_and_committed_before_anything_is_fetched(
    world: World,
) -> None:
    """Under `latest` the next owner would skip what was written since, if nothing was finished before it came."""
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.refused = {ZERO: denied}
    world.assignment.assign([ZERO, ONE])
    await until(lambda: world.start_of(1) == END and world.stage.state(0) is PartitionState.HALTED)
    halted = world.assignment.table[ZERO]
    assert "this user needs READ on topic 'orders'" in (halted.reason or "")
    world.end = END + 10
    await asyncio.sleep(15.0)
    assert (world.start_of(0), halted.committed, halted.state) == (None, None, PartitionState.HALTED)
    world.refused = {}
    await until(lambda: world.start_of(0) == END, within=15.0)
    assert (world.committed[ZERO], halted.committed) == (END, END)


@told()
async def test_a_right_to_read_that_is_lost_twice_is_told_twice(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """However often a fetch is refused meanwhile."""

    async def lose_the_right(world: World) -> None:
        worker = world.stage.workers[0]
        for _ in range(3):
            start = worker.starts()[ZERO]
            report = Failed(start.grant, FailureKind.DENIED, start.offset, 3, "this user may not read it")
            world.assignment.worker_failed(worker, report)
            await until(lambda start=start: worker.starts()[ZERO] is not start, within=15.0)
        assert capfd.readouterr().err.count("1 partitions are halted: this user may not read them") == 1

    world.assignment.assign([ZERO])
    await until(lambda: world.start_of(0) == FIRST)
    await lose_the_right(world)
    await asyncio.sleep(60.0)
    await lose_the_right(world)


@told()
async def test_what_a_person_resumes_in_vain_is_still_tried_again_by_itself(world: World) -> None:
    world.denied = True
    world.assignment.assign([ZERO, ONE])
    await until(lambda: world.stage.state(1) is PartitionState.HALTED)
    world.assignment.resume(list(world.assignment.table.values()), "resumed by a person")
    await until(lambda: world.looked_up == 2 and world.stage.state(1) is PartitionState.HALTED)
    world.denied = False
    await until(lambda: (world.start_of(0), world.start_of(1)) == (FIRST, FIRST), within=15.0)


@told()
async def test_what_a_person_resumes_before_it_has_begun_is_looked_up_with_one_question(world: World) -> None:
    world.denied = True
    world.assignment.assign([ZERO, ONE])
    await until(lambda: world.stage.state(1) is PartitionState.HALTED)
    world.denied = False
    world.assignment.resume(list(world.assignment.table.values()), "resumed by a person")
    await until(lambda: (world.start_of(0), world.start_of(1)) == (FIRST, FIRST), within=15.0)
    assert world.looked_up == 2


def test_one_of_a_new_topic_whose_leader_is_away_holds_up_no_other_that_came_with_it() -> None:
    async def story() -> None:
        world = World()
        world.leaderless, world.committed = True, {ONE: 40}
        fresh, known = map(world.assignment.table.enter, (ZERO, ONE))
        fresh.entered(world.topic_id, fresh=True)
        world.assignment.table.look_up([fresh, known])
        await until(lambda: world.start_of(1) == 40)
        assert fresh.state is PartitionState.RESOLVING
        world.leaderless = False
        await until(lambda: world.start_of(0) == FIRST)

    in_virtual_time(story, sockets=False)


def failed(world: World, kind: FailureKind) -> None:
    """The worker fetches partition 0 no more, from offset 720 on."""
    grant = world.stage.start_of(0).grant
    world.assignment.worker_failed(world.stage.workers[0], Failed(grant, kind, 720, 3, "why"))


def paused(world: World) -> None:
    partition = world.assignment.table[ZERO]
    partition.advance(PartitionEvent.PAUSE, "paused by a person")
    world.assignment.drain([partition])
    world.stage.stopped(world.stage.start_of(0), 720)


def without_worker(world: World) -> None:
    world.stage.workers[0].consume(world.stage.start_of(0), 720)
    world.stage.die()


def resume(world: World) -> None:
    world.assignment.resume([world.assignment.table[ZERO]], "resumed by a person")
    world.assignment.distribute()


def reload(world: World) -> None:
    assert world.assignment.code_replaced("tried again with revision 2") == 1


STOPS: Mapping[str, tuple[Callable[[World], object], Callable[[World], object]]] = {
    "halted": (lambda world: failed(world, FailureKind.HANDLER), resume),
    "halted, reloaded": (lambda world: failed(world, FailureKind.HANDLER), reload),
    "paused": (paused, resume),
    "denied": (lambda world: failed(world, FailureKind.DENIED), lambda world: None),
    "without a worker": (without_worker, lambda world: world.stage.revive()),
}
"""How partition 0 comes to be fetched by nobody, and how it goes on."""


async def begin_where_committed(world: World) -> None:
    """Partition 0, at 700."""
    world.committed[ZERO] = 700
    world.assignment.assign([ZERO])
    await until(lambda: world.start_of(0) == 700)


async def stop_and_go_on(world: World, how: str, epoch: EpochEnd) -> None:
    """Partition 0 is fetched by nobody for twelve seconds, after which leaders say so of its epoch."""
    stop, go_on = STOPS[how]
    await begin_where_committed(world)
    before = world.stage.start_of(0).grant
    stop(world)
    world.epoch = epoch
    await asyncio.sleep(12.0)
    go_on(world)
    await until(lambda: world.start_of(0) is not None and world.stage.start_of(0).grant != before, within=15.0)


@pytest.mark.parametrize("how", STOPS)
@told()
async def test_a_log_that_was_cut_while_nobody_fetched_it_is_gone_on_with_where_it_was_cut(
    world: World, how: str
) -> None:
    """It has grown again: a worker would begin within it, and pass by what came in place of what was cut."""
    await stop_and_go_on(world, how, EpochEnd(0, 3, 710))
    assert (world.start_of(0), world.stage.start_of(0).reset, world.committed[ZERO]) == (710, True, 710)
    page, _ = world.stage.metrics.render(status(), "text/plain", 10)
    assert 'kunicorn_offset_resets_total{group="shop",reason="truncated"} 1.0' in page.decode()


@pytest.mark.parametrize("how", STOPS)
@told()
async def test_a_log_that_was_not_cut_while_nobody_fetched_it_is_gone_on_with_where_it_was(
    world: World, how: str
) -> None:
    await stop_and_go_on(world, how, EpochEnd(0, 3, 900))
    start = world.stage.start_of(0)
    assert (start.offset, start.leader_epoch, start.reset) == (720, 3, False)
    assert world.committed[ZERO] == 700
    assert {at.offset for at in world.assignment.table.consumed().values()} == {720}, "it is still to be committed"


@pytest.mark.parametrize("keeps_offsets", [False, True])
@told()
async def test_what_was_done_ahead_of_a_position_is_handled_again_where_the_log_was_cut_between_them(
    world: World, keeps_offsets: bool
) -> None:
    """Whoever fetches from that position on finds no truncation, as the log has it still: other records are there now
    in place of those that were done. A handler that keeps its offsets knows no more of that."""
    await begin_where_committed(world)
    world.stage.in_force.keeps_offsets = lambda _: keeps_offsets
    before, done = world.stage.start_of(0).grant, bitmap.written(720, {725, 790})
    failure = Failed(before, FailureKind.HANDLER, 720, 3, "why", done)
    world.assignment.worker_failed(world.stage.workers[0], failure)
    world.epoch = EpochEnd(0, 3, 750)
    resume(world)
    await until(lambda: world.stage.start_of(0).grant != before)
    start = world.stage.start_of(0)
    assert (start.offset, set(bitmap.read(start.offset, start.done))) == (720, {725})


@pytest.mark.parametrize(
    ("first", "epoch", "left"),
    [
        (715, EpochEnd(0, 3, 900), {725, 790}),
        (728, EpochEnd(0, 3, 900), {790}),
        (728, EpochEnd(0, 3, 750), set()),
        (728, EpochEnd(ErrorCode.UNSUPPORTED_VERSION), set()),
    ],
)
@told()
async def test_what_was_done_ahead_of_a_position_that_retention_took_is_not_handled_again(
    world: World, first: int, epoch: EpochEnd, left: frozenset[int]
) -> None:
    """As far as it is known to be of the log of then."""
    await begin_where_committed(world)
    world.first, world.epoch = first, epoch
    before, done = world.stage.start_of(0).grant, bitmap.written(710, {725, 790})
    failure = Failed(before, FailureKind.OUT_OF_RANGE, 710, 3, "why", done)
    world.assignment.worker_failed(world.stage.workers[0], failure)
    await until(lambda: world.stage.start_of(0).grant != before)
    start = world.stage.start_of(0)
    assert (start.offset, bitmap.read(start.offset, start.done)) == (first, left)


@told()
async def test_a_partition_does_not_go_on_before_its_leader_tells_whether_its_log_was_cut(world: World) -> None:
    await begin_where_committed(world)
    failed(world, FailureKind.HANDLER)
    world.epoch = EpochEnd(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    resume(world)
    await asyncio.sleep(30.0)
    partition = world.assignment.table[ZERO]
    assert partition.state is PartitionState.RESOLVING
    assert "OffsetForLeaderEpoch was answered with" in (partition.reason or "")
    world.epoch = EpochEnd(0, 3, 715)
    await until(lambda: world.start_of(0) == 715)


@told(policy="none")
async def test_a_log_that_was_cut_under_none_halts_the_partition_again(world: World) -> None:
    await begin_where_committed(world)
    failed(world, FailureKind.HANDLER)
    world.epoch = EpochEnd(0, 3, 710)
    resume(world)
    await until(lambda: world.stage.state(0) is PartitionState.HALTED)
    assert 'auto_offset_reset is "none"' in (world.assignment.table[ZERO].reason or "")


@told()
async def test_where_the_handler_keeps_the_offsets_a_partition_goes_on_at_once(world: World) -> None:
    """It is asked where, and knows better than we do."""
    await begin_where_committed(world)
    world.stage.in_force.keeps_offsets = lambda _: True
    failed(world, FailureKind.HANDLER)
    resume(world)
    assert world.stage.state(0) is PartitionState.STARTING


@told(policy="none")
async def test_a_handler_whose_stored_offset_the_log_has_not_is_asked_again_when_a_person_resumes_the_partition(
    world: World,
) -> None:
    """Under `none` nothing took its place. Told as a new start, it would overwrite what the person has stored."""
    await begin_where_committed(world)
    world.stage.in_force.keeps_offsets = lambda _: True
    world.end = 710
    failed(world, FailureKind.OUT_OF_RANGE)
    await until(lambda: world.stage.state(0) is PartitionState.HALTED)
    before = world.stage.start_of(0).grant
    resume(world)
    assert world.stage.start_of(0).grant > before
    assert not world.stage.start_of(0).reset
