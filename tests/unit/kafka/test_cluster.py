"""Finding brokers, choosing among them, and keeping connections to them."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from kunicorn.kafka import cluster as cluster_module
from kunicorn.kafka.auth import Address, Security
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.errors import (
    AuthenticationFailed,
    BrokersUnreachable,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByBroker,
)
from kunicorn.kafka.metadata import Broker
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from tests.fakes.broker import Asked, FakeBroker, HangUp, Reply, Silence, cluster_of
from tests.fakes.driver import until
from tests.fakes.messages import blank, blank_response, nested
from tests.fakes.virtual_loop import virtual_time

TOPICS = {"t": {0: (1, 5), 1: (2, 6)}}


@pytest.fixture
async def two(one: FakeBroker) -> AsyncIterator[FakeBroker]:
    """Together with `one` a cluster."""
    async with FakeBroker(2) as broker:
        one.lead([one, broker], TOPICS)
        broker.lead([one, broker], TOPICS)
        yield broker


async def who_answers(cluster: Cluster) -> int:
    """The port of the broker that a question for anybody goes to."""

    async def port(connection: Connection) -> int:
        await connection.request(Api.METADATA, {"topics": None, "include_topic_authorized_operations": False}, 10.0)
        return connection.address.port

    return await cluster.ask_any(port)


# -- bootstrap -----------------------------------------------------------------------------------------------


async def test_one_living_bootstrap_server_is_enough(one: FakeBroker, two: FakeBroker) -> None:
    await one.stop()
    cluster = cluster_of(one, two)
    metadata = await cluster.refresh(["t"])
    assert metadata is cluster.metadata
    assert metadata.brokers == {1: Broker(1, "127.0.0.1", one.port), 2: Broker(2, "127.0.0.1", two.port)}
    assert metadata.topics["t"].partitions[1].leader == 2
    await cluster.close()


async def test_when_nobody_answers_every_try_is_told_with_its_reason(one: FakeBroker, two: FakeBroker) -> None:
    await one.stop()
    two.script[Api.METADATA] = lambda _: HangUp
    cluster = cluster_of(one, two)
    with pytest.raises(BrokersUnreachable) as unreachable:
        await cluster.refresh(["t"])
    assert f"cannot connect to {one.address}" in str(unreachable.value)
    assert f"{two.address} closed the connection at the first request" in str(unreachable.value)
    assert cluster.outage == str(unreachable.value)
    await cluster.close()


async def test_what_answers_in_a_brokers_place_is_told_once_and_anew_when_it_has_been_a_broker_since(
    one: FakeBroker, two: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answers = one.script[Api.API_VERSIONS]
    nonsense = f"{one.address}: the answer to ApiVersions"
    cluster = cluster_of(one)

    async def ask(times: int) -> None:
        one.script[Api.API_VERSIONS] = lambda asked: asked.correlation_id.to_bytes(4, "big") + b"\0\0"
        for _ in range(times):
            with pytest.raises(BrokersUnreachable, match=nonsense):
                await cluster.refresh(["t"])

    await ask(3)
    assert caplog.text.count(nonsense) == 1
    one.script[Api.API_VERSIONS] = answers
    await cluster.connection(-1, "see")
    cluster.disconnect(-1, "see")
    await ask(2)
    assert caplog.text.count(nonsense) == 2
    await cluster.close()


async def test_an_outage_is_over_with_the_first_answer_also_where_nobody_wants_anything(
    one: FakeBroker, two: FakeBroker
) -> None:
    answers = one.script[Api.METADATA]
    one.script[Api.METADATA] = lambda _: HangUp
    cluster = cluster_of(one)
    with pytest.raises(BrokersUnreachable):
        await cluster.refresh(["t"])
    assert str(one.address) in (cluster.outage or "")
    one.script[Api.METADATA] = answers
    again = asyncio.ensure_future(cluster.retry_failed(0.01))
    await until(lambda: cluster.outage is None)
    again.cancel()
    await cluster.close()


async def test_who_is_answered_meanwhile_knows_better_than_a_sweep_that_began_before(
    one: FakeBroker, two: FakeBroker
) -> None:
    asking, answered = asyncio.Event(), asyncio.Event()

    async def ask_in_vain(_: Connection) -> None:
        asking.set()
        await answered.wait()
        raise ConnectionLost("closed")

    cluster = cluster_of(one)
    early = asyncio.ensure_future(cluster.ask_any(ask_in_vain))
    await asking.wait()
    await cluster.refresh(["t"])
    answered.set()
    with pytest.raises(BrokersUnreachable):
        await early
    assert cluster.outage is None
    await cluster.close()


async def test_a_name_that_cannot_be_resolved_is_told(names: dict[str, list[str]]) -> None:
    cluster = Cluster(
        ["no-such-host.invalid:9092"],
        client_id="c",
        security=Security(),
        timeouts=Timeouts(request=1.0, connect=20.0),
        rng=Random(1),
    )
    with pytest.raises(BrokersUnreachable, match="no broker answered: cannot resolve no-such-host"):
        await cluster.refresh([])
    await cluster.close()


@pytest.mark.scenario("0151 purge_brokers")
async def test_bootstrap_servers_are_not_asked_again_once_brokers_are_known(one: FakeBroker, two: FakeBroker) -> None:
    async with FakeBroker() as seed:
        seed.lead([one, two], TOPICS)
        cluster = cluster_of(seed)
        await cluster.refresh(["t"])
        for _ in range(3):
            await cluster.refresh(["t"])
        assert seed.apis() == [Api.METADATA]
        await cluster.close()


@pytest.mark.scenario("0152 rebootstrap")
async def test_when_all_brokers_have_moved_the_bootstrap_servers_lead_back(one: FakeBroker, two: FakeBroker) -> None:
    async with FakeBroker() as seed, FakeBroker(3) as moved:
        seed.lead([one, two], TOPICS)
        cluster = cluster_of(seed)
        await cluster.refresh(["t"])
        await one.stop()
        await two.stop()
        seed.lead([moved], {"t": {0: (3, 9)}})
        assert set((await cluster.refresh(["t"])).brokers) == {3}
        await cluster.close()


async def test_metadata_never_creates_topics(one: FakeBroker, two: FakeBroker, cluster: Cluster) -> None:
    await cluster.refresh(None)
    requests = [asked.message for broker in (one, two) for asked in broker.asked if asked.api == Api.METADATA]
    assert [request.allow_auto_topic_creation for request in requests] == [False, False]
    assert sorted(request.topics is None for request in requests) == [False, True]


async def test_a_broker_that_refuses_metadata_is_passed_over(one: FakeBroker, two: FakeBroker) -> None:
    one.script[Api.METADATA] = lambda asked: blank_response(Api.METADATA, asked.version, error_code=129)
    cluster = cluster_of(one, two)
    assert set((await cluster.refresh(["t"])).brokers) == {1, 2}
    await two.stop()
    with pytest.raises(BrokersUnreachable, match=r"refuses Metadata: REBOOTSTRAP_REQUIRED \(129\)"):
        await cluster.refresh(["t"])
    await cluster.close()


# -- choice --------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_starting_and_names_no_brokers_is_passed_over(one: FakeBroker, two: FakeBroker) -> None:
    cluster = cluster_of(one, two)
    await cluster.refresh(["t"])
    schema = RESPONSES[Api.METADATA, OURS[Api.METADATA].high]
    nothing = blank(schema, brokers=(), topics=(blank(nested(schema, "topics"), name="t", error_code=3),))
    for starting, ready in ((one, two), (two, one)):
        knows, starting.script[Api.METADATA] = starting.script[Api.METADATA], lambda _: nothing
        for topics in (["t"], None):
            assert not (await cluster.refresh(topics)).topics["t"].error
        starting.script[Api.METADATA] = knows
        assert ready.asked
    one.script[Api.METADATA] = two.script[Api.METADATA] = lambda _: nothing
    with pytest.raises(BrokersUnreachable, match="names no brokers in its metadata"):
        await cluster.refresh(["t"])
    assert not cluster.metadata.topics["t"].error
    await cluster.close()


async def test_the_connected_idle_node_is_asked_before_others_are_connected(cluster: Cluster) -> None:
    first = await who_answers(cluster)
    assert [await who_answers(cluster) for _ in range(3)] == [first] * 3


async def test_nodes_take_turns_and_one_that_is_doubted_has_a_short_one(
    one: FakeBroker, two: FakeBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has lost the controller would tell the leaders and the coordinator of before for as long as it lasts."""
    # However long the machine stands still: a turn in doubt is a short one.
    assert 0 < cluster_module._TURN_IN_DOUBT < cluster_module._TURN
    monkeypatch.setattr(cluster_module, "_TURN_IN_DOUBT", 3600.0)
    monkeypatch.setattr(cluster_module, "_TURN", 7200.0)
    first = await who_answers(cluster)
    (second,) = {one.port, two.port} - {first}
    cluster.doubt()
    assert await who_answers(cluster) == first, "where a coordinator moves everybody doubts, again and again"
    monkeypatch.setattr(cluster_module, "_TURN_IN_DOUBT", 0.0)
    assert await who_answers(cluster) == second
    assert [await who_answers(cluster) for _ in range(3)] == [second] * 3, "nobody doubts that one"
    monkeypatch.setattr(cluster_module, "_TURN", 0.0)
    assert [await who_answers(cluster) for _ in range(3)] == [first, second, first]
    await until(lambda: len(one.open) + len(two.open) == 2)


