"""Where a partition starts (invariant 9: no start offset is guessed)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from kunicorn.errors import FatalGroupError, PeerError
from kunicorn.group.protocol import Committed, EpochEnd, LogOffset, OffsetFetchAnswer
from kunicorn.ipc import bitmap
from kunicorn.kafka_errors import ErrorCode
from kunicorn.observe import logs
from kunicorn.positions import EARLIEST, LATEST, NO_OFFSET, Position, TopicPartition
from kunicorn.supervisor.offsets.start_offsets import Starts, begin, check, find, look_up, recover

OLD, NEW, QUIET = (TopicPartition("orders", number) for number in range(3))


class Log:
    """Brokers with a log from 100 to 500 on every partition, and what a group has committed."""

    def __init__(self, committed: Mapping[TopicPartition, Committed], group_error: int = 0) -> None:
        self.committed = committed
        self.group_error = group_error
        self.first, self.last = 100, 500
        self.epoch_end: int | None = None
        self.epoch_errors: list[int] = []
        """What the leaders say in place of an epoch's end, question by question."""
        self.questions: list[frozenset[TopicPartition]] = []
        """Of which partitions they were asked where an epoch ends."""
        self.list_error = 0
        self.anew: set[str] = set()
        self.asked: set[TopicPartition] = set()

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> OffsetFetchAnswer:
        if self.group_error:
            return OffsetFetchAnswer(self.group_error)
        return OffsetFetchAnswer(0, {tp: self.committed[tp] for tp in partitions if tp in self.committed})

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        self.asked |= set(queries)
        return {tp: LogOffset(self.list_error, self._at(at)) for tp, at in queries.items()}

    def _at(self, timestamp: int) -> int:
        """Records were written at the times 1000 to 1399; to a later question there is no answer."""
        special = {EARLIEST: self.first, LATEST: self.last}
        return special.get(timestamp, max(self.first, timestamp - 900) if timestamp < 1400 else NO_OFFSET)

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        self.questions.append(frozenset(queries))
        end = NO_OFFSET if self.epoch_end is None else self.epoch_end
        error = self.epoch_errors.pop(0) if self.epoch_errors else 0
        return {tp: EpochEnd(error) if error else EpochEnd(0, epoch, end) for tp, epoch in queries.items()}

    async def confirm_ids(self, topics: Collection[str]) -> None: ...

    def is_of_another_topic(self, topic: str, committed: Committed) -> bool:
        return bitmap.is_of_another_topic(committed.offset, committed.metadata, "our-cluster", "the-new-one")

    def created_anew(self, topic: str) -> bool:
        return topic in self.anew

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return [OLD, NEW, QUIET] if "orders" in topics else []


NOTHING = Committed(0)


def offsets(starts: Starts) -> dict[TopicPartition, int]:
    """Those that were chosen."""
    return {tp: start.offset for tp, start in starts.chosen.items()}


async def test_a_committed_offset_is_taken_with_its_leader_epoch() -> None:
    starts = await look_up(Log({OLD: Committed(0, 250, 7)}), [OLD], "earliest")
    assert starts.committed == {OLD: Position(250, 7)}
    assert not starts.chosen


@pytest.mark.parametrize(("policy", "start"), [("earliest", 100), ("latest", 500)])
async def test_a_partition_never_committed_starts_by_policy_and_the_choice_is_to_be_committed(
    policy: str, start: int
) -> None:
    starts = await look_up(Log(dict.fromkeys((OLD, NEW, QUIET), NOTHING)), [OLD], policy)
    assert offsets(starts) == {OLD: start}


async def test_what_is_chosen_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    logs.adjust("info", "text")
    try:
        await look_up(Log(dict.fromkeys((OLD, NEW, QUIET), NOTHING)), [OLD, NEW], "earliest", frozenset({"retries"}))
    finally:
        logs.adjust("warning", "text")
    assert capfd.readouterr().err.count("2 partitions were never committed: starting by policy") == 1


async def test_a_partition_added_after_the_group_began_starts_at_its_beginning_under_latest() -> None:
    log = Log({OLD: Committed(0, 250, 7, "kunicorn:partitions:2"), NEW: NOTHING, QUIET: NOTHING})
    starts = await look_up(log, [NEW, QUIET], "latest")
    assert offsets(starts) == {NEW: 500, QUIET: 100}
    assert {each.done for each in starts.chosen.values()} == {"kunicorn:partitions:2"}, "told on with every commit"


