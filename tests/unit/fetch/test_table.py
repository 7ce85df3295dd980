"""Partitions that are fetched: whom they are asked of, what an answer means, what an error does."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import pytest

from kunicorn.fetch.reactions import REACTIONS, Reaction, reaction_to
from kunicorn.fetch.table import BACKOFF, REPLICA_SECONDS, Fetching, News, Topic
from kunicorn.ipc.messages import FailureKind
from kunicorn.kafka_errors import ErrorCode, fault
from kunicorn.positions import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER = b"i" * 16, b"o" * 16
RETRIABLE = [int(code) for code in ErrorCode if fault(code).retriable]
SOON = BACKOFF.longest_seconds * 2


@dataclass
class Said:
    """What an answer says of one partition; the decoder's `Part`."""

    partition: int = 0
    error: int = 0
    next_offset: int = -1
    rows: int = 0
    first_row: int = 0
    last_epoch: int = -1
    leader_id: int = -1
    leader_epoch: int = -1
    diverging_epoch: int = -1
    diverging_end: int = -1
    preferred_replica: int = -1
    damage: str = ""
    damage_offset: int = -1
    incomplete: bool = False
    topic: str = "t"
    topic_id: bytes = ID
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    bytes: int = 0


def led(*leaders: int, epoch: int = 3, topic_id: bytes = ID) -> dict[str, Topic]:
    """Metadata of the topic: each partition's leader."""
    return {"t": Topic(topic_id, {number: (leader, epoch) for number, leader in enumerate(leaders)})}


def fetching(*partitions: TopicPartition, offset: int = 10) -> Fetching:
    """A table of these partitions, all led by broker 1; each is its number's placing."""
    table = Fetching(1000, lambda: 0.5)
    for tp in partitions:
        table.place(tp, 100 + tp.partition, offset, 2)
    table.learn(led(1, 1), 0.0)
    return table


def asked(table: Fetching, node: int) -> dict[TopicPartition, int]:
    """Offsets that the next request to that broker names; it is on its way then."""
    return {tp: ask.offset for tp, ask in table.sent(node).asks.items()}


def answer(table: Fetching, node: int, *said: Said, now: float = 0.0) -> list[News]:
    """Send a request, and take in its answer."""
    table.sent(node)
    table.known(node)
    return table.meet(node, 7, said, now)


@pytest.mark.scenario("testEpochSetInFetchRequest")
def test_nobody_is_asked_before_the_leader_is_known() -> None:
    table = Fetching(1000, lambda: 0.5)
    table.place(A, 1, 10, 2)
    assert (table.wants_metadata, list(table.nodes)) == (True, [])
    table.learn(led(1), 0.0)
    assert (table.wants_metadata, list(table.nodes)) == (False, [1])
    assert table.sent(1).asks[A] == (ID, 10, 3, 2, 1000)


@pytest.mark.scenario("testFetchNormal", "testLeaderEpochInConsumerRecord")
def test_rows_move_the_position_that_is_asked_for_next() -> None:
    table = fetching(A, B)
    (news,) = answer(table, 1, Said(next_offset=15, rows=5, last_epoch=3))
    assert news == News(A, 100, 0, 5, 15, 3)
    assert asked(table, 1) == {A: 15}
    place = table.get(A)
    assert place is not None
    assert place.last_epoch == 3


@pytest.mark.scenario("testEmptyControlBatch", "0129 fetch_aborted_msgs")
def test_markers_move_the_position_without_a_row() -> None:
    (news,) = answer(fetching(A), 1, Said(next_offset=12))
    assert (news.rows, news.next_offset) == (0, 12)


def test_what_a_late_answer_has_the_decoder_forget_is_not_told_with_an_answer_to_a_request_before() -> None:
    table = fetching(A, B)
    table.learn(led(1, 2, epoch=4), 0.0)
    table.sent(1)
    table.sent(2)
    table.learn(led(2, 2, epoch=5), 0.0)
    assert (ID, A) in table.known(1).forgotten
    assert [place.tp for place in table.known(2).placed] == [B]
    table.sent(2)
    assert [place.tp for place in table.known(2).placed] == [A]


