"""The committer: one request at a time, only what is ours, until it is through or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer
from kunicorn.ipc import clock
from kunicorn.ipc.bitmap import with_partitions, written
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from tests.fakes.virtual_loop import virtual_time

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Broker:
    """Takes commits; answers with the scripted outcomes first, then with success."""

    def __init__(self, *script: CommitAnswer | PeerError) -> None:
        self.may_commit = True
        self.changed = Notifier()
        self.script = list(script)
        self.gone: set[str] = set()
        self.requests: list[dict[TopicPartition, Position]] = []
        self.refused: list[int] = []
        self.at_once = 0
        self.most_at_once = 0
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        self.requests.append(dict(offsets))
        self.asked.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        answer = self.script.pop(0) if self.script else CommitAnswer(dict.fromkeys(offsets, 0))
        if isinstance(answer, PeerError):
            raise answer
        return answer

    def commit_refused(self, error: int) -> None:
        self.refused.append(error)

    def is_gone(self, topic: str) -> bool:
        return topic in self.gone


class Consumed:
    """What was consumed and not committed yet."""

    def __init__(self, **offsets: int) -> None:
        self.left = {TopicPartition("orders", int(name[1:])): Position(offset) for name, offset in offsets.items()}

    def __call__(self) -> dict[TopicPartition, Position]:
        return dict(self.left)

    def committed(self, tp: TopicPartition, position: Position) -> None:
        if self.left.get(tp, Position(-1)) == position:
            del self.left[tp]


def committer(broker: Broker, consumed: Consumed) -> OffsetCommitter:
    return OffsetCommitter(broker, consumed, consumed.committed, Metrics())


@pytest.mark.scenario("0118 commit_rebalance")
@virtual_time(sockets=False)
async def test_what_leaves_us_is_committed_before_the_hook_returns() -> None:
    broker, consumed = Broker(), Consumed(p0=10, p1=20)
    assert await committer(broker, consumed).commit_all([ZERO, ONE], 5)
    assert broker.requests == [{ZERO: Position(10), ONE: Position(20)}]


@virtual_time(sockets=False)
async def test_the_hook_does_not_wait_for_partitions_that_go_on() -> None:
    broker, consumed = Broker(), Consumed(p0=10, p1=20)

    def goes_on(tp: TopicPartition, position: Position) -> None:
        consumed.committed(tp, position)
        consumed.left[ONE] = Position(position.offset + 1)

    commits = OffsetCommitter(broker, consumed, goes_on, Metrics())
    assert await commits.commit_all([ZERO], 5)
    assert len(broker.requests) == 1


@pytest.mark.scenario("testAutoCommitSyncBeforeRevocationRetriesOnRetriableAndStaleEpoch")
@virtual_time(sockets=False)
async def test_a_commit_that_goes_unanswered_is_repeated_with_the_newest_offsets() -> None:
    broker, consumed = Broker(PeerError("reset")), Consumed(p0=10)
    task = asyncio.create_task(committer(broker, consumed).commit_all([ZERO], 5))
    await broker.asked.wait()
    consumed.left[ZERO] = Position(15)
    assert await task
    assert broker.requests == [{ZERO: Position(10)}, {ZERO: Position(15)}]


@virtual_time(sockets=False)
async def test_a_partition_left_out_of_the_answer_is_committed_again() -> None:
    broker, consumed = Broker(CommitAnswer({ZERO: 0})), Consumed(p0=10, p1=20)
    assert await committer(broker, consumed).commit_all([ZERO, ONE], 5)
    assert broker.requests[1] == {ONE: Position(20)}


@virtual_time(sockets=False)
async def test_an_offset_the_broker_will_never_take_does_not_hold_up_the_others_and_is_said_to_be_left() -> None:
    broker, consumed = Broker(CommitAnswer({ZERO: 29, ONE: 0})), Consumed(p0=10, p1=20)
    assert not await committer(broker, consumed).commit_all([ZERO, ONE], 3600)
    assert len(broker.requests) == 1
    assert consumed() == {ZERO: Position(10)}


@virtual_time(sockets=False)
async def test_invariant_8_what_was_given_up_is_tried_once_more_by_whoever_needs_it_committed() -> None:
    broker, consumed = Broker(*[CommitAnswer({ZERO: 29})] * 2), Consumed(p0=10)
    commits = committer(broker, consumed)
    assert not await commits.commit_all([ZERO], 3600)
    assert not await commits.commit_all([ZERO], 3600)
    assert await commits.commit_all([ZERO], 3600), "the right was granted meanwhile"
    assert consumed() == {}


@virtual_time(sockets=False)
async def test_what_is_given_up_time_and_again_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    denied, taken = CommitAnswer({ZERO: 29}), CommitAnswer({ZERO: 0})
    broker, consumed = Broker(denied, denied, taken, denied), Consumed()
    commits = committer(broker, consumed)
    for offset, told, result in ((10, 1, "error 29"), (11, 0, "error 29"), (12, 0, "ok"), (13, 1, "error 29")):
        consumed.left[ZERO] = Position(offset)
        await commits.commit_all([ZERO], 3600)
        assert capfd.readouterr().err.count("cannot be committed") == told
        assert commits.last_result == result


@virtual_time(sockets=False)
async def test_nothing_is_kept_of_an_offset_that_was_given_up_and_whose_partition_has_left() -> None:
    broker, consumed = Broker(CommitAnswer({ZERO: 29}), CommitAnswer({ONE: 29})), Consumed(p0=10)
    commits = committer(broker, consumed)
    await commits.commit_all([ZERO], 3600)
    del consumed.left[ZERO]
    consumed.left[ONE] = Position(20)
    await commits.commit_all([ONE], 3600)
    assert commits._given_up == {ONE}


@virtual_time(sockets=False)
async def test_a_commit_of_which_nothing_is_taken_is_no_successful_one() -> None:
    """The time since the last one is what KunicornCommitsFailing rings by."""
    broker, consumed = Broker(CommitAnswer({ZERO: 29}), CommitAnswer({ZERO: 29, ONE: 0})), Consumed(p0=10, p1=20)
    commits = committer(broker, consumed)
    assert not await commits.commit_all([ZERO], 3600)
    assert commits.last_ok_at is None
    assert not await commits.commit_all([ZERO, ONE], 3600)
    assert commits.last_ok_at is not None


@pytest.mark.parametrize("error", [3, 100])
@virtual_time(sockets=False)
async def test_a_coordinator_that_does_not_know_the_topic_yet_is_asked_again(error: int) -> None:
    broker, consumed = Broker(CommitAnswer({ZERO: error})), Consumed(p0=10)
    assert await committer(broker, consumed).commit_all([ZERO], 3600)
    assert len(broker.requests) == 2


@pytest.mark.parametrize("error", [3, 100])
@virtual_time(sockets=False)
async def test_an_offset_of_a_topic_that_is_gone_is_given_up_as_soon_as_the_metadata_says_so(error: int) -> None:
    broker, consumed = Broker(*[CommitAnswer({ZERO: error})] * 1000), Consumed(p0=10)
    settling = asyncio.create_task(committer(broker, consumed).commit_all([ZERO], 3600))
    await broker.asked.wait()
    broker.gone.add("orders")
    assert not await settling
    assert consumed() == {ZERO: Position(10)}


@virtual_time(sockets=False)
async def test_invariant_3_a_partition_that_is_not_ours_any_more_is_not_in_the_retry() -> None:
    broker, consumed = Broker(PeerError("reset")), Consumed()
    owned = {ZERO, ONE}
    commits = committer(broker, consumed)
    task = asyncio.create_task(
        commits.commit_starts({ZERO: Position(1), ONE: Position(2)}, lambda tp: tp in owned, clock.now() + 5)
    )
    await broker.asked.wait()
    owned.discard(ONE)
    assert await task == {}
    assert broker.requests[-1] == {ZERO: Position(1)}


@pytest.mark.scenario("0117 do_test_offset_commit_error_during_rebalance")
@virtual_time(sockets=False)
async def test_invariant_2_nothing_is_sent_while_the_group_joins() -> None:
    broker, consumed = Broker(), Consumed(p0=10)
    broker.may_commit = False
    assert not await committer(broker, consumed).commit_all([ZERO], 0.2)
    assert broker.requests == []


@pytest.mark.scenario("testManyInFlightAsyncCommitsWithCoordinatorDisconnect")
@virtual_time(sockets=False)
async def test_one_commit_is_in_flight_and_quiet_waits_for_it() -> None:
    broker, consumed = Broker(), Consumed(p0=10)
    broker.gate.clear()
    commits = committer(broker, consumed)
    first = asyncio.create_task(commits.commit_all([ZERO], 5))
    second = asyncio.create_task(commits.commit_all([ZERO], 5))
    quiet = asyncio.create_task(commits.wait_answered())
    await broker.asked.wait()
    assert commits.pending
    assert not quiet.done()
    broker.gate.set()
    assert await first
    assert await second
    await quiet
    assert broker.most_at_once == 1


@pytest.mark.parametrize("undecided", [PeerError("no answer"), CommitAnswer({ZERO: 15}), CommitAnswer({ZERO: 7})])
@virtual_time(sockets=False)
async def test_a_commit_without_a_verdict_stays_pending_until_one_has_it(undecided: CommitAnswer | PeerError) -> None:
    """The broker holds heartbeats behind it: whoever sends them has to be as patient as beside the commit."""
    broker, consumed = Broker(undecided), Consumed(p0=10)
    commits = committer(broker, consumed)
    assert not await commits.commit_all([ZERO], 0.05)
    assert commits.pending
    assert await commits.commit_all([ZERO], 5)
    assert not commits.pending


@virtual_time(sockets=False)
async def test_a_refused_commit_is_not_pending() -> None:
    broker, consumed = Broker(CommitAnswer({ZERO: 27})), Consumed(p0=10)
    commits = committer(broker, consumed)
    assert not await commits.commit_all([ZERO], 0.05)
    assert not commits.pending


@pytest.mark.parametrize("error", [22, 25, 27])
@virtual_time(sockets=False)
async def test_an_error_that_concerns_membership_is_told_to_the_member(error: int) -> None:
    broker, consumed = Broker(CommitAnswer({ZERO: error})), Consumed(p0=10)
    await committer(broker, consumed).commit_all([ZERO], 0.05)
    assert broker.refused == [error]


@pytest.mark.scenario(
    "testOnJoinPrepareWithOffsetCommitShouldKeepJoinAfterRebalanceTimeout",
    "testReconcilePartitionsRevokedWithFailedAutoCommitCompletesRevocationAnyway",
)
@virtual_time(sockets=False)
async def test_a_commit_that_cannot_be_had_in_time_is_said_to_have_failed() -> None:
    broker, consumed = Broker(*[PeerError("down")] * 50), Consumed(p0=10)
    assert not await committer(broker, consumed).commit_all([ZERO], 0.3)


@virtual_time(sockets=False)
async def test_a_start_offset_without_the_right_to_read_is_tried_once_and_does_not_count_as_committed() -> None:
    broker, told = (
        Broker(CommitAnswer({ZERO: 29, ONE: 0})),
        list[tuple[list[TopicPartition], dict[TopicPartition, str]]](),
    )
    starts = {ZERO: Position(1), ONE: Position(2)}
    begun = committer(broker, Consumed()).commit_starts(
        starts, lambda _: True, clock.now() + 5, lambda *each: told.append((list(each[0]), dict(each[1])))
    )
    assert await begun == {}
    assert len(broker.requests) == 1
    [(committed, denied)] = told
    assert committed == [ONE]
    assert denied.keys() == {ZERO}
    assert "this user needs READ on topic" in denied[ZERO]


@virtual_time(sockets=False)
async def test_a_start_offset_in_a_topic_that_the_broker_does_not_know_yet_is_tried_again() -> None:
    broker, consumed = Broker(CommitAnswer({ZERO: 3})), Consumed()
    commits = committer(broker, consumed)
    assert await commits.commit_starts({ZERO: Position(1)}, lambda _: True, clock.now() + 5) == {}
    assert len(broker.requests) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (CommitAnswer({ZERO: -1, ONE: 0}), "UNKNOWN_SERVER_ERROR (-1)"),
        (CommitAnswer({ZERO: 12, ONE: 0}), "OFFSET_METADATA_TOO_LARGE (12)"),
        (CommitAnswer({ONE: 0}), "UNKNOWN_SERVER_ERROR (-1)"),
        (PeerError("reset"), "the coordinator has not answered the commit"),
    ],
)
@virtual_time(sockets=False)
async def test_a_start_offset_that_is_not_taken_in_time_is_told_with_the_last_answer(
    answer: CommitAnswer | PeerError, why: str
) -> None:
    starts = {ZERO: Position(1)} if isinstance(answer, PeerError) else {ZERO: Position(1), ONE: Position(2)}
    commits = committer(Broker(*[answer] * 20), Consumed())
    told = await commits.commit_starts(starts, lambda _: True, clock.now() + 0.05)
    assert told.keys() == {ZERO}
    assert told[ZERO].startswith(why)


@virtual_time(sockets=False)
async def test_a_start_offset_that_cannot_be_sent_is_told_with_that() -> None:
    broker = Broker()
    broker.may_commit = False
    told = await committer(broker, Consumed()).commit_starts({ZERO: Position(1)}, lambda _: True, clock.now() + 0.05)
    assert told == {
        ZERO: "no coordinator takes commits of this member now: it is looked up, or a rebalance is under way"
    }


@virtual_time(sockets=False)
async def test_brokers_that_take_little_metadata_get_the_number_of_partitions_and_none_if_that_is_too_long() -> None:
    whole = with_partitions(64, written(0, {5}))
    refused = CommitAnswer({ZERO: 12})
    broker = Broker(refused, refused)
    commits = OffsetCommitter(broker, dict, lambda *_: None, Metrics())
    assert await commits.commit_starts({ZERO: Position(0, -1, whole)}, lambda _: True, clock.now() + 10) == {}
    assert [each[ZERO].done for each in broker.requests] == [whole, "kunicorn:partitions:64", ""]


class Log(Broker):
    """Of a coordinator that writes a commit as one batch, which its topic takes up to 1,048,588 bytes, as brokers are
    shipped; the answer to a larger one is that of Kafka 4."""

    def __init__(self, *script: CommitAnswer | PeerError) -> None:
        super().__init__(*script)
        self.committed: dict[TopicPartition, Position] = {}

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        answer = await super().send_commit(offsets)
        if 61 + sum(_in_the_log(tp, each) for tp, each in offsets.items()) > 1_048_588:
            return CommitAnswer(dict.fromkeys(offsets, -1))
        self.committed |= {tp: each for tp, each in offsets.items() if not answer.errors[tp]}
        return answer


def _in_the_log(tp: TopicPartition, position: Position) -> int:
    """Bytes of OffsetCommitKey, of OffsetCommitValue with the topic's id, and of the record around them."""
    return 50 + len("a group's name, of some length") + len(tp.topic) + len(position.done) + 16


