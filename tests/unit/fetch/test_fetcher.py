"""The fetcher's thread beside a broker that the test plays: what it asks, and when."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from kio.schema import errors as kio
from kio.schema.fetch import v12

from kunicorn.columns import reference
from kunicorn.errors import ConfigError
from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.properties import MOST_ANSWER_BYTES, decoder_of, fetcher_of
from kunicorn.fetch.queue import Fetched, FetcherBroke, FetchQueue
from kunicorn.fetch.requests import Limits
from kunicorn.fetch.sessions import SESSION_ERRORS
from kunicorn.fetch.table import Fetching, News
from kunicorn.ipc.messages import FailureKind
from kunicorn.kafka import codec
from kunicorn.kafka import connection as connections
from kunicorn.kafka.auth import Sasl, Security
from kunicorn.kafka.versions import RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes import fetched
from tests.fakes.broker import Asked, FakeBroker, HangUp, Reply, Silence, Slowly, cluster_of
from tests.fakes.driver import until
from tests.fakes.messages import blank, blank_response, nested
from tests.fakes.virtual_loop import in_virtual_time, virtual_time
from tests.unit.fetch.played_brokers import BY_NAME, LIMITS, MB, OLD, framed, offsets_of, running

PATIENCE = 60.0
PROPERTIES: dict[str, str | int | float | bool] = {
    "bootstrap.servers": "localhost:9092",
    "client.id": "orders",
    "isolation.level": "read_committed",
    "fetch.max.bytes": 1 << 20,
    "queued.max.messages.kbytes": 1024,
}


@asynccontextmanager
async def fetching(
    broker: FakeBroker, partitions: int = 1, limits: Limits = LIMITS, security: Security | None = None
) -> AsyncIterator[FetchQueue]:
    """`orders-0`, or so many partitions, are fetched from that broker's cluster; what comes of it."""
    table, queue = Fetching(1 << 20, Random(1).random), FetchQueue(1 << 20)
    for number in range(partitions):
        table.place(TopicPartition("orders", number), number + 1, 0, -1)
    decoder = reference.Decoder(read_committed=True, max_unpacked=2 * MB)
    async with running(Fetcher(lambda: cluster_of(broker, security=security), table, decoder, limits, queue)):
        yield queue


def answer(asked: Asked, records: Mapping[int, range], denied: int | None = None) -> bytes:
    """These offsets' records by partition; of one the broker says that it does not lead it."""
    parts = [
        fetched.partition(
            BY_NAME,
            number,
            [fetched.batch(fetched.records(len(offsets)), base_offset=offsets.start)] if offsets else (),
        )
        for number, offsets in records.items()
    ]
    if denied is not None:
        parts.append(fetched.partition(BY_NAME, denied, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return framed(asked, parts)


async def offsets_out_of(queue: FetchQueue, upto: int, patience: float = PATIENCE) -> list[int]:
    """Offsets of the rows that come of `orders-0`, up to this position."""
    found: list[int] = []
    position = 0
    while position < upto:
        await until(lambda: queue.head(0) is not None, patience, every=0.01)
        head = queue.get(0)
        assert head is not None
        if head.news.tp.partition == 0:
            found += head.rows.offsets() if head.rows is not None else ()
            position = head.news.next_offset
    return found


@asynccontextmanager
async def leader(**of_partition: Any) -> AsyncIterator[tuple[FakeBroker, list[float]]]:
    """A broker that answers every Fetch alike, and when it was asked."""
    asked_at: list[float] = []
    throttle = timedelta(milliseconds=of_partition.pop("throttle_ms", 0))

    def answer(asked: Asked) -> bytes:
        asked_at.append(asyncio.get_running_loop().time())
        return framed(asked, [fetched.partition(BY_NAME, 0, **of_partition)], throttle_time=throttle)

    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (1, 3)}})
        broker.script[Api.FETCH] = answer
        yield broker, asked_at


@pytest.mark.scenario("testQuotaMetrics")
async def test_a_broker_over_quota_is_not_fetched_from_for_as_long_as_it_says() -> None:
    async with leader(throttle_ms=150) as (broker, asked_at), fetching(broker):
        await broker.wait_for(Api.FETCH, 3)
    assert min(later - before for before, later in pairwise(asked_at)) >= 0.15