def test_what_an_earlier_placing_waited_for_does_nothing_to_a_later_one() -> None:
    table = fetching(A)
    answer(table, 1, Said(error=ErrorCode.UNKNOWN_LEADER_EPOCH))
    table.place(A, 200, 3, -1)
    assert asked(table, 1) == {A: 3}
    table.wake(SOON)
    assert asked(table, 1) == {}


@pytest.mark.scenario("testFetchAfterPartitionWithFetchedRecordsIsUnassigned")
def test_a_partition_that_was_removed_is_forgotten_and_nothing_of_it_counts() -> None:
    table = fetching(A)
    table.sent(1)
    table.known(1)
    table.remove(A, 100)
    assert table.meet(1, 7, [Said(next_offset=15, rows=5)], 0.0) == []
    assert not table.asks_of(1)


def test_a_removal_of_an_earlier_placing_does_nothing() -> None:
    table = fetching(A)
    table.remove(A, 99)
    assert table.get(A) is not None


@pytest.mark.scenario("testWhenFetchResponseReturnsALeaderShipChangeErrorAndNewLeaderInformation")
def test_a_new_leader_in_the_answer_is_asked_at_once() -> None:
    table = fetching(A)
    answer(table, 1, Said(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=2, leader_epoch=4))
    assert not table.asks_of(1)
    assert table.sent(2).asks[A].leader_epoch == 4
    assert not table.wants_metadata


@pytest.mark.parametrize(("hint", "epoch"), [(2, 2), (2, 3), (1, 3)])
def test_a_leader_that_an_answer_names_and_that_is_not_newer_is_asked_for_as_if_none_was_named(
    hint: int, epoch: int
) -> None:
    """At once it would be asked again without an end: a broker that lags behind the metadata names whom it knows."""
    table = fetching(A)
    answer(table, 1, Said(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=hint, leader_epoch=epoch))
    assert table.wants_metadata
    assert list(table.nodes) == []
    table.wake(SOON)
    assert asked(table, 1) == {A: 10}


def test_a_replica_that_names_the_leader_that_has_named_it_is_asked_after_a_wait() -> None:
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=4))
    answer(table, 4, Said(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=1, leader_epoch=3))
    assert list(table.nodes) == []


def test_a_leader_of_an_older_epoch_is_not_believed() -> None:
    table = fetching(A)
    table.learn(led(2, epoch=2), 0.0)
    assert table.asks_of(1)
    table.learn(led(2, epoch=4), 0.0)
    assert table.asks_of(2)


@pytest.mark.scenario("testWhenFetchResponseReturnsALeaderShipChangeErrorButNoNewLeaderInformation")
def test_without_a_new_leader_the_metadata_is_asked_for_and_the_partition_waits() -> None:
    table = fetching(A, B)
    answer(table, 1, Said(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert table.wants_metadata
    assert asked(table, 1) == {}
    assert table.next_wake() == pytest.approx(BACKOFF.seconds(1))
    table.wake(SOON)
    table.known(1)
    assert asked(table, 1) == {A: 10}


@pytest.mark.scenario("testFetchSkipsBlackedOutNodes")
def test_waits_grow_until_an_answer_without_an_error() -> None:
    table, now, waits = fetching(A), 0.0, []
    for _ in range(6):
        answer(table, 1, Said(error=ErrorCode.UNKNOWN_LEADER_EPOCH), now=now)
        waits.append(round((table.next_wake() or 0) - now, 3))
        now += SOON
        table.wake(now)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    answer(table, 1, Said(next_offset=11, rows=1), now=now)
    answer(table, 1, Said(error=ErrorCode.UNKNOWN_LEADER_EPOCH), now=now)
    assert (table.next_wake() or 0) - now == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, FailureKind.OUT_OF_RANGE),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, FailureKind.DENIED),
        (ErrorCode.INVALID_FETCH_SIZE, FailureKind.PARTITION),
        (9999, FailureKind.PARTITION),
    ],
)
@pytest.mark.scenario("testHandleFetchResponseError", "testFetchOffsetOutOfRange", "testUnauthorizedTopic")
def test_an_error_that_waiting_does_not_cure_ends_the_partition_once(error: int, kind: FailureKind) -> None:
    table = fetching(A)
    (news,) = answer(table, 1, Said(error=error))
    assert news.fault is not None
    assert news.fault.kind is kind
    assert "t-0" in news.fault.error
    assert not table.asks_of(1)
    table.wake(SOON)
    table.learn(led(1, 1), SOON)
    assert not table.asks_of(1)