def very_many(count: int, ahead: int) -> dict[TopicPartition, Position]:
    done = written(0, range(1, 1 + ahead))
    return {TopicPartition("shop.orders.events.v1", number): Position(0, 3, done) for number in range(count)}


@virtual_time(sockets=False)
async def test_what_one_request_cannot_have_is_committed_in_several() -> None:
    broker, consumed = Log(), Consumed()
    consumed.left = very_many(1_500, 4_000)
    every = dict(consumed.left)
    assert await committer(broker, consumed).commit_all(list(every), 3600)
    assert broker.committed == every
    assert len(broker.requests) <= 5
    assert sum(map(len, broker.requests)) == 1_500


@virtual_time(sockets=False)
async def test_a_new_group_begins_with_however_many_partitions() -> None:
    broker, started = Log(), set[TopicPartition]()
    starts = {TopicPartition("t" * 110, number): Position(0, 0) for number in range(6_000)}
    begun = committer(broker, Consumed()).commit_starts(
        starts, lambda _: True, clock.now() + 3600, lambda now, _: started.update(now)
    )
    assert await begun == {}
    assert started == starts.keys()


@virtual_time(sockets=False)
async def test_a_partition_that_leaves_is_in_the_first_request_and_does_not_wait_for_the_others() -> None:
    broker, consumed = Log(), Consumed(p0=10)
    consumed.left = {**very_many(1_500, 4_000), **consumed.left}
    assert await committer(broker, consumed).commit_all([ZERO], 3600)
    assert len(broker.requests) == 1
    assert broker.committed[ZERO] == Position(10)