async def test_what_others_have_chosen_a_moment_before_does_not_make_ours_new() -> None:
    first = await look_up(Log(dict.fromkeys((OLD, NEW, QUIET), NOTHING)), [OLD], "latest")
    committed = Committed(0, first.chosen[OLD].offset, -1, first.chosen[OLD].done)
    starts = await look_up(Log({OLD: committed, NEW: NOTHING, QUIET: NOTHING}), [NEW, QUIET], "latest")
    assert offsets(starts) == {NEW: 500, QUIET: 500}


async def test_beside_offsets_of_other_clients_what_lies_above_them_was_added_since() -> None:
    log = Log({OLD: NOTHING, NEW: Committed(0, 250, metadata="by another client"), QUIET: NOTHING})
    starts = await look_up(log, [OLD, QUIET], "latest")
    assert offsets(starts) == {OLD: 500, QUIET: 100}


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_transaction_that_came_late_gives_the_new_topic_no_offset_of_the_one_that_was_deleted(
    policy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    late = Committed(0, 250, 0, bitmap.topic_word(250, "our-cluster", "the-old-one"))
    logs.adjust("info", "text")
    try:
        starts = await look_up(Log({OLD: late, NEW: NOTHING, QUIET: NOTHING}), [OLD, QUIET], policy)
    finally:
        logs.adjust("warning", "text")
    assert not starts.committed
    begun = {OLD: 100} if policy == "none" else {OLD: 100, QUIET: 100}
    assert offsets(starts) == begun, "under latest, too: nobody has had what the new topic has"
    assert "of 1 partitions is of a topic that had their name before" in capfd.readouterr().err


@pytest.mark.parametrize(
    "metadata",
    [
        bitmap.topic_word(250, "our-cluster", "the-new-one"),
        bitmap.topic_word(250, "another-cluster", "the-old-one"),
        bitmap.topic_word(1250, "our-cluster", "the-old-one"),
        "by another client",
    ],
    ids=["of this topic", "copied from another cluster", "moved", "no word of it"],
)
async def test_an_offset_that_does_not_say_that_it_is_of_another_topic_counts(metadata: str) -> None:
    starts = await look_up(Log({OLD: Committed(0, 250, 7, metadata)}), [OLD], "earliest")
    assert starts.committed == {OLD: Position(250, 7, metadata)}


@pytest.mark.parametrize("hidden", [Committed(88), None])
async def test_nothing_is_chosen_while_the_answer_may_hide_that_the_group_has_begun(hidden: Committed | None) -> None:
    log = Log({NEW: NOTHING, QUIET: NOTHING} | ({OLD: hidden} if hidden is not None else {}))
    assert not (await look_up(log, [NEW], "latest")).chosen


async def test_a_partition_that_our_metadata_does_not_show_yet_is_asked_for_again() -> None:
    unseen = TopicPartition("orders", 3)
    log = Log(dict.fromkeys((OLD, NEW, QUIET, unseen), NOTHING))
    starts = await look_up(log, [QUIET, unseen], "latest")
    assert offsets(starts) == {QUIET: 500}, "committed with 3 partitions, it would call the fourth a new one"
    assert unseen in log.asked, "its leader is asked for, so that the metadata is refreshed"


async def test_a_topic_created_anew_starts_at_its_beginning_whatever_the_policy() -> None:
    log = Log(dict.fromkeys((OLD, NEW, QUIET), NOTHING))
    log.anew = {"orders"}
    starts = await look_up(log, [OLD], "latest")
    assert offsets(starts) == {OLD: 100}
    assert starts.chosen[OLD].done == "kunicorn:partitions:0", "nor do its other partitions have anything to skip"
    log = Log({OLD: Committed(0, 250)})
    assert (await begin(log, [OLD])).chosen == starts.chosen, "what is committed may be of the old one"


async def test_without_a_policy_a_partition_never_committed_waits_for_a_person() -> None:
    starts = await look_up(Log({OLD: NOTHING}), [OLD], "none")
    assert "auto_offset_reset" in starts.open[OLD]


@pytest.mark.scenario("0148 offset_fetch_commit_error")
async def test_an_error_of_the_whole_group_is_not_read_as_no_offsets() -> None:
    with pytest.raises(PeerError, match=r"NOT_COORDINATOR \(16\)"):
        await look_up(Log({OLD: Committed(0, 250)}, group_error=16), [OLD], "earliest")


async def test_a_group_that_this_user_may_not_read_is_not_asked_again() -> None:
    with pytest.raises(FatalGroupError, match=r"GROUP_AUTHORIZATION_FAILED \(30\): this user needs READ on the group"):
        await look_up(Log({}, group_error=30), [OLD], "earliest")


@pytest.mark.scenario("OffsetFetchOmittedPartition", "OffsetFetchErrorStallsAssignment")
async def test_a_partition_left_out_of_the_answer_is_asked_for_again_not_started() -> None:
    starts = await look_up(Log({OLD: Committed(0, 250)}), [OLD, NEW], "earliest")
    assert NEW not in {**starts.committed, **starts.chosen, **starts.refused}


@pytest.mark.scenario("testRefreshOffsetWithPendingTransactions", "TestKIP447RequireStable")
async def test_an_offset_that_is_not_stable_yet_is_asked_for_again_not_started() -> None:
    starts = await look_up(Log({OLD: Committed(88, 250)}), [OLD], "earliest")
    assert not starts.committed
    assert not starts.chosen


@pytest.mark.parametrize(("policy", "start"), [("earliest", 100), ("latest", 500)])
async def test_a_position_below_the_logs_start_goes_on_by_policy(policy: str, start: int) -> None:
    starts = await recover(Log({}), {OLD: Position(20)}, policy)
    assert starts.chosen == {OLD: Position(start)}


@pytest.mark.scenario("0139 offset_validation")
async def test_a_truncated_log_goes_on_where_the_last_epoch_seen_ends_even_under_latest() -> None:
    log = Log({})
    log.epoch_end = 320
    for policy in ("earliest", "latest"):
        starts = await recover(log, {OLD: Position(400, 7)}, policy)
        assert starts.chosen == {OLD: Position(320)}


async def test_what_is_committed_beyond_the_end_of_its_epoch_is_not_started_from_though_the_log_is_longer() -> None:
    log = Log({OLD: Committed(0, 400, 7), NEW: Committed(0, 320, 7), QUIET: Committed(0, 450)})
    log.epoch_end = 320
    starts = await look_up(log, [OLD, NEW, QUIET], "latest")
    assert starts.chosen == {OLD: Position(320)}
    assert {tp: start.offset for tp, start in starts.committed.items()} == {NEW: 320, QUIET: 450}
    assert not (await look_up(log, [OLD], "none")).committed, "a person decides"


_PASSING = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION]


