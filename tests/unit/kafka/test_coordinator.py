"""The requests of a member, answered by a broker that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from kunicorn.errors import PeerError
from kunicorn.group.protocol import Committed, Subscription
from kunicorn.ipc.bitmap import epoch_word
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.coordinator import CONTROL, Coordinator, first_piece
from kunicorn.kafka.errors import ConnectionLost, CoordinatorUnavailable, RequestTimedOut
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import Position, TopicPartition
from kunicorn.text import topic_id_text
from tests.fakes.broker import Asked, FakeBroker, Reply, Script, Silence, cluster_of
from tests.fakes.messages import blank, blank_response, nested
from tests.fakes.virtual_loop import virtual_time

MEMBER: dict[str, Any] = {"generation": 3, "member_id": "m", "instance_id": None, "timeout": 10.0}
TOPIC_ID = UUID("a0000000-0000-4000-8000-000000000001")
T0, T1, T99 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 99)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still answers no look-up in three seconds."""
    monkeypatch.setattr("kunicorn.kafka.coordinator._LOOK_UP_TIMEOUT", 60.0)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(7) as broker:
        broker.lead([broker], {"t": {0: (7, 1)}})
        broker.script[Api.FIND_COORDINATOR] = lambda asked: names(asked, broker)
        yield broker


@pytest.fixture
async def cluster(broker: FakeBroker) -> AsyncIterator[Cluster]:
    cluster = cluster_of(broker)
    yield cluster
    await cluster.close()


@pytest.fixture
async def coordinator(cluster: Cluster) -> Coordinator:
    coordinator = Coordinator(cluster, "g")
    await coordinator.find()
    return coordinator


def names(asked: Asked, broker: FakeBroker, error: int = 0, key: str = "g") -> Reply:
    """FindCoordinator's answer."""
    schema = RESPONSES[asked.api, asked.version]
    node = {"node_id": broker.node_id, "host": "127.0.0.1", "port": broker.port, "error_code": error}
    if asked.version < 4:
        return blank(schema, **node)
    row = nested(schema, "coordinators")
    return blank(schema, coordinators=(blank(row, key="other", error_code=16), blank(row, key=key, **node)))


@pytest.mark.parametrize("version", [OURS[Api.DESCRIBE_CONFIGS].low, OURS[Api.DESCRIBE_CONFIGS].high])
async def test_a_setting_of_the_group_is_read_by_its_name_whatever_else_is_answered(
    broker: FakeBroker, coordinator: Coordinator, version: int
) -> None:
    def settings(asked: Asked) -> Reply:
        result = nested(RESPONSES[asked.api, asked.version], "results")
        row = nested(result, "configs")
        mine = (blank(row, name="other", value="1"), blank(row, name="wanted", value="6000"))
        both = (blank(result, resource_name="x"), blank(result, resource_name="g", configs=mine))
        return blank_response(asked.api, asked.version, results=both)

    at_version(broker, Api.DESCRIBE_CONFIGS, version)
    broker.script[Api.DESCRIBE_CONFIGS] = settings
    assert await coordinator.describe_config("wanted", 60.0) == (ErrorCode.NONE, "6000")
    assert await coordinator.describe_config("unknown", 60.0) == (ErrorCode.NONE, None)


def at_version(broker: FakeBroker, api: Api, version: int) -> None:
    broker.versions[api] = (0, version)


def versions_of(api: Api) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("version", range(OURS[api].low, OURS[api].high + 1))


# -- the look-up ---------------------------------------------------------------------------------------------


@versions_of(Api.FIND_COORDINATOR)
async def test_the_coordinator_is_found_in_every_version(broker: FakeBroker, cluster: Cluster, version: int) -> None:
    at_version(broker, Api.FIND_COORDINATOR, version)
    coordinator = Coordinator(cluster, "g")
    node = await coordinator.find()
    assert (node.node_id, node.port) == (7, broker.port)
    assert coordinator.node == node