@pytest.mark.parametrize("error", RETRIABLE)
@pytest.mark.scenario("testHandleFetchResponseError", "testCorruptMessageError")
def test_whatever_kafka_calls_retriable_is_asked_for_again_and_ends_nothing(error: int) -> None:
    table = fetching(A)
    assert answer(table, 1, Said(error=error)) == []
    assert not table.asks_of(1)
    table.learn(led(1), SOON)
    table.wake(SOON)
    assert asked(table, 1) == {A: 10}


@pytest.mark.scenario("testUnauthorizedTopic")
def test_metadata_that_is_refused_for_good_ends_the_partition_once() -> None:
    table = Fetching(1000, lambda: 0.5)
    table.place(A, 1, 10, 2)
    denied = {"t": Topic(b"", {}, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    (news,) = table.learn(denied, 0.0)
    assert news.fault is not None
    assert news.fault.kind is FailureKind.DENIED
    assert "t-0" in news.fault.error
    assert table.learn(denied, 0.0) == []
    assert not table.wants_metadata


@pytest.mark.parametrize("error", RETRIABLE)
def test_metadata_that_is_refused_for_now_ends_nothing(error: int) -> None:
    for known in (False, True):
        table = Fetching(1000, lambda: 0.5)
        table.place(A, 1, 10, 2)
        if known:
            table.learn(led(1), 0.0)
        assert table.learn({"t": Topic(b"", {}, error)}, 0.0) == []
        assert table.wants_metadata is not known
        assert table.asks_of(1) is known


@pytest.mark.scenario("testTruncationDetected")
def test_a_truncated_log_ends_the_partition_as_truncated() -> None:
    (news,) = answer(fetching(A), 1, Said(diverging_epoch=1, diverging_end=5))
    assert news.fault is not None
    assert news.fault.kind is FailureKind.TRUNCATED
    assert "epoch 1 up to offset 5" in news.fault.error


@pytest.mark.parametrize("end", [10, 15])
def test_an_epoch_in_which_nothing_was_written_is_no_truncation(end: int) -> None:
    """The leader's of when somebody asked for the log's end (ListOffsets); the next leader knows nothing of it."""
    table = fetching(A)
    assert answer(table, 1, Said(diverging_epoch=1, diverging_end=end)) == []
    assert table.sent(1).asks[A] == (ID, 10, 3, 1, 1000)
    table.known(1)
    (news,) = table.meet(1, 7, [Said(next_offset=15, rows=5, last_epoch=1)], 0.0)
    assert news == News(A, 100, 0, 5, 15, 1)


def test_a_broker_that_names_the_epoch_that_it_was_asked_for_is_asked_again_after_a_wait() -> None:
    table = fetching(A)
    assert answer(table, 1, Said(diverging_epoch=2, diverging_end=15)) == []
    assert not table.asks_of(1)
    table.wake(SOON)
    assert asked(table, 1) == {A: 10}


def test_a_log_that_was_cut_is_found_by_the_closest_replica_before_anything_was_fetched() -> None:
    """The leader that names it has compared nothing."""
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=4))
    assert table.sent(4).asks[A] == (ID, 10, 3, 2, 1000)
    table.known(4)
    (news,) = table.meet(4, 7, [Said(diverging_epoch=1, diverging_end=5)], 0.0)
    assert news.fault is not None
    assert news.fault.kind is FailureKind.TRUNCATED