@pytest.mark.parametrize("error", [*_PASSING, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_a_committed_offset_is_not_started_from_while_its_leader_cannot_tell_where_its_epoch_ends(
    error: ErrorCode,
) -> None:
    log = Log({OLD: Committed(0, 400, 7), QUIET: Committed(0, 450)})
    log.epoch_end, log.epoch_errors = 320, [error]
    starts = await look_up(log, [OLD, QUIET], "latest")
    assert list(starts.committed) == [QUIET], "without an epoch nothing is asked"
    assert not starts.chosen
    assert f"OffsetForLeaderEpoch was answered with {error.name}" in starts.waiting[OLD]
    assert (await look_up(log, [OLD], "latest")).chosen == {OLD: Position(320)}, "as soon as it is told"


_NEVER_TOLD = [
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
]


@pytest.mark.parametrize("error", _NEVER_TOLD)
async def test_a_committed_offset_does_not_wait_for_what_is_never_told(error: ErrorCode) -> None:
    log = Log({OLD: Committed(0, 400, 7)})
    log.epoch_errors = [error]
    starts = await look_up(log, [OLD], "earliest")
    assert starts.committed == {OLD: Position(400, 7)}
    assert not starts.waiting


async def test_where_an_epoch_ends_is_not_forgotten_on_the_way_to_the_new_start() -> None:
    log = Log({OLD: Committed(0, 400, 7)})
    log.epoch_end, log.epoch_errors = 320, [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert (await look_up(log, [OLD], "earliest")).chosen == {OLD: Position(320)}
    assert log.questions == [{OLD}], "an election may come between two questions"


async def test_a_position_that_is_not_in_the_log_is_not_replaced_while_its_epochs_end_is_not_told() -> None:
    log = Log({})
    log.epoch_end, log.epoch_errors = 320, [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    lost = {OLD: Position(400, 7), NEW: Position(20)}
    starts = await recover(log, lost, "earliest")
    assert starts.chosen == {NEW: Position(100)}
    assert list(starts.waiting) == [OLD]
    assert (await recover(log, lost, "earliest")).chosen[OLD] == Position(320)


async def test_whatever_is_to_be_looked_up_again_says_what_it_waits_for() -> None:
    log = Log({OLD: Committed(88, 250), NEW: NOTHING})
    log.list_error = ErrorCode.LEADER_NOT_AVAILABLE
    starts = await look_up(log, [OLD, NEW, QUIET], "earliest")
    assert "UNSTABLE_OFFSET_COMMIT (88)" in starts.waiting[OLD]
    assert "LEADER_NOT_AVAILABLE (5)" in starts.waiting[NEW]
    assert "leaves it out" in starts.waiting[QUIET]
    for each in (await recover(log, {NEW: Position(20)}, "earliest"), await begin(log, [NEW])):
        assert "LEADER_NOT_AVAILABLE (5)" in each.waiting[NEW]
    assert "LEADER_NOT_AVAILABLE (5)" in (await find(log, {NEW: EARLIEST})).waiting[NEW]
    unsure = await look_up(Log({NEW: NOTHING, QUIET: NOTHING}), [NEW], "latest")
    assert "is not known yet" in unsure.waiting[NEW]


@pytest.mark.parametrize(("end", "left"), [(310, {308, 309}), (None, {308, 309, 310, 311}), (300, set()), (250, set())])
async def test_what_was_done_ahead_counts_only_as_far_as_the_log_is_that_of_then(
    end: int | None, left: Collection[int]
) -> None:
    told = bitmap.with_partitions(3, bitmap.written(300, range(308, 312)))
    log = Log({OLD: Committed(0, 300, 7, told)})
    log.epoch_end = end
    starts = await look_up(log, [OLD], "earliest")
    start = {**starts.committed, **starts.chosen}[OLD]
    assert bitmap.read(start.offset, start.done) == left
    assert bitmap.partitions(start.done) == 3, "that stays true"


async def test_what_is_left_of_what_was_done_ahead_still_names_its_topic() -> None:
    log = Log({OLD: Committed(0, 300, 7, bitmap.written(300, range(308, 312), "an-id"))})
    log.epoch_end = 310
    starts = await look_up(log, [OLD], "earliest")
    assert bitmap.topic_in(starts.committed[OLD].done) == "an-id"


async def test_a_position_above_the_end_without_an_epoch_goes_on_at_the_end() -> None:
    starts = await recover(Log({}), {OLD: Position(900)}, "latest")
    assert starts.chosen == {OLD: Position(500)}


async def test_without_a_policy_a_position_that_is_gone_waits_for_a_person() -> None:
    starts = await recover(Log({}), {OLD: Position(20)}, "none")
    assert "20" in starts.refused[OLD]


async def test_a_start_by_time_is_the_first_record_that_is_not_older_or_else_the_logs_end() -> None:
    starts = await find(Log({}), {OLD: 1200, NEW: 5000, QUIET: EARLIEST})
    assert starts.given == {OLD: Position(300), NEW: Position(500), QUIET: Position(100)}
    assert not starts.chosen, "nothing is to be committed"


RETRY = TopicPartition("shop.retry.5s", 0)


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_retry_topic_starts_at_its_beginning_whatever_the_policy(policy: str) -> None:
    starts = await look_up(Log({OLD: Committed(0, 250), RETRY: NOTHING}), [OLD, RETRY], policy, {RETRY.topic})
    assert offsets(starts) == {RETRY: 100}
    assert not starts.open
    lost = {OLD: Position(20), RETRY: Position(20)}
    assert (await recover(Log({}), lost, policy, {RETRY.topic})).chosen[RETRY] == Position(100)


async def test_offsets_that_may_not_be_read_yet_are_denied_and_not_refused() -> None:
    starts = await look_up(Log({OLD: Committed(29), NEW: Committed(0, 250)}), [OLD, NEW], "earliest")
    assert list(starts.denied) == [OLD]
    assert list(starts.committed) == [NEW]
    assert not starts.refused


async def test_a_position_that_is_held_goes_on_as_far_as_its_epochs_log_and_is_not_taken_for_committed() -> None:
    log = Log({})
    log.epoch_end = 300
    done = bitmap.written(250, [260, 310])
    starts = await check(log, {OLD: Position(250, 7, done), NEW: Position(350, 7), QUIET: Position(900)}, "latest")
    assert starts.committed == {}
    assert starts.given == {OLD: Position(250, 7, bitmap.written(250, [260])), QUIET: Position(900)}
    assert (offsets(starts), starts.truncated) == ({NEW: 300}, {NEW})
    assert log.questions == [frozenset({OLD, NEW})]