@pytest.mark.scenario("0142 reauthentication")
async def test_a_log_in_is_renewed_on_a_connection_whose_fetches_follow_each_other_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_RENEW_PAUSE", 0.0)
    monkeypatch.setattr(connections, "_RENEW_FROM", 0.009)
    monkeypatch.setattr(connections, "_RENEW_UNTIL", 0.01)
    security = Security("SASL_PLAINTEXT", sasl=Sasl("PLAIN", username="alice", password=lambda: "hunter2"))

    def let_in(asked: Asked) -> Reply:
        return blank_response(Api.SASL_AUTHENTICATE, asked.version, session_lifetime=timedelta(seconds=5))

    async with leader(high_watermark=0) as (broker, _):
        broker.script[Api.SASL_AUTHENTICATE] = let_in
        async with fetching(broker, security=security):
            await broker.wait_for(Api.FETCH)
            (fetches,) = {each.connection for each in broker.asked if each.api is Api.FETCH}

            def logged_in() -> int:
                return sum(each.connection == fetches and each.api is Api.SASL_HANDSHAKE for each in broker.asked)

            await until(lambda: logged_in() > 2, PATIENCE)


async def test_a_partition_that_is_refused_again_and_again_is_told_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with leader(error_code=ErrorCode.CORRUPT_MESSAGE) as (broker, _), fetching(broker) as queue:
        await broker.wait_for(Api.FETCH, 4)
        assert not caplog.records
        await broker.wait_for(Api.FETCH, 6)
        assert queue.head(0) is None
    (told,) = caplog.messages
    assert "node 1 refuses to be asked for orders-0; tried again: CORRUPT_MESSAGE" in told


async def test_a_broker_that_names_the_epoch_again_that_it_was_asked_for_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    end = nested(nested(nested(v12.FetchResponse, "responses"), "partitions"), "diverging_epoch")
    async with leader(diverging_epoch=end(epoch=0, end_offset=5)) as (broker, _), fetching(broker):
        await broker.wait_for(Api.FETCH, 4)
        assert not caplog.records
        await broker.wait_for(Api.FETCH, 6)
    (told,) = caplog.messages
    assert "node 1 refuses to be asked for orders-0; tried again: its log diverges in leader epoch 0" in told


@pytest.mark.parametrize("error", sorted(SESSION_ERRORS), ids=lambda code: ErrorCode(code).name)
async def test_a_session_that_is_refused_again_and_again_is_told_and_begun_anew(
    caplog: pytest.LogCaptureFixture, error: int
) -> None:
    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (1, 3)}})
        broker.script[Api.FETCH] = lambda asked: framed(asked, [], error_code=kio.ErrorCode(error))
        async with fetching(broker):
            await broker.wait_for(Api.FETCH, 4)
            assert not caplog.records
            await broker.wait_for(Api.FETCH, 6)
    (told,) = caplog.messages
    assert f"node 1 refuses to be fetched from; tried again: {ErrorCode(error).name}" in told


async def test_a_partition_without_a_leader_is_told_once_that_lasts(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (-1, 3)}})
        async with fetching(broker) as queue:
            await broker.wait_for(Api.METADATA, 4)
            assert not caplog.records
            await broker.wait_for(Api.METADATA, 7)
            broker.lead([broker], {"orders": {0: (1, 4)}})
            broker.script[Api.FETCH] = lambda asked: answer(asked, {0: range(offsets_of(asked)[0], 3)})
            assert await offsets_out_of(queue, upto=3) == [0, 1, 2]
    (told,) = caplog.messages
    assert "the metadata names no leader of orders-0; asked again" in told


@virtual_time()
async def test_a_broker_may_wait_for_records_as_long_as_it_is_told_to() -> None:
    """And an answer takes as long as the line needs for it."""

    async def late(asked: Asked) -> Slowly:
        await asyncio.sleep(15.0)
        return Slowly(answer(asked, {0: range(100)}), most=500, pause=7.0)

    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (1, 3)}})
        broker.script[Api.FETCH] = late
        async with fetching(broker, limits=LIMITS._replace(max_wait_ms=15_000)) as queue:
            assert await offsets_out_of(queue, upto=100, patience=600.0) == list(range(100))