def test_a_replica_that_has_not_the_offset_and_names_a_newer_leader_ends_nothing() -> None:
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=4))
    assert answer(table, 4, Said(error=ErrorCode.OFFSET_OUT_OF_RANGE, leader_id=2, leader_epoch=4)) == []
    assert table.sent(2).asks[A] == (ID, 10, 4, 2, 1000)


def test_a_replica_without_a_record_of_the_epoch_is_asked_without_it_until_there_is_another_leader() -> None:
    """Else it would say so again, the leader would name it again, and so on without a record."""
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=4))
    assert answer(table, 4, Said(error=ErrorCode.OFFSET_OUT_OF_RANGE)) == []
    table.wake(SOON)
    assert table.sent(1).asks[A].last_epoch == 2, "the leader's word counts"
    table.known(1)
    table.meet(1, 7, [Said(preferred_replica=4)], SOON)
    assert table.sent(4).asks[A] == (ID, 10, 3, -1, 1000)
    table.learn(led(1, epoch=4), SOON)
    assert not table.asks_of(4), "it may not have followed the new leader yet"
    answer(table, 1, Said(preferred_replica=4), now=SOON)
    assert table.sent(4).asks[A] == (ID, 10, 4, 2, 1000)


@pytest.mark.scenario("testParseCorruptedRecord")
def test_rows_before_a_damaged_batch_are_handed_out_with_the_fault_behind_them() -> None:
    (news,) = answer(fetching(A), 1, Said(next_offset=12, rows=2, damage="wrong checksum", damage_offset=12))
    assert (news.rows, news.next_offset) == (2, 12)
    assert news.fault is not None
    assert "offset 12 cannot be read: wrong checksum" in news.fault.error


@pytest.mark.scenario("testPreferredReadReplica", "0104 fetch_from_follower_mock")
def test_the_closest_replica_is_asked_for_a_while_and_the_leader_then() -> None:
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=4))
    assert not table.asks_of(1)
    assert table.asks_of(4)
    table.wake(REPLICA_SECONDS)
    assert table.asks_of(1)
    assert not table.asks_of(4)


@pytest.mark.parametrize("error", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE])
@pytest.mark.scenario("testPreferredReadReplicaOffsetError", "testFetchErrorShouldClearPreferredReadReplica")
def test_a_replica_that_lags_ends_nothing_the_leader_is_asked(error: int) -> None:
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=4))
    assert answer(table, 4, Said(error=error)) == []
    table.wake(SOON)
    assert table.asks_of(1)


@pytest.mark.scenario("testFetchDisconnectedShouldClearPreferredReadReplica")
def test_a_replica_out_of_reach_is_asked_no_more_but_the_leader() -> None:
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=4))
    table.sent(4)
    table.unreached(4, 0.0)
    table.learn(led(1), 0.1)
    table.wake(SOON)
    assert not table.asks_of(4)
    assert asked(table, 1) == {A: 10}


def test_a_replica_that_is_named_and_never_reached_costs_growing_waits_and_no_memory() -> None:
    """Its leader names it for as long as it is in sync, and for years."""
    table, now, wait = fetching(A), 0.0, 0.0
    place = table.get(A)
    assert place is not None

    def round_of(now: float) -> float:
        answer(table, 1, Said(preferred_replica=2), now=now)
        table.unreached(2, now)
        wait = place.quiet_until - now
        table.wake(place.quiet_until)
        return wait

    for _ in range(10):
        wait = round_of(now)
        now += wait
    assert wait > BACKOFF.longest_seconds / 2
    tracemalloc.start()
    try:
        for _ in range(2000):
            now += round_of(now)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 50_000


