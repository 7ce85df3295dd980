"""Groups as the coordinator describes them, by either API and in every version."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.kafka.admin import (
    Described,
    DescribedMember,
    GroupAdmin,
    classic_group,
    consumer_group,
    conversion_refused,
    no_consumers,
)
from kunicorn.kafka.codec import encode, make
from kunicorn.kafka.consumer_protocol import encode_assignment
from kunicorn.kafka.coordinator import fetch_offsets
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes.broker import Asked, FakeBroker, Script, cluster_of, found_at
from tests.fakes.messages import blank, blank_response, nested

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MEMBER = DescribedMember("m-1", "pod-0", "kunicorn", "/10.0.0.7", (T0, T1))


def versions(api: Api) -> range:
    return range(OURS[api].low, OURS[api].high + 1)


def classic(version: int, assignment: bytes = encode_assignment([T0, T1]), **group: Any) -> Any:
    row = nested(RESPONSES[Api.DESCRIBE_GROUPS, version], "groups")
    member = blank(
        nested(row, "members"),
        member_id="m-1",
        group_instance_id="pod-0",
        client_id="kunicorn",
        client_host="/10.0.0.7",
        member_assignment=assignment,
    )
    values = {"group_id": "g", "group_state": "Stable", "protocol_type": "consumer", "members": (member,), **group}
    return blank_response(Api.DESCRIBE_GROUPS, version, groups=(blank(row, **values),))


def consumer(version: int) -> Any:
    row = nested(RESPONSES[Api.CONSUMER_GROUP_DESCRIBE, version], "groups")
    member = nested(row, "members")
    assignment = nested(member, "assignment")
    partitions = blank(nested(assignment, "topic_partitions"), topic_name="t", partitions=(0, 1))
    described = blank(
        member,
        member_id="m-1",
        instance_id="pod-0",
        client_id="kunicorn",
        client_host="/10.0.0.7",
        assignment=blank(assignment, topic_partitions=(partitions,)),
    )
    group = blank(row, group_id="g", group_state="Stable", members=(described,))
    return blank_response(Api.CONSUMER_GROUP_DESCRIBE, version, groups=(group,))


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_GROUPS))
def test_a_classic_group_shows_its_members_with_their_partitions(version: int) -> None:
    assert classic_group(classic(version), "g") == Described(0, "", "Stable", (MEMBER,), classic=True)


@pytest.mark.parametrize("version", versions(Api.CONSUMER_GROUP_DESCRIBE))
def test_a_consumer_group_shows_its_members_with_their_partitions(version: int) -> None:
    assert consumer_group(consumer(version), "g") == Described(0, "", "Stable", (MEMBER,))


def test_brokers_before_version_6_show_an_unknown_group_as_dead() -> None:
    dead = classic(5, group_state="Dead", members=())
    assert classic_group(dead, "g").error == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_assignment_in_a_format_of_its_own_is_passed_over() -> None:
    for message in (classic(6, b"\x00"), classic(6, protocol_type="connect")):
        (member,) = classic_group(message, "g").members
        assert member.partitions == ()


def test_an_answer_about_another_group_is_no_answer() -> None:
    assert classic_group(classic(6), "another").error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert consumer_group(consumer(1), "another").error == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("version", versions(Api.OFFSET_FETCH))
def test_all_that_a_group_has_committed_can_be_asked_for_in_every_version(version: int) -> None:
    message = make(Api.OFFSET_FETCH, version, fetch_offsets(version, "g", None, require_stable=False))
    topics = message.groups[0].topics if hasattr(message, "groups") else message.topics
    assert topics is None, "an empty list would ask for nothing (OffsetFetchRequest.json)"
    assert encode(message)


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_GROUPS))
def test_a_classic_group_tells_its_strategy_and_what_its_members_asked_for(version: int) -> None:
    described = classic_group(classic(version, protocol_data="range"), "g")
    assert described.strategy == "range"
    assert described.members[0].metadata == b""


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_GROUPS))
def test_a_group_whose_members_are_no_consumers_tells_of_which_type_they_are_and_refuses_one(version: int) -> None:
    connect = classic_group(classic(version, protocol_type="connect"), "g")
    assert (connect.other_type, connect.refuses_consumers) == ("connect", True)
    assert conversion_refused("g", connect) == no_consumers("g", connect), "a join would convert nothing"
    for takes_one in ({"protocol_type": "connect", "group_state": "Empty", "members": ()}, {"protocol_type": ""}, {}):
        assert not classic_group(classic(version, **takes_one), "g").refuses_consumers


def refused_everywhere(asked: Asked) -> Any:
    """Neither a classic group nor one of the consumer protocol, as brokers since 4.0 say it."""
    row = nested(RESPONSES[asked.api, asked.version], "groups")
    return blank_response(asked.api, asked.version, groups=(blank(row, group_id="g", error_code=69),))


@pytest.mark.parametrize("kind", ["share", "streams"])
@pytest.mark.parametrize("state", ["Stable", "Empty"])
async def test_a_group_of_a_kind_that_consumers_never_join_tells_of_which_kind_it_is(kind: str, state: str) -> None:
    def listed(asked: Asked) -> Any:
        row = nested(RESPONSES[asked.api, asked.version], "groups")
        named = [("other", "share"), ("g", kind)]
        groups = tuple(blank(row, group_id=name, group_type=of, group_state=state) for name, of in named)
        return blank_response(asked.api, asked.version, groups=groups)

    found = await described_by(listed)
    assert (found.error, found.other_type, found.refuses_consumers) == (ErrorCode.GROUP_ID_NOT_FOUND, kind, True)
    assert no_consumers("g", found).startswith(f"group 'g' is taken: it is a {kind} group")


async def test_a_group_that_no_broker_lists_does_not_exist() -> None:
    assert await described_by(lambda asked: blank_response(asked.api, asked.version)) == Described(69)
    assert await described_by(None) == Described(69), "nor does any other kind, where brokers tell none"


async def described_by(listed: Script | None) -> Described:
    async with FakeBroker(7) as broker:
        broker.lead([broker], {"t": {0: (7, 1)}})
        broker.script[Api.FIND_COORDINATOR] = lambda asked: found_at(broker, asked)
        broker.script[Api.DESCRIBE_GROUPS] = broker.script[Api.CONSUMER_GROUP_DESCRIBE] = refused_everywhere
        if listed is None:
            del broker.versions[Api.LIST_GROUPS]
        else:
            broker.script[Api.LIST_GROUPS] = listed
        cluster = cluster_of(broker)
        try:
            return await GroupAdmin(cluster, "g", 10.0).describe()
        finally:
            await cluster.close()