@pytest.mark.parametrize("silent", [Api.API_VERSIONS, Api.FIND_COORDINATOR])
@pytest.mark.scenario("CoordinatorRequestManagerTest")
async def test_a_look_up_passes_over_a_silent_node_sooner_than_other_requests_do(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, silent: Api
) -> None:
    monkeypatch.setattr("kunicorn.kafka.coordinator._LOOK_UP_TIMEOUT", 5.0)
    async with FakeBroker(8) as frozen, asyncio.timeout(100):
        broker.lead([broker, frozen], {})
        cluster = cluster_of(broker, connect_timeout=120.0, request_timeout=120.0)
        await cluster.refresh(["t"])
        # Tried later than the frozen one, which is therefore asked first.
        await cluster.connection(broker.node_id, "control")
        frozen.script[silent] = lambda _: Silence
        assert (await Coordinator(cluster, "g").find()).node_id == broker.node_id
        assert frozen.asked
        await cluster.close()


@versions_of(Api.FIND_COORDINATOR)
@pytest.mark.scenario("CoordinatorRequestManagerTest")
async def test_a_refused_look_up_carries_the_error(broker: FakeBroker, cluster: Cluster, version: int) -> None:
    at_version(broker, Api.FIND_COORDINATOR, version)
    broker.script[Api.FIND_COORDINATOR] = lambda asked: names(asked, broker, error=30)
    with pytest.raises(CoordinatorUnavailable, match=r"group 'g': GROUP_AUTHORIZATION_FAILED \(30\)") as refused:
        await Coordinator(cluster, "g").find()
    assert refused.value.error == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_a_broker_that_goes_on_knowing_no_coordinator_is_left_for_another_one(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, error: ErrorCode
) -> None:
    """It may be cut off from the controllers. With a turn as long as that of others it would be asked for longer than a
    session lasts."""
    monkeypatch.setattr("kunicorn.kafka.cluster._TURN_IN_DOUBT", 0.0)
    async with FakeBroker(8) as cut_off:
        for each in (broker, cut_off):
            each.lead([broker, cut_off], {})
        cut_off.script[Api.FIND_COORDINATOR] = lambda asked: names(asked, broker, error=error)
        cluster = cluster_of(cut_off)
        await cluster.refresh(["t"])
        # The other one was tried later, so this one is asked first; and it goes on answering.
        await cluster.connection(broker.node_id, "control")
        coordinator = Coordinator(cluster, "g")
        with pytest.raises(CoordinatorUnavailable) as unknown:
            await coordinator.find()
        assert unknown.value.error == error
        assert (await coordinator.find()).node_id == broker.node_id
        assert cut_off.apis().count(Api.FIND_COORDINATOR) == 1
        await cluster.close()