def test_a_replica_that_is_named_again_is_asked_until_five_minutes_after_that() -> None:
    table = fetching(A)
    answer(table, 1, Said(preferred_replica=2))
    table.unreached(2, 100.0)
    table.wake(102.0)
    answer(table, 1, Said(preferred_replica=2), now=102.0)
    table.wake(REPLICA_SECONDS + 1)
    assert asked(table, 2) == {A: 10}
    table.wake(102.0 + REPLICA_SECONDS)
    assert asked(table, 1) == {A: 10}


@pytest.mark.scenario("testFetchRequestWhenRecordTooLarge", "0036 partial_fetch")
def test_a_batch_that_was_cut_is_asked_for_with_more_bytes_until_it_is_there() -> None:
    table = fetching(A)
    answer(table, 1, Said(incomplete=True))
    answer(table, 1, Said(incomplete=True))
    assert table.sent(1).asks[A].max_bytes == 4000
    table.known(1)
    table.meet(1, 7, [Said(next_offset=11, rows=1)], 0.0)
    assert table.sent(1).asks[A].max_bytes == 1000


def test_a_batch_of_which_never_more_than_a_part_comes_is_asked_for_again_after_waits_that_grow() -> None:
    table, now = fetching(A), 0.0
    while table.asks_of(1):
        answer(table, 1, Said(incomplete=True), now=now)
    for failures in (2, 3):
        table.wake(now := now + SOON)
        answer(table, 1, Said(incomplete=True), now=now)
        assert not table.asks_of(1)
        place = table.get(A)
        assert place is not None
        assert place.failures == failures


@pytest.mark.parametrize(
    "metadata",
    [{}, {"t": Topic(ID, {})}, led(-1, 1), {"t": Topic(ID, {1: (1, 3)})}],
    ids=["no topic", "none", "-1", "B"],
)
def test_a_partition_without_a_leader_is_looked_for_and_told_until_it_has_one(metadata: dict[str, Topic]) -> None:
    table = Fetching(1000, lambda: 0.5)
    table.place(A, 1, 10, 2)
    for _ in range(5):
        assert table.leaderless(5) == []
        table.learn(metadata, 0.0)
        assert table.wants_metadata
    assert table.leaderless(5) == [A]
    table.learn(led(1), 0.0)
    assert (table.wants_metadata, table.leaderless(1), asked(table, 1)) == (False, [], {A: 10})


@pytest.mark.scenario("testFetchDisconnected")
def test_a_broker_out_of_reach_has_its_partitions_wait_and_look_for_leaders() -> None:
    table = fetching(A, B)
    table.sent(1)
    table.unreached(1, 0.0)
    assert table.wants_metadata
    assert not table.asks_of(1)
    table.learn(led(2, 1, epoch=4), 0.1)
    table.wake(SOON)
    assert asked(table, 2) == {A: 10}
    request = table.sent(1)
    assert (request.epoch, set(request.asks)) == (0, {B})


def test_what_is_asked_while_a_request_is_lost_is_not_lost_with_it() -> None:
    table = fetching(A)
    table.sent(1)
    table.place(B, 300, 4, -1)
    table.unreached(1, 0.0)
    table.learn(led(1, 1), 0.0)
    table.wake(SOON)
    assert asked(table, 1) == {A: 10, B: 4}
    assert {place.tp for place in table.known(1).placed} == {A, B}