@virtual_time(sockets=False)
async def test_what_is_refused_as_a_whole_is_told_once_until_it_changes(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the reaction is: most of these are repeated in silence else."""
    answers = [CommitAnswer({ZERO: error}) for error in (-1, -1, 14, 0, -1, 0)]
    broker, consumed = Broker(*answers), Consumed()
    commits = committer(broker, consumed)
    for count in range(6):
        consumed.left[ZERO] = Position(count)
        await commits._commit_once(consumed, "timer")
    told = [line.split(" are not committed: ")[1].split(":")[0] for line in capfd.readouterr().err.splitlines()]
    assert told == ["UNKNOWN_SERVER_ERROR (-1)", "COORDINATOR_LOAD_IN_PROGRESS (14)", "UNKNOWN_SERVER_ERROR (-1)"]


@virtual_time(sockets=False)
async def test_a_request_that_is_refused_does_not_keep_those_behind_it() -> None:
    first = list(very_many(1_500, 4_000))
    broker, consumed = Log(), Consumed()
    consumed.left = very_many(1_500, 4_000)
    broker.script = [CommitAnswer(dict.fromkeys(first, -1))]
    commits = committer(broker, consumed)
    await commits._commit_once(consumed, "timer")
    assert len(broker.requests) > 1
    assert consumed.left.keys() == broker.requests[0].keys()
    assert (commits.last_result, commits.last_ok_at) == ("error -1", None)


@pytest.mark.parametrize("failure", [PeerError("down"), CommitAnswer(dict.fromkeys(very_many(1_500, 0), 16))])
@virtual_time(sockets=False)
async def test_where_all_requests_would_meet_the_same_one_is_sent(failure: PeerError | CommitAnswer) -> None:
    broker, consumed = Log(failure), Consumed()
    consumed.left = very_many(1_500, 4_000)
    await committer(broker, consumed)._commit_once(consumed, "timer")
    assert len(broker.requests) == 1


@virtual_time(sockets=False)
async def test_the_deadline_is_one_for_all_requests_together() -> None:
    broker, consumed = Log(), Consumed()
    consumed.left = very_many(1_500, 4_000)
    answer = broker.send_commit

    async def slowly(offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        # Longer than there is time.
        deadline = clock.now() + 2.5
        await Notifier().wait(lambda: False, deadline)
        return await answer(offsets)

    setattr(broker, "send_commit", slowly)  # noqa: B010
    assert not await committer(broker, consumed).commit_all(list(consumed.left), 2.0)
    assert len(broker.requests) == 1


@virtual_time(sockets=False)
async def test_whoever_waits_for_the_commit_in_flight_waits_for_one_request() -> None:
    broker, consumed = Log(), Consumed()
    consumed.left = very_many(1_500, 4_000)
    broker.gate.clear()
    commits = committer(broker, consumed)
    timer = asyncio.create_task(commits._commit_once(consumed, "timer"))
    await broker.asked.wait()
    quiet = asyncio.create_task(commits.wait_answered())
    await asyncio.sleep(0)
    broker.gate.set()
    await quiet
    assert not (await timer).complete
    assert len(broker.requests) == 1