@virtual_time()
async def test_partitions_that_wait_a_moment_go_on_while_a_broker_is_slow_with_metadata() -> None:
    """As in the middle of a failover, where one is frozen and another elected a moment ago."""
    asked_at: list[float] = []

    def moving(asked: Asked) -> Any:
        asked_at.append(asyncio.get_running_loop().time())
        if len(asked_at) > 1:
            return Silence
        broker.script[Api.METADATA] = lambda _: Silence
        errors = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_NOT_AVAILABLE)
        return framed(asked, [fetched.partition(BY_NAME, at, error_code=error) for at, error in enumerate(errors)])

    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (1, 3), 1: (1, 3)}})
        broker.script[Api.FETCH] = moving
        async with fetching(broker, partitions=2):
            await until(lambda: len(asked_at) > 1, PATIENCE)
    assert asked_at[1] - asked_at[0] < 1.0


@virtual_time()
async def test_a_broker_that_is_away_is_tried_once_for_all_its_partitions() -> None:
    """Each with a wait of its own had a hundred of them try it eighty times a second, and the metadata as often."""
    async with FakeBroker(1, OLD) as one, FakeBroker(2, OLD) as away:
        away.script[Api.API_VERSIONS] = lambda _: HangUp
        one.lead([one, away], {"orders": dict.fromkeys(range(100), (2, 3))})
        async with fetching(one, partitions=100):
            await asyncio.sleep(10.0)
            assert 8 <= away.connections <= 20
            assert one.apis().count(Api.METADATA) <= 40
            away.script[Api.API_VERSIONS] = away.api_versions
            back_at = asyncio.get_running_loop().time()
            await until(lambda: Api.FETCH in away.apis(), PATIENCE)
            assert asyncio.get_running_loop().time() - back_at < 2.0


@virtual_time()
async def test_a_cluster_that_is_away_is_looked_for_once_a_second_however_many_partitions_there_are() -> None:
    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": dict.fromkeys(range(100), (1, 3))})
        broker.script[Api.FETCH] = lambda asked: answer(asked, {})
        async with fetching(broker, partitions=100):
            await broker.wait_for(Api.FETCH)
            broker.script[Api.API_VERSIONS] = lambda _: HangUp
            broker.hang_up()
            before = broker.connections
            await asyncio.sleep(10.0)
            # A sweep tries the broker, and the same one by its bootstrap address.
            assert broker.connections - before <= 60


@virtual_time()
async def test_what_comes_in_a_quotas_pause_is_asked_for_at_its_end() -> None:
    asked_for: list[set[int]] = []

    def over_quota(asked: Asked) -> Any:
        asked_for.append(set(offsets_of(asked)))
        late = [fetched.partition(BY_NAME, 1, error_code=ErrorCode.OFFSET_NOT_AVAILABLE)]
        return framed(asked, late if len(asked_for) == 1 else (), throttle_time=timedelta(seconds=5))

    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (1, 3), 1: (1, 3)}})
        broker.script[Api.FETCH] = over_quota
        async with fetching(broker, partitions=2):
            await until(lambda: len(asked_for) > 1, PATIENCE)
    assert asked_for == [{0, 1}, {0, 1}]


def test_what_is_told_again_and_again_takes_no_turn_of_another_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with FakeBroker(1, OLD) as one, FakeBroker(2, OLD) as away:
            away.script[Api.API_VERSIONS] = lambda _: HangUp
            one.lead([one, away], {"orders": {0: (1, 3), 1: (2, 3)}})
            damaged = [fetched.partition(BY_NAME, 0, error_code=ErrorCode.CORRUPT_MESSAGE)]
            one.script[Api.FETCH] = lambda asked: framed(asked, damaged)
            async with fetching(one, partitions=2):
                await asyncio.sleep(9.0)

    in_virtual_time(story)
    assert sorted(text.split(";")[0].split(":")[0] for text in caplog.messages) == [
        "fetching from node 2 failed",
        "node 1 refuses to be asked for orders-0",
    ]