REFUSALS = [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.scenario("0107 topic_recreate")
@pytest.mark.parametrize("error", REFUSALS)
def test_a_topic_made_anew_ends_what_was_fetched_of_it_and_nothing_else(error: ErrorCode) -> None:
    table = fetching(A, B)
    answer(table, 1, Said(next_offset=11, rows=1))
    assert table.learn(led(1, 1, topic_id=OTHER), 1.0) == []
    assert table.sent(1).asks[B].topic_id == OTHER
    table.known(1)
    table.meet(1, 7, [Said(error=error)], 1.0)
    assert table.wants_metadata
    (news,) = table.learn(led(1, 1, topic_id=OTHER), 1.1)
    assert news.tp == A
    assert news.fault is not None
    assert "created anew" in news.fault.error


def unreached(table: Fetching, now: float) -> None:
    """What is asked of the first broker is not answered."""
    table.wake(now)
    assert table.asks_of(1)
    table.sent(1)
    table.unreached(1, now)


def test_the_silence_of_a_leader_that_restarts_is_no_word_for_what_a_broker_that_lags_names() -> None:
    """The partition would halt until a person acts."""
    table = fetching(A)
    answer(table, 1, Said(next_offset=11, rows=1))
    for failures in range(1, 11):
        unreached(table, failures * SOON)
        assert table.learn(led(2, topic_id=OTHER, epoch=1), failures * SOON) == []
        assert table.unsure, "another broker is asked next"
    table.wake(11 * SOON)
    assert answer(table, 1, Said(next_offset=12, rows=1), now=11 * SOON), "it goes on"
    unreached(table, 12 * SOON)
    assert table.learn(led(2, topic_id=OTHER, epoch=1), 12 * SOON) == []


@pytest.mark.parametrize("takes_back", ["the leader", "the metadata"])
def test_a_refusal_that_was_taken_back_makes_no_silence_count(takes_back: str) -> None:
    """A broker refuses what it has not heard of yet, as when it has just started."""
    table = fetching(A)
    answer(table, 1, Said(next_offset=11, rows=1))
    answer(table, 1, Said(error=ErrorCode.UNKNOWN_TOPIC_ID), now=SOON)
    table.wake(2 * SOON)
    if takes_back == "the leader":
        answer(table, 1, Said(next_offset=12, rows=1), now=2 * SOON)
    else:
        table.learn(led(1), 2 * SOON)
    for failures in range(3, 6):
        unreached(table, failures * SOON)
        assert table.learn(led(2, topic_id=OTHER, epoch=1), failures * SOON) == []


def test_a_leader_that_is_silent_for_long_contradicts_nobody_who_names_another_topic() -> None:
    """It may be gone for good, with the topic of before."""
    table = fetching(A)
    answer(table, 1, Said(next_offset=11, rows=1))
    news: list[News] = []
    silences = 0
    while not news:
        silences += 1
        unreached(table, silences * SOON)
        news += table.learn(led(2, topic_id=OTHER), silences * SOON)
    assert 30 * BACKOFF.longest_seconds < silences < 60 * BACKOFF.longest_seconds
    assert news[0].fault is not None
    assert "created anew" in news[0].fault.error


def placed_by_id() -> Fetching:
    """A table of one partition, whose offset is of the topic `ID`; nothing is known of it."""
    table = Fetching(1000, lambda: 0.5)
    table.place(A, 100, 10, 2, topic_id=ID)
    return table


def test_an_offset_of_a_topic_that_had_the_name_before_begins_nothing_in_the_new_one() -> None:
    """What the new one has before that offset would be passed over. Nobody who is asked under the id of the one before
    can refuse it, as nobody tells its leader: it takes as long as with one that is silent."""
    table = placed_by_id()
    news: list[News] = []
    for _ in range(46):
        assert table.wants_metadata
        news += table.learn(led(1, topic_id=OTHER), 0.0)
        assert not table.asks_of(1)
    (ended,) = news
    assert ended.fault is not None
    assert "created anew" in ended.fault.error


def test_a_topic_made_anew_that_not_every_broker_has_heard_of_is_begun_with_under_its_own_id() -> None:
    """It is handed out as soon as the supervisor knows of it; a broker that lags names the topic before, for half a
    minute if no other is well."""
    table = placed_by_id()
    for _ in range(30):
        assert table.learn(led(2, topic_id=OTHER, epoch=9), 0.0) == []
    assert table.learn(led(1), 0.0) == []
    assert table.sent(1).asks[A] == (ID, 10, 3, 2, 1000)


def test_of_a_partition_that_the_metadata_has_under_another_id_a_leader_is_told() -> None:
    """It would be told of with the advice to see whether its brokers run."""
    table = placed_by_id()
    for _ in range(10):
        table.learn(led(2, topic_id=OTHER), 0.0)
    assert table.leaderless(5) == []
    for _ in range(10):
        table.learn(led(-1), 0.0)
    assert table.leaderless(5) == [A]


def test_a_partition_of_a_topic_made_anew_does_not_follow_the_leaders_of_the_one_before() -> None:
    table = fetching(A)
    table.learn(led(1, epoch=9), 0.0)
    table.place(A, 200, 0, -1, topic_id=OTHER)
    assert not table.asks_of(1)
    table.learn(led(2, epoch=0, topic_id=OTHER), 0.0)
    assert table.sent(2).asks[A] == (OTHER, 0, 0, -1, 1000)


def test_another_id_that_the_metadata_names_ends_nothing_while_the_leader_answers_under_the_one_that_is_asked() -> None:
    """A broker that lags names the id of the topic that was there before."""
    table = fetching(A, B)
    answer(table, 1, Said(next_offset=11, rows=1), Said(1, next_offset=11, rows=1))
    for turn in range(3):
        now = 2 * turn * SOON
        assert table.learn(led(2, 2, topic_id=OTHER, epoch=9), now) == []
        assert table.learn(led(2, 2, topic_id=OTHER, epoch=9), now) == []
        fails = Said(1, error=ErrorCode.UNKNOWN_LEADER_EPOCH)
        assert answer(table, 1, Said(next_offset=12 + turn, rows=1), fails, now=now)
        table.wake(now + SOON)
        assert answer(table, 1, Said(1, next_offset=12 + turn, rows=1), now=now + SOON)


def test_an_id_that_was_named_once_is_forgotten_with_the_next_metadata_that_names_ours() -> None:
    table = fetching(A)
    answer(table, 1, Said(next_offset=11, rows=1))
    for topic_id in (OTHER, ID):
        assert table.learn(led(1, topic_id=topic_id), 1.0) == []
    answer(table, 1, Said(error=ErrorCode.UNKNOWN_TOPIC_ID), now=1.0)
    assert table.learn(led(1, topic_id=OTHER), 1.1) == []


@pytest.mark.scenario("testFetchTopicIdUpgradeDowngrade")
def test_ids_that_come_or_go_with_the_versions_of_brokers_end_nothing() -> None:
    """Amid a rolling upgrade from 2.7 one broker answers with ids, and another without."""
    table = Fetching(1000, lambda: 0.5)
    table.place(A, 100, 10, 2)
    table.learn(led(1, topic_id=b""), 0.0)
    answer(table, 1, Said(next_offset=12, rows=2, topic_id=b""))
    for told, expected in ((ID, ID), (b"", ID), (ID, ID)):
        assert table.learn(led(1, topic_id=told), 1.0) == []
        assert table.asks_of(1)
        place = table.get(A)
        assert place is not None
        assert (place.topic_id, place.offset) == (expected, 12)


@pytest.mark.scenario("TestKip951MoveAfterPurgeReAddNoPanic")
def test_a_partition_that_was_let_go_and_taken_again_follows_the_leader_that_an_answer_names() -> None:
    table = fetching(A)
    table.sent(1)
    table.remove(A, 100)
    table.place(A, 200, 10, 2)
    table.learn(led(1), 0.0)
    table.known(1)
    moved = Said(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=2, leader_epoch=4)
    assert table.meet(1, 7, [], 0.0) == []
    assert answer(table, 1, moved) == []
    assert not table.asks_of(1)
    assert asked(table, 2) == {A: 10}


@pytest.mark.scenario("testHandleFetchResponseError")
def test_every_error_that_the_leaders_move_cures_asks_for_the_leader() -> None:
    moved = {code for code, reaction in REACTIONS.items() if reaction is Reaction.FIND_LEADER}
    assert ErrorCode.FENCED_LEADER_EPOCH in moved
    assert reaction_to(ErrorCode.KAFKA_STORAGE_ERROR, from_leader=True) is Reaction.FIND_LEADER
    assert reaction_to(12345, from_leader=False) is Reaction.END
