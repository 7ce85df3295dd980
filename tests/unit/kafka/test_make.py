"""One description of a request, built for every version."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader

from kunicorn.group.protocol import Subscription
from kunicorn.kafka import coordinator
from kunicorn.kafka.codec import Fields, encode, encode_request, make
from kunicorn.kafka.versions import REQUESTS, Api
from kunicorn.positions import Position, TopicPartition

TOPIC_ID = UUID("a0000000-0000-4000-8000-000000000001")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

SUBSCRIPTIONS = [("cooperative-sticky", Subscription(("t",), (T0,), 4)), ("range", Subscription(("t",)))]

DESCRIPTIONS: dict[Api, Callable[[int], Fields]] = {
    Api.API_VERSIONS: lambda _: {"client_software_name": "kunicorn", "client_software_version": "1"},
    Api.SASL_HANDSHAKE: lambda _: {"mechanism": "PLAIN"},
    Api.SASL_AUTHENTICATE: lambda _: {"auth_bytes": b"\0me\0secret"},
    Api.METADATA: lambda _: {
        "topics": [{"topic_id": None, "name": "t"}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    },
    Api.FIND_COORDINATOR: lambda version: coordinator.find_coordinator(version, "g"),
    Api.JOIN_GROUP: lambda _: coordinator.join("g", "m", "pod-0", 45000, 300000, SUBSCRIPTIONS, "because"),
    Api.SYNC_GROUP: lambda _: coordinator.sync("g", 3, "m", "pod-0", "range", {"m": [T0], "n": [T1]}),
    Api.HEARTBEAT: lambda _: coordinator.heartbeat("g", 3, "m", "pod-0"),
    Api.LEAVE_GROUP: lambda version: coordinator.leave(version, "g", "m", "pod-0", "because"),
    Api.OFFSET_COMMIT: lambda version: (
        coordinator.commit(version, "g", 3, "m", "pod-0", {T1: Position(7, 2), T0: Position(1)}, {"t": TOPIC_ID}, "x")
        if version > coordinator.COMMIT_WITH_RETENTION
        else {
            **coordinator.commit(version, "g", 3, "m", None, {T1: Position(7, 2)}, {}, "x"),
            "retention_time": timedelta(days=36_500),
        }
    ),
    Api.OFFSET_FETCH: lambda version: coordinator.fetch_offsets(version, "g", [T1, T0], require_stable=True),
    Api.CONSUMER_GROUP_HEARTBEAT: lambda _: coordinator.consumer_heartbeat(
        "g", "m", 0, "pod-0", coordinator.Wishes(("t",), "(?:^u).*", 300000, "r", "uniform"), ((TOPIC_ID, (0, 1)),)
    ),
    Api.LIST_OFFSETS: lambda _: {
        "replica_id": -1,
        "isolation_level": 1,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "current_leader_epoch": 5, "timestamp": -1}]}],
        "timeout": timedelta(seconds=1),
    },
    Api.LIST_GROUPS: lambda _: {"states_filter": [], "types_filter": ["share"]},
    Api.DESCRIBE_GROUPS: lambda _: {"groups": ["g"], "include_authorized_operations": False},
    Api.DESCRIBE_CONFIGS: lambda _: coordinator.describe_config("g", "consumer.session.timeout.ms"),
    Api.CONSUMER_GROUP_DESCRIBE: lambda _: {"group_ids": ["g"], "include_authorized_operations": False},
    Api.OFFSET_FOR_LEADER_EPOCH: lambda _: {
        "replica_id": -1,
        "topics": [{"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": 5, "leader_epoch": 4}]}],
    },
}


@pytest.mark.parametrize(("api", "version"), REQUESTS, ids=lambda value: getattr(value, "title", value))
def test_every_request_reads_back_as_it_was_made_in_every_version(api: Api, version: int) -> None:
    message = make(api, version, DESCRIPTIONS[api](version))
    data = encode(message)
    assert entity_reader(type(message))(data, 0) == (message, len(data))
    assert message.__version__ == version


@pytest.mark.parametrize(("api", "version"), REQUESTS, ids=lambda value: getattr(value, "title", value))
def test_every_request_is_framed_with_the_header_of_its_version(api: Api, version: int) -> None:
    frame = encode_request(api, version, 77, "client", DESCRIPTIONS[api](version))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, size = entity_reader(REQUESTS[api, version].__header_schema__)(frame, 4)
    assert (header.request_api_key, header.request_api_version) == (api, version)
    assert (header.correlation_id, header.client_id) == (77, "client")
    assert entity_reader(REQUESTS[api, version])(frame, 4 + size)[0] == make(api, version, DESCRIPTIONS[api](version))


def test_a_field_that_says_something_is_not_dropped_for_an_old_version() -> None:
    fields = {"group_id": "g", "topics": [], "require_stable": True}
    assert make(Api.OFFSET_FETCH, 7, fields).require_stable is True
    with pytest.raises(ValueError, match=r"OffsetFetchRequest v6 cannot carry require_stable = True"):
        make(Api.OFFSET_FETCH, 6, fields)


def test_a_field_that_says_nothing_is_dropped_for_an_old_version() -> None:
    fields = {"group_id": "g", "topics": [], "require_stable": False}
    assert not hasattr(make(Api.OFFSET_FETCH, 6, fields), "require_stable")


def test_a_field_that_the_protocol_lets_go_unsaid_is_dropped_although_it_is_set() -> None:
    old, new = (make(Api.JOIN_GROUP, version, DESCRIPTIONS[Api.JOIN_GROUP](version)) for version in (7, 8))
    assert not hasattr(old, "reason")
    assert new.reason == "because"


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot carry generation"):
        make(Api.HEARTBEAT, 4, {"group_id": "g", "generation": 3, "member_id": "m"})


def test_a_string_is_not_an_array_of_its_letters() -> None:
    with pytest.raises(TypeError, match="coordinator_keys is an array, not str"):
        make(Api.FIND_COORDINATOR, 4, {"coordinator_keys": "group"})


def test_nobody_sends_an_instance_id_that_is_empty_for_none() -> None:
    """The broker takes "" for a static member of that name."""
    message: Any = make(Api.HEARTBEAT, 4, coordinator.heartbeat("g", 1, "m", None))
    assert message.group_instance_id is None


def test_a_request_longer_than_brokers_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunicorn.kafka.codec.MAX_FRAME_BYTES", 20)
    with pytest.raises(ValueError, match=r"Heartbeat of .* brokers take 20 at most"):
        encode_request(Api.HEARTBEAT, 4, 1, "client", DESCRIPTIONS[Api.HEARTBEAT](4))