@virtual_time()
async def test_a_broker_that_names_the_leader_which_leads_no_more_is_not_the_one_that_is_asked_for_a_minute() -> None:
    """It has lost the controller, and answers with the leaders of before for as long as that lasts."""
    async with FakeBroker(1, OLD) as before, FakeBroker(2, OLD) as stale, FakeBroker(3, OLD) as leader:
        every = [before, stale, leader]
        for broker in (before, stale):
            broker.lead(every, {"orders": {0: (1, 3)}})
        leader.lead(every, {"orders": {0: (3, 4)}})
        before.script[Api.FETCH] = lambda asked: answer(asked, {}, denied=0)
        async with fetching(before):
            await until(lambda: Api.METADATA in stale.apis(), PATIENCE)
            began = asyncio.get_running_loop().time()
            await until(lambda: Api.FETCH in leader.apis(), PATIENCE * 2)
            assert asyncio.get_running_loop().time() - began < 10.0


@virtual_time()
async def test_a_broker_that_has_lost_the_controller_does_not_decide_alone_that_a_topic_was_made_anew() -> None:
    """It names the topic of before for as long as that lasts; the partition was handed out under the id of the new
    one."""
    topic, before = uuid4(), uuid4()
    table, queue = Fetching(1 << 20, Random(1).random), FetchQueue(1 << 20)
    table.place(TopicPartition("orders", 0), 1, 0, -1, topic_id=topic.bytes)
    decoder = reference.Decoder(read_committed=True, max_unpacked=2 * MB)
    async with FakeBroker(1, OLD) as leader, FakeBroker(2, OLD) as stale:
        every = [stale, leader]
        stale.lead(every, {"orders": {0: (2, 3)}}, {"orders": before})
        leader.lead(every, {"orders": {0: (1, 0)}}, {"orders": topic})
        async with running(Fetcher(lambda: cluster_of(stale), table, decoder, LIMITS, queue)):
            await until(lambda: queue.head(0) is not None or Api.FETCH in leader.apis(), PATIENCE)
    assert queue.head(0) is None, "no fault"


@virtual_time()
async def test_nor_does_such_a_broker_when_the_leader_that_was_fetched_from_has_died() -> None:
    topic, before = uuid4(), uuid4()
    async with FakeBroker(1, OLD) as leader, FakeBroker(3, OLD) as elected, FakeBroker(2, OLD) as stale:
        every = [leader, elected, stale]
        leader.lead(every, {"orders": {0: (1, 3)}}, {"orders": topic})
        elected.lead(every, {"orders": {0: (3, 4)}}, {"orders": topic})
        stale.lead(every, {"orders": {0: (1, 3)}}, {"orders": before})
        leader.script[Api.FETCH] = lambda asked: answer(asked, {0: range(10)})
        elected.script[Api.FETCH] = lambda asked: answer(asked, {0: range(10, 20)})
        async with fetching(leader) as queue:
            await leader.wait_for(Api.FETCH)
            leader.script[Api.API_VERSIONS] = leader.script[Api.FETCH] = lambda _: HangUp
            leader.hang_up()
            assert await offsets_out_of(queue, 20) == [*range(20)]


@virtual_time()
async def test_brokers_that_failed_once_are_asked_for_the_metadata_again_when_they_are_well() -> None:
    """Else the one that has lost the controller would be the only one that is asked, for as long as it answers."""
    async with FakeBroker(1, OLD) as before, FakeBroker(2, OLD) as stale, FakeBroker(3, OLD) as leader:
        every = [before, stale, leader]
        stale.lead(every, {"orders": {0: (1, 3)}})
        leader.lead(every, {"orders": {0: (3, 4)}})
        metadata = leader.script[Api.METADATA]
        before.script[Api.API_VERSIONS] = lambda _: HangUp
        leader.script[Api.METADATA] = lambda _: HangUp
        async with fetching(stale):
            await leader.wait_for(Api.METADATA)
            leader.script[Api.METADATA] = metadata
            await until(lambda: Api.FETCH in leader.apis(), PATIENCE)