async def test_an_answer_about_other_groups_is_no_coordinator(broker: FakeBroker, cluster: Cluster) -> None:
    broker.script[Api.FIND_COORDINATOR] = lambda asked: names(asked, broker, key="another")
    with pytest.raises(CoordinatorUnavailable, match="does not mention the group") as refused:
        await Coordinator(cluster, "g").find()
    assert refused.value.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_coordinator_without_an_address_is_none(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[Api.FIND_COORDINATOR] = (3, 3)
    broker.script[Api.FIND_COORDINATOR] = lambda asked: blank_response(asked.api, asked.version, node_id=-1)
    with pytest.raises(CoordinatorUnavailable, match="node -1 has no address"):
        await Coordinator(cluster, "g").find()


async def test_without_a_look_up_nothing_is_sent(broker: FakeBroker, cluster: Cluster) -> None:
    with pytest.raises(CoordinatorUnavailable, match="Heartbeat: the coordinator is not known now") as unknown:
        await Coordinator(cluster, "g").heartbeat(**MEMBER)
    assert unknown.value.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.connections == 0


@pytest.mark.scenario("testManyInFlightAsyncCommitsWithCoordinatorDisconnect")
async def test_forgetting_ends_what_is_in_flight_on_both_connections(
    broker: FakeBroker, coordinator: Coordinator
) -> None:
    broker.script[Api.HEARTBEAT] = broker.script[Api.OFFSET_COMMIT] = lambda _: Silence
    heartbeat = asyncio.create_task(coordinator.heartbeat(**MEMBER))
    commit = asyncio.create_task(coordinator.commit(**MEMBER, offsets={T0: Position(1)}, metadata=""))
    await broker.wait_for(Api.HEARTBEAT)
    await broker.wait_for(Api.OFFSET_COMMIT)
    coordinator.forget()
    outcomes = await asyncio.gather(heartbeat, commit, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 2
    assert coordinator.node is None
    coordinator.forget()


# -- connections ---------------------------------------------------------------------------------------------


@pytest.mark.scenario("ConsumerNetworkThreadTest")
async def test_a_heartbeat_does_not_wait_behind_a_commit(broker: FakeBroker, coordinator: Coordinator) -> None:
    release = asyncio.Event()

    async def hold(asked: Asked) -> Reply:
        await release.wait()
        return blank_response(asked.api, asked.version)

    broker.script[Api.OFFSET_COMMIT] = hold
    commit = asyncio.create_task(coordinator.commit(**MEMBER, offsets={T0: Position(1)}, metadata=""))
    await broker.wait_for(Api.OFFSET_COMMIT)
    assert await coordinator.heartbeat(**MEMBER) == ErrorCode.NONE
    assert not commit.done()
    release.set()
    await commit


async def test_leaving_waits_for_the_commit_and_not_for_a_parked_join(
    broker: FakeBroker, coordinator: Coordinator
) -> None:
    release = asyncio.Event()

    async def hold(asked: Asked) -> Reply:
        await release.wait()
        return blank_response(asked.api, asked.version, protocol_name=None)

    broker.script[Api.JOIN_GROUP] = hold
    joining = asyncio.create_task(coordinator.join(**JOIN))
    await broker.wait_for(Api.JOIN_GROUP)
    await coordinator.commit(**MEMBER, offsets={T0: Position(1)}, metadata="")
    left = await coordinator.leave(member_id="m", instance_id=None, reason="stop", timeout=60.0)
    assert left == ErrorCode.NONE
    by_api = {asked.api: asked.connection for asked in broker.asked}
    assert by_api[Api.LEAVE_GROUP] == by_api[Api.OFFSET_COMMIT] != by_api[Api.JOIN_GROUP]
    release.set()
    await joining


async def test_the_time_out_includes_connecting(broker: FakeBroker, coordinator: Coordinator) -> None:
    broker.script[Api.API_VERSIONS] = lambda _: Silence
    with pytest.raises(RequestTimedOut):
        await coordinator.heartbeat(**MEMBER | {"timeout": 0.05})


@pytest.mark.parametrize("handshake", [2.95, 4.0])
@virtual_time()
async def test_a_member_is_answered_although_each_handshake_takes_longer_than_a_heartbeat_may(
    monkeypatch: pytest.MonkeyPatch, handshake: float
) -> None:
    """As it does with TLS in a pod that has used up its processor time: a session must not end for that."""
    monkeypatch.setattr("kunicorn.kafka.coordinator._LOOK_UP_TIMEOUT", 3.0)
    async with FakeBroker(7) as broker:

        async def slowly(asked: Asked) -> Reply:
            await asyncio.sleep(handshake)
            return broker.api_versions(asked)

        async def answer(asked: Asked) -> Reply:
            await asyncio.sleep(0.1)
            return blank_response(asked.api, asked.version)

        broker.lead([broker], {})
        broker.script |= {Api.API_VERSIONS: slowly, Api.HEARTBEAT: answer}
        broker.script[Api.FIND_COORDINATOR] = lambda asked: names(asked, broker)
        cluster = cluster_of(broker, connect_timeout=5.0)
        coordinator = Coordinator(cluster, "g")
        async with asyncio.timeout(20):
            while True:
                try:
                    await coordinator.find()
                    await coordinator.heartbeat(**MEMBER | {"timeout": 3.0})
                    break
                except PeerError:
                    coordinator.forget()
        await cluster.close()


# -- requests and answers ------------------------------------------------------------------------------------

JOIN: dict[str, Any] = {
    "member_id": "m",
    "instance_id": "pod-0",
    "session_timeout_ms": 45000,
    "rebalance_timeout_ms": 300000,
    "protocols": [("range", Subscription(("t",)))],
    "reason": "r" * 300,
    "timeout": 10.0,
}


@versions_of(Api.JOIN_GROUP)
async def test_joining_is_understood_in_every_version(
    broker: FakeBroker, coordinator: Coordinator, version: int
) -> None:
    def lead(asked: Asked) -> Reply:
        row = nested(RESPONSES[asked.api, version], "members")
        metadata = asked.message.protocols[0].metadata
        members = (row(member_id="m", metadata=metadata), row(member_id="n", group_instance_id="pod-1", metadata=b"x"))
        more: dict[str, Any] = {"leader": "m", "member_id": "m", "protocol_name": "range", "members": members}
        if version >= 7:
            more["protocol_type"] = "consumer"
        if version >= 9:
            more["skip_assignment"] = True
        return blank_response(asked.api, version, generation_id=4, **more)

    at_version(broker, Api.JOIN_GROUP, version)
    broker.script[Api.JOIN_GROUP] = lead
    answer = await coordinator.join(**JOIN)
    assert (answer.error, answer.generation, answer.member_id, answer.leader) == (0, 4, "m", "m")
    assert (answer.assignor, answer.protocol_type) == ("range", "consumer" if version >= 7 else None)
    assert answer.skip_assignment is (version >= 9)
    assert [(each.member_id, each.instance_id) for each in answer.members] == [("m", None), ("n", "pod-1")]
    assert [each.subscription.topics for each in answer.members] == [("t",), ()]
    asked = broker.asked[-1].message
    assert asked.group_instance_id == "pod-0"
    assert len(getattr(asked, "reason", "r" * 255)) == 255


async def test_a_join_that_only_asks_for_an_id_is_not_told_as_sent(
    broker: FakeBroker, coordinator: Coordinator
) -> None:
    broker.script[Api.JOIN_GROUP] = lambda asked: blank_response(
        asked.api, asked.version, error_code=79, member_id="m-1", protocol_name=None, members=None
    )
    await coordinator.join(**JOIN | {"member_id": "", "instance_id": None})
    assert not coordinator.join_sent.is_set()


async def test_a_join_without_an_id_that_is_answered_as_one_was_sent(
    broker: FakeBroker, coordinator: Coordinator
) -> None:
    await coordinator.join(**JOIN | {"member_id": "", "instance_id": None})
    assert coordinator.join_sent.is_set()


@pytest.mark.parametrize("member", [{"member_id": "m", "instance_id": None}, {"member_id": ""}])
async def test_a_join_is_told_as_sent_once_its_frame_is_written(
    broker: FakeBroker, cluster: Cluster, coordinator: Coordinator, member: dict[str, Any]
) -> None:
    connecting, release = asyncio.Event(), asyncio.Event()

    async def hold(asked: Asked) -> Reply:
        connecting.set()
        await release.wait()
        return broker.api_versions(asked)

    broker.script |= {Api.API_VERSIONS: hold, Api.JOIN_GROUP: lambda _: Silence}
    joining = asyncio.create_task(coordinator.join(**JOIN | member))
    await asyncio.wait_for(connecting.wait(), 60)
    assert not coordinator.join_sent.is_set()
    release.set()
    await asyncio.wait_for(coordinator.join_sent.wait(), 60)
    assert (await cluster.connection(broker.node_id, CONTROL)).in_flight == 1
    joining.cancel()


async def test_a_refused_join_has_no_members_and_no_nulls(broker: FakeBroker, coordinator: Coordinator) -> None:
    broker.script[Api.JOIN_GROUP] = lambda asked: blank_response(
        asked.api, asked.version, error_code=79, member_id="m-1", protocol_name=None, members=None
    )
    answer = await coordinator.join(**JOIN)
    assert (answer.error, answer.generation, answer.member_id, answer.members) == (79, -1, "m-1", ())


@versions_of(Api.SYNC_GROUP)
async def test_syncing_is_understood_in_every_version(
    broker: FakeBroker, coordinator: Coordinator, version: int
) -> None:
    def assign(asked: Asked) -> Reply:
        mine = next(each.assignment for each in asked.message.assignments if each.member_id == "m")
        more = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        return blank_response(asked.api, version, assignment=mine, **more)

    at_version(broker, Api.SYNC_GROUP, version)
    broker.script[Api.SYNC_GROUP] = assign
    answer = await coordinator.sync(**MEMBER, assignor="range", plan={"m": [T1, T0], "n": []})
    assert (answer.error, answer.partitions) == (0, (T0, T1))
    assert answer.assignor == ("range" if version >= 5 else None)


async def test_a_refused_sync_needs_no_assignment(broker: FakeBroker, coordinator: Coordinator) -> None:
    broker.script[Api.SYNC_GROUP] = lambda asked: blank_response(
        asked.api, asked.version, error_code=27, assignment=b"junk"
    )
    answer = await coordinator.sync(**MEMBER, assignor=None, plan={})
    assert (answer.error, answer.partitions) == (27, ())


async def test_an_assignment_that_cannot_be_read_is_the_leaders_and_the_answer_says_so(
    broker: FakeBroker, coordinator: Coordinator
) -> None:
    broker.script[Api.SYNC_GROUP] = lambda asked: blank_response(asked.api, asked.version, assignment=b"junk")
    answer = await coordinator.sync(**MEMBER, assignor=None, plan={})
    assert (answer.error, answer.partitions) == (0, ())
    assert "the group's leader sent an assignment that cannot be read" in answer.unreadable


@versions_of(Api.HEARTBEAT)
async def test_a_heartbeats_answer_is_its_error(broker: FakeBroker, coordinator: Coordinator, version: int) -> None:
    at_version(broker, Api.HEARTBEAT, version)
    broker.script[Api.HEARTBEAT] = lambda asked: blank_response(asked.api, asked.version, error_code=27)
    error = await coordinator.heartbeat(**MEMBER)
    assert (error, type(error)) == (27, int)


@versions_of(Api.LEAVE_GROUP)
@pytest.mark.scenario("LeaveUnknownMemberIsSuccess")
async def test_leaving_tells_the_members_own_error(broker: FakeBroker, coordinator: Coordinator, version: int) -> None:
    def unknown(asked: Asked) -> Reply:
        if version < 3:
            assert asked.message.member_id == "m"
            return blank_response(asked.api, version, error_code=25)
        row = nested(RESPONSES[asked.api, version], "members")
        members = (blank(row, member_id="other"), blank(row, member_id="m", error_code=25))
        return blank_response(asked.api, version, members=members)

    at_version(broker, Api.LEAVE_GROUP, version)
    broker.script[Api.LEAVE_GROUP] = unknown
    assert await coordinator.leave(member_id="m", instance_id="pod-0", reason="stop", timeout=60.0) == 25


async def test_leaving_tells_the_groups_error_first(broker: FakeBroker, coordinator: Coordinator) -> None:
    broker.script[Api.LEAVE_GROUP] = lambda asked: blank_response(asked.api, asked.version, error_code=16)
    assert await coordinator.leave(member_id="m", instance_id=None, reason="stop", timeout=60.0) == 16


async def test_without_a_topics_id_offsets_are_committed_by_name(broker: FakeBroker, coordinator: Coordinator) -> None:
    await coordinator.commit(**MEMBER, offsets={T0: Position(5)}, metadata="", topic_ids={"other": TOPIC_ID})
    assert broker.asked[-1].version == 9


def commits(version: int) -> Script:
    """Answers in another order than asked, with an error for partition 99, and without partition 1."""

    def answer(asked: Asked) -> Reply:
        topic = nested(RESPONSES[asked.api, version], "topics")
        partition = nested(topic, "partitions")
        rows = (blank(partition, partition_index=99, error_code=3), blank(partition, partition_index=0))
        who = {"topic_id": TOPIC_ID} if version >= 10 else {"name": "t"}
        return blank_response(asked.api, version, topics=(topic(**who, partitions=rows),))

    return answer


@versions_of(Api.OFFSET_COMMIT)
async def test_commits_are_answered_by_name_and_not_by_position(
    broker: FakeBroker, coordinator: Coordinator, version: int
) -> None:
    at_version(broker, Api.OFFSET_COMMIT, version)
    broker.script[Api.OFFSET_COMMIT] = commits(version)
    offsets = {T0: Position(5, 2), T1: Position(6), T99: Position(7)}
    answer = await coordinator.commit(**MEMBER, offsets=offsets, metadata="here", topic_ids={"t": TOPIC_ID})
    assert answer.errors == {T0: 0, T99: 3}
    sent = broker.asked[-1].message
    assert (sent.generation_id_or_member_epoch, sent.member_id) == (3, "m")
    first = sent.topics[0].partitions[0]
    assert (first.committed_offset, first.committed_leader_epoch, first.committed_metadata) == (5, 2, "here")


async def test_offsets_with_a_retention_are_committed_in_the_version_that_knows_it(
    broker: FakeBroker, coordinator: Coordinator
) -> None:
    at_version(broker, Api.OFFSET_COMMIT, 10)
    broker.script[Api.OFFSET_COMMIT] = commits(4)
    days = timedelta(days=36_500)
    answer = await coordinator.commit(
        **MEMBER, offsets={T0: Position(5, 2)}, metadata="here", topic_ids={"t": TOPIC_ID}, retention=days
    )
    assert answer.errors[T0] == 0
    assert (broker.asked[-1].version, broker.asked[-1].message.retention_time) == (4, days)


def fetches(version: int, error: int = 0, epoch: int = 2, metadata: str = "here") -> Script:
    def answer(asked: Asked) -> Reply:
        schema = RESPONSES[asked.api, version]
        group = nested(schema, "groups") if version >= 8 else schema
        topic = nested(group, "topics")
        partition = nested(topic, "partitions")
        rows = (
            blank(partition, partition_index=1, committed_offset=-1, metadata=None),
            blank(partition, partition_index=0, committed_offset=5, committed_leader_epoch=epoch, metadata=metadata),
            blank(partition, partition_index=99, committed_offset=-1, error_code=88),
        )
        topics = () if error else (topic(name="t", partitions=rows),)
        if version < 8:
            return blank(schema, topics=topics, error_code=error)
        others = blank(group, group_id="other", error_code=16)
        return blank(schema, groups=(others, blank(group, group_id="g", topics=topics, error_code=error)))

    return answer


@versions_of(Api.OFFSET_FETCH)
async def test_committed_offsets_are_read_in_every_version(
    broker: FakeBroker, coordinator: Coordinator, version: int
) -> None:
    at_version(broker, Api.OFFSET_FETCH, version)
    broker.script[Api.OFFSET_FETCH] = fetches(version)
    answer = await coordinator.fetch_offsets(partitions=[T0, T1, T99], require_stable=True, timeout=60.0)
    assert answer.error == 0
    assert answer.partitions == {
        T0: Committed(0, 5, 2, "here"),
        T1: Committed(0, -1, -1, ""),
        T99: Committed(88, -1, -1, ""),
    }
    assert getattr(broker.asked[-1].message, "require_stable", None) is (True if version >= 7 else None)


@pytest.mark.parametrize(("told", "noted", "epoch"), [(-1, TOPIC_ID, 6), (2, TOPIC_ID, 2), (-1, UUID(int=7), -1)])
async def test_a_leader_epoch_that_a_commit_had_no_field_for_is_read_from_its_metadata(
    broker: FakeBroker, cluster: Cluster, coordinator: Coordinator, told: int, noted: UUID, epoch: int
) -> None:
    """What the field says comes first; what names another topic says nothing."""
    broker.lead([broker], {"t": {0: (7, 1)}}, {"t": TOPIC_ID})
    await cluster.refresh(["t"])
    metadata = epoch_word(5, topic_id_text(noted), 6)
    broker.script[Api.OFFSET_FETCH] = fetches(8, epoch=told, metadata=metadata)
    at_version(broker, Api.OFFSET_FETCH, 8)
    answer = await coordinator.fetch_offsets(partitions=[T0], require_stable=True, timeout=60.0)
    assert answer.partitions[T0] == Committed(0, 5, epoch, metadata)


@versions_of(Api.OFFSET_FETCH)
@pytest.mark.scenario("0148 offset_fetch_commit_error")
async def test_the_groups_error_is_not_taken_for_no_offsets(
    broker: FakeBroker, coordinator: Coordinator, version: int
) -> None:
    at_version(broker, Api.OFFSET_FETCH, version)
    broker.script[Api.OFFSET_FETCH] = fetches(version, error=16)
    answer = await coordinator.fetch_offsets(partitions=[T0], require_stable=True, timeout=60.0)
    assert (answer.error, answer.partitions) == (ErrorCode.NOT_COORDINATOR, {})


@pytest.mark.scenario("OffsetFetchErrorStallsAssignment")
async def test_an_offset_fetch_answer_without_our_group_is_an_error(
    broker: FakeBroker, coordinator: Coordinator
) -> None:
    answer = await coordinator.fetch_offsets(partitions=[T0], require_stable=True, timeout=60.0)
    assert answer.error == ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_offset_commit_has_no_more_than_its_batch_in_the_log_may_take() -> None:
    offsets = {TopicPartition("t" * 200, number): Position(0, done="x" * 800) for number in range(1_000)}
    piece = first_piece(offsets)
    assert list(piece) == list(offsets)[: len(piece)]
    assert 300 < len(piece) < 1_000
    assert len(first_piece({tp: each._replace(done="") for tp, each in offsets.items()}, "x" * 800)) == len(piece)
    assert len(first_piece({TopicPartition("t", 0): Position(0, done="x" * 2_000_000)})) == 1