async def test_another_node_is_asked_next_where_one_is_not_to_be_believed_alone(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    first = await who_answers(cluster)
    cluster.ask_another()
    assert {await who_answers(cluster) for _ in range(3)} == {one.port, two.port} - {first}


async def test_the_only_node_that_is_well_is_asked_however_long_it_has_answered(
    one: FakeBroker, two: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_TURN", 0.0)
    await two.stop()
    cluster = cluster_of(one)
    await cluster.refresh(["t"])
    assert [await who_answers(cluster) for _ in range(3)] == [one.port] * 3
    await cluster.close()


async def test_a_node_that_failed_is_avoided_while_another_is_well(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    brokers = {one.port: one, two.port: two}
    sick = brokers.pop(await who_answers(cluster))
    well = next(iter(brokers.values()))
    sick.script[Api.METADATA] = lambda _: HangUp
    assert await who_answers(cluster) == well.port
    tries = len(sick.apis())
    assert [await who_answers(cluster) for _ in range(3)] == [well.port] * 3
    assert len(sick.apis()) == tries


async def test_a_node_that_refuses_is_avoided_although_its_connection_is_well(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    favourite = {one.port: one, two.port: two}[await who_answers(cluster)]
    favourite.script[Api.METADATA] = lambda asked: blank_response(Api.METADATA, asked.version, error_code=129)
    await cluster.refresh(["t"])
    tries = len(favourite.apis())
    await cluster.refresh(["t"])
    assert len(favourite.apis()) == tries


async def test_a_node_that_failed_on_another_connection_is_avoided_too(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    brokers = {one.port: one, two.port: two}
    sick = brokers.pop(await who_answers(cluster))
    sick.script[Api.HEARTBEAT] = lambda _: Silence
    control = await cluster.connection(sick.node_id, "control")
    with pytest.raises(RequestTimedOut):
        await control.request(Api.HEARTBEAT, {"group_id": "g", "generation_id": 1, "member_id": "m"}, 0.05)
    cluster.disconnect(sick.node_id, "control")
    assert await who_answers(cluster) in brokers


async def test_a_node_that_refused_our_login_is_tried_again_although_nobody_asks_it(
    one: FakeBroker, two: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, tries, refusing = Connection.open, Counter[int](), True

    async def open_or_refuse(address: Address, *rest: Any) -> Connection:
        tries[address.port] += 1
        if refusing and address.port == two.port:
            raise AuthenticationFailed(f"{address} and SASL PLAIN: SASL_AUTHENTICATION_FAILED (58)")
        return await opened(address, *rest)

    monkeypatch.setattr(Connection, "open", open_or_refuse)
    cluster = cluster_of(one)
    await cluster.refresh(["t"])
    again = asyncio.ensure_future(cluster.retry_failed(0.01))
    with pytest.raises(AuthenticationFailed):
        await cluster.connection(2, "offsets")
    await until(lambda: tries[two.port] > 2)
    assert cluster.refusal is not None
    refusing = False
    await until(lambda: cluster.refusal is None)
    assert set(cluster.metadata.brokers) == {1, 2}
    again.cancel()
    await cluster.close()


async def test_nodes_that_failed_once_take_turns_again_when_they_are_well_although_nobody_else_connects_to_them(
    one: FakeBroker, two: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the one that went on answering would be the second to confirm what it has said, for ever."""
    opened, tries, away = Connection.open, Counter[int](), True

    async def open_or_fail(address: Address, *rest: Any) -> Connection:
        tries[address.port] += 1
        if away and address.port != one.port:
            raise ConnectionLost(f"cannot connect to {address}")
        return await opened(address, *rest)

    monkeypatch.setattr(Connection, "open", open_or_fail)
    async with FakeBroker(3) as three:
        for broker in (one, two, three):
            broker.lead([one, two, three], TOPICS)
        cluster = cluster_of(one)
        await cluster.refresh(["t"])
        for node in (2, 3):
            with pytest.raises(ConnectionLost):
                await cluster.connection(node, "fetch")
        away = False
        cluster.ask_another()
        assert await who_answers(cluster) == one.port, "no other is well, as far as is known"
        tries.clear()
        again = asyncio.ensure_future(cluster.retry_failed(0.01))
        await until(lambda: tries[two.port] > 0 and tries[three.port] > 0)
        await until(lambda: not two.open and not three.open)
        turns = []
        for _ in range(4):
            cluster.ask_another()
            turns.append(await who_answers(cluster))
        assert all(before != later for before, later in pairwise([one.port, *turns])), turns
        again.cancel()
        await cluster.close()


@virtual_time()
async def test_a_node_that_stays_away_is_tried_once_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, tries = Connection.open, Counter[int]()

    async def open_or_fail(address: Address, *rest: Any) -> Connection:
        tries[address.port] += 1
        if address.port == gone.port:
            raise ConnectionLost(f"cannot connect to {address}")
        return await opened(address, *rest)

    monkeypatch.setattr(Connection, "open", open_or_fail)
    async with FakeBroker(1) as well, FakeBroker(2) as gone:
        well.lead([well, gone], TOPICS)
        cluster = cluster_of(well)
        await cluster.refresh(["t"])
        with pytest.raises(ConnectionLost):
            await cluster.connection(2, "fetch")
        tries.clear()
        again = asyncio.ensure_future(cluster.retry_failed(30.0))
        await asyncio.sleep(100.0)
        assert tries == {gone.port: 3}
        again.cancel()
        await cluster.close()


async def test_a_refusal_is_told_although_a_hundred_others_were_told_before_it(
    one: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = iter(range(1000))

    async def refuse(address: Address, *rest: Any) -> Connection:
        raise AuthenticationFailed(f"{address} refuses login {next(attempts)}")

    monkeypatch.setattr(Connection, "open", refuse)
    cluster = cluster_of(one)

    async def told_of(times: int) -> int:
        caplog.clear()
        for _ in range(times):
            with pytest.raises(AuthenticationFailed):
                await cluster.refresh(["t"])
        return caplog.text.count("tried again until it is corrected")

    assert await told_of(150) == 100, "texts that never repeat do not fill the log"
    monkeypatch.setattr(cluster_module, "_REFUSALS_FOR", 0.0)
    assert await told_of(1) == 1, "an hour later"
    await cluster.close()


# -- connections ---------------------------------------------------------------------------------------------


async def test_concurrent_callers_share_one_connection(two: FakeBroker, cluster: Cluster) -> None:
    before = two.connections
    connections = await asyncio.gather(*(cluster.connection(2, "control") for _ in range(5)))
    assert len(set(connections)) == 1
    assert two.connections == before + 1


async def test_every_purpose_has_a_connection_of_its_own(cluster: Cluster) -> None:
    assert await cluster.connection(2, "control") is not await cluster.connection(2, "offsets")


async def test_a_closed_connection_is_replaced_and_versions_negotiated_anew(two: FakeBroker, cluster: Cluster) -> None:
    old = await cluster.connection(2, "control")
    assert old.version(Api.JOIN_GROUP) == 9
    two.versions[Api.JOIN_GROUP] = (0, 6)
    two.hang_up()
    await old.wait_closed()
    new = await cluster.connection(2, "control")
    assert new.version(Api.JOIN_GROUP) == 6


async def test_a_node_at_a_new_address_is_connected_there(cluster: Cluster) -> None:
    await cluster.connection(2, "control")
    async with FakeBroker(2) as moved:
        cluster.learn(Broker(2, "127.0.0.1", moved.port))
        assert (await cluster.connection(2, "control")).address == moved.address
        await cluster.close()


@pytest.mark.parametrize(("host", "port"), [("a..b", 9092), ("x" * 64, 9092), ("127.0.0.1", 70000), ("127.0.0.1", -1)])
async def test_a_node_that_advertises_nonsense_is_lost(cluster: Cluster, host: str, port: int) -> None:
    cluster.learn(Broker(2, host, port))
    with pytest.raises(ConnectionLost, match="cannot connect to"):
        await cluster.connection(2, "control")


async def test_a_broker_that_seems_to_lack_an_api_is_asked_anew_what_it_offers(
    two: FakeBroker, cluster: Cluster
) -> None:
    two.versions[Api.HEARTBEAT] = (9, 9)
    old = await cluster.connection(2, "control")
    with pytest.raises(UnsupportedByBroker):
        old.version(Api.HEARTBEAT)
    two.versions[Api.HEARTBEAT] = (0, 4)
    assert (await cluster.connection(2, "control")).version(Api.HEARTBEAT) == 4
    assert old.closed


async def test_a_node_that_has_left_the_cluster_is_forgotten_with_its_connections(
    one: FakeBroker, cluster: Cluster
) -> None:
    left = await cluster.connection(2, "control")
    one.lead([one], {"t": {0: (1, 1)}})
    await cluster.refresh(["t"])
    assert left.closed
    with pytest.raises(ConnectionLost, match="node 2 is not in the cluster's metadata"):
        await cluster.connection(2, "control")


async def test_the_coordinator_is_kept_where_a_broker_does_not_know_its_node(one: FakeBroker, two: FakeBroker) -> None:
    cluster = cluster_of(one)
    cluster.learn(Broker(2, "127.0.0.1", two.port))
    one.lead([one], {"t": {0: (1, 1)}})
    control = await cluster.connection(2, "control")
    await cluster.refresh(["t"])
    assert await cluster.connection(2, "control") is control
    await cluster.close()


@pytest.mark.scenario("0151 purge_brokers")
async def test_a_node_that_nobody_has_heard_of_is_lost(cluster: Cluster) -> None:
    with pytest.raises(ConnectionLost, match="node 99 is not in the cluster's metadata"):
        await cluster.connection(99, "control")


async def test_connecting_ends_with_the_callers_time_out(two: FakeBroker, cluster: Cluster) -> None:
    two.script[Api.API_VERSIONS] = lambda _: Silence
    with pytest.raises(RequestTimedOut, match=rf"{two.address} .*did not answer as a broker does within 0\.05 s"):
        await cluster.connection(2, "control", timeout=0.05)


def holding_back(broker: FakeBroker, reply: Reply = None) -> tuple[asyncio.Event, asyncio.Event]:
    """The broker answers no ApiVersions before the second event is set, then as it should or with `reply`, and sets the
    first when it is asked."""
    asked, release = asyncio.Event(), asyncio.Event()

    async def hold(request: Asked) -> Reply:
        asked.set()
        await release.wait()
        return reply or broker.api_versions(request)

    broker.script[Api.API_VERSIONS] = hold
    return asked, release


async def test_one_caller_giving_up_does_not_take_the_connection_from_the_others(
    two: FakeBroker, cluster: Cluster
) -> None:
    asked, release = holding_back(two)
    impatient = asyncio.create_task(cluster.connection(2, "control"))
    await asked.wait()
    patient = asyncio.create_task(cluster.connection(2, "control"))
    impatient.cancel()
    release.set()
    assert not (await patient).closed


async def test_who_asks_again_after_its_time_is_over_goes_on_with_the_handshake_that_was_underway(
    two: FakeBroker, cluster: Cluster
) -> None:
    """Where handshakes take longer than one waits, each would otherwise be begun anew, and none would ever end."""
    asked, release = holding_back(two)
    with pytest.raises(RequestTimedOut):
        await cluster.connection(2, "control", timeout=0.05)
    await asked.wait()
    release.set()
    assert not (await cluster.connection(2, "control")).closed
    assert two.connections == 1


async def test_a_handshake_that_ends_badly_when_nobody_waits_for_it_any_more_is_no_exception_of_nobodys(
    two: FakeBroker, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    _, release = holding_back(two, HangUp)
    with pytest.raises(RequestTimedOut):
        await cluster.connection(2, "control", timeout=0.05)
    underway = [each for each in asyncio.all_tasks() if "Cluster._open" in repr(each)]
    assert len(underway) == 1
    release.set()
    await until(lambda: all(each.done() for each in underway))
    underway.clear()
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_node_that_moves_while_it_is_connected_to_is_connected_at_its_new_address(
    two: FakeBroker, cluster: Cluster
) -> None:
    asked, _ = holding_back(two)
    before = asyncio.create_task(cluster.connection(2, "control"))
    await asked.wait()
    async with FakeBroker(2) as moved:
        cluster.learn(Broker(2, "127.0.0.1", moved.port))
        assert (await cluster.connection(2, "control")).address == moved.address
        with pytest.raises(ConnectionLost, match=f"node 2 is not at {two.address} any more"):
            await before
        await cluster.close()


async def test_after_close_nothing_is_open_and_nothing_opens(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    connection = await cluster.connection(2, "control")
    await cluster.close()
    assert connection.closed
    before = one.connections, two.connections
    with pytest.raises(ConnectionLost, match="closed on our side"):
        await cluster.connection(2, "control")
    with pytest.raises(BrokersUnreachable):
        await cluster.refresh(["t"])
    assert (one.connections, two.connections) == before


async def test_a_connection_that_opens_during_close_is_closed_as_well(two: FakeBroker, cluster: Cluster) -> None:
    asked, release = holding_back(two)
    opening = asyncio.create_task(cluster.connection(2, "control"))
    await asked.wait()
    await cluster.close()
    release.set()
    with pytest.raises(ConnectionLost, match="closed on our side"):
        await opening