async def test_topics_without_ids_are_asked_for_by_their_names_whatever_the_broker_offers() -> None:
    """A cluster whose brokers are newer than the protocol between them: it has no ids (KIP-516)."""
    async with FakeBroker(1, {Api.FETCH: (BY_NAME, 17)}) as broker:
        broker.lead([broker], {"orders": {0: (1, 3)}})
        broker.script[Api.FETCH] = lambda asked: answer(asked, {0: range(offsets_of(asked)[0], 5)})
        async with fetching(broker) as queue:
            assert await offsets_out_of(queue, upto=5) == list(range(5))
    assert {asked.version for asked in broker.asked if asked.api is Api.FETCH} == {BY_NAME}


async def test_a_fetcher_that_ends_by_what_nobody_has_foreseen_is_no_empty_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A panic in Rust is no `Exception`. What was fetched before is given out first."""

    class Panic(BaseException):
        pass

    def decode(self: reference.Decoder, body: bytes | memoryview, version: int, first: int) -> Any:
        if len(asked) > 1:
            raise Panic("attempt to add with overflow")
        return decoded(self, body, version, first)

    asked, decoded = [], reference.Decoder.decode
    monkeypatch.setattr(reference.Decoder, "decode", decode)

    def three(which: Asked) -> bytes:
        asked.append(which)
        return answer(which, {0: range(offsets_of(which)[0], 3)})

    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (1, 3)}})
        broker.script[Api.FETCH] = three
        here = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        fetcher, queue = fetcher_of(
            PROPERTIES | here, Security(), reference.Decoder(read_committed=True, max_unpacked=MB)
        )
        fetcher.call(lambda table: table.place(TopicPartition("orders", 0), 1, 0, -1))
        fetcher.start()
        assert await offsets_out_of(queue, upto=3) == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(FetcherBroke) as told:
                await asyncio.to_thread(queue.get, PATIENCE)
            assert "attempt to add with overflow" in "".join(traceback.format_exception(told.value))
        fetcher.call(lambda table: table.remove(TopicPartition("orders", 0), 1))


def test_no_answer_is_asked_for_that_is_larger_than_a_frame_may_be() -> None:
    decoder = reference.Decoder(read_committed=True, max_unpacked=1 << 20)
    for said, meant in ((1 << 20, 1 << 20), (1 << 30, MOST_ANSWER_BYTES)):
        fetcher, _ = fetcher_of(PROPERTIES | {"fetch.max.bytes": said}, Security(), decoder)
        assert fetcher.limits.max_bytes == meant < codec.MAX_FRAME_BYTES


async def test_a_late_answer_of_the_broker_that_led_before_passes_over_no_record() -> None:
    """orders-0 moves to broker 2 while broker 1's answer is under way; broker 2's is there first. Broker 1 leads
    orders-2 all along: when that is asked for again, its late answer was taken in."""
    moved, taken = asyncio.Event(), asyncio.Event()

    async def by_one(asked: Asked) -> bytes:
        if 0 in offsets_of(asked):
            await moved.wait()
            return answer(asked, {0: range(10)})
        taken.set()
        await asyncio.sleep(0.01)
        return answer(asked, {})

    async def by_two(asked: Asked) -> bytes:
        offsets = offsets_of(asked)
        if 1 in offsets and 0 not in offsets:
            # Metadata is asked for for another partition's sake, and the election is over by then.
            one.lead([one, two], {"orders": {0: (2, 4), 1: (2, 4), 2: (1, 3)}})
            return answer(asked, {}, denied=1)
        if offsets[0] == 0:
            return answer(asked, {0: range(3)})
        moved.set()
        await taken.wait()
        return answer(asked, {0: range(offsets[0], 15)})

    def metadata(asked: Asked) -> Any:
        return one.script[Api.METADATA](asked)

    async with FakeBroker(1, OLD) as one, FakeBroker(2, OLD) as two:
        one.lead([one, two], {"orders": {0: (1, 3), 1: (2, 3), 2: (1, 3)}})
        two.script[Api.METADATA] = metadata
        one.script[Api.FETCH], two.script[Api.FETCH] = by_one, by_two
        async with fetching(one, partitions=3) as queue:
            assert await offsets_out_of(queue, upto=15) == list(range(15))


async def test_an_answer_is_unpacked_as_there_is_room_for_it() -> None:
    """Forty kilobytes may unpack to as many megabytes."""
    packed = [fetched.batch([fetched.record(0, b"0" * MB)], "zstd", base_offset=at) for at in range(20)]

    def bomb(asked: Asked) -> bytes:
        return framed(asked, [fetched.partition(BY_NAME, 0, packed[offsets_of(asked)[0] :])])

    async with FakeBroker(1, OLD) as broker:
        broker.lead([broker], {"orders": {0: (1, 3)}})
        broker.script[Api.FETCH] = bomb
        async with fetching(broker) as queue:
            found: list[int] = []
            while len(found) < len(packed):
                await until(lambda: queue.head(0) is not None, PATIENCE, every=0.01)
                assert queue.bytes < 4 * MB
                head = queue.get(0)
                assert head is not None
                found += head.rows.offsets() if head.rows is not None else ()
    assert found == list(range(20))
    assert broker.apis().count(Api.FETCH) <= 2, "the rest of an answer is not asked for again"


def without_metadata(broker: FakeBroker, error: int) -> None:
    """The broker tells nothing of the topic but that error."""

    def metadata(asked: Asked) -> Any:
        schema = RESPONSES[Api.METADATA, asked.version]
        here = nested(schema, "brokers")(node_id=1, host="127.0.0.1", port=broker.port)
        refused = blank(nested(schema, "topics"), name="orders", error_code=kio.ErrorCode(error), partitions=())
        return blank(schema, brokers=(here,), topics=(refused,))

    broker.script[Api.METADATA] = metadata


@pytest.mark.scenario("testUnauthorizedTopic")
async def test_a_topic_whose_metadata_is_denied_is_told_as_denied() -> None:
    async with FakeBroker(1, OLD) as broker:
        without_metadata(broker, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        async with fetching(broker) as queue:
            await until(lambda: queue.head(0) is not None, PATIENCE)
            head = queue.head(0)
    assert head is not None
    assert head.news.fault is not None
    assert head.news.fault.kind is FailureKind.DENIED


async def test_a_topic_that_no_broker_knows_is_told_with_the_reason_once_that_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeBroker(1, OLD) as broker:
        without_metadata(broker, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        async with fetching(broker) as queue:
            await broker.wait_for(Api.METADATA, 4)
            assert not caplog.records
            await broker.wait_for(Api.METADATA, 7)
            assert queue.head(0) is None
    (told,) = caplog.messages
    assert "the metadata of topic 'orders' is refused; tried again: UNKNOWN_TOPIC_OR_PARTITION" in told


def test_a_fetcher_counts_all_columns_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = reference.Decoder(read_committed=True, max_unpacked=1 << 20)
    monkeypatch.setattr(reference.Decoder, "held", staticmethod(lambda: 0))
    _, queue = fetcher_of(PROPERTIES, Security(), decoder)
    queue.put(Fetched(News(TopicPartition("orders", 0), 1, 0, 0, 1, -1), None, 1))
    assert not queue.waits_for_room()
    monkeypatch.setattr(reference.Decoder, "held", staticmethod(lambda: 1 << 20))
    _, queue = fetcher_of(PROPERTIES, Security(), decoder)
    queue.put(Fetched(News(TopicPartition("orders", 0), 1, 0, 0, 1, -1), None, 1))
    assert queue.waits_for_room()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fetch.min.bytes", "1 MB"),
        ("fetch.wait.max.ms", 3_000_000_000),
        ("max.partition.fetch.bytes", 0),
        ("queued.max.messages.kbytes", 0),
        ("fetch.max.bytes", -1),
    ],
)
def test_a_figure_that_librdkafka_refuses_is_refused_by_our_own_fetcher(name: str, value: int | str) -> None:
    properties = PROPERTIES | {name: value}
    with pytest.raises(ConfigError, match=re.escape(f"{name!r} = {value!r}")):
        fetcher_of(properties, Security(), decoder_of(properties, reference.Decoder))
