"""The clients of the brokers that the service keeps."""

from __future__ import annotations

from unittest import mock

import pytest

from kunicorn.errors import ConfigError
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import LATEST, TopicPartition
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.facts import MemberState
from tests.fakes.broker import FakeBroker, by_partition, cluster_of
from tests.fakes.stage import settings_with

ORDERS = {"orders": {0: (1, 5)}}
LETTERS = {"letters": "dead_letters.topic"}


def test_a_login_that_a_broker_refused_is_tried_again_from_the_start_on() -> None:
    cluster = mock.Mock(spec=Cluster)
    again = cluster.retry_failed = mock.Mock()
    connections = Connections(settings_with("earliest"), cluster, mock.Mock(spec=MemberState))
    assert list(connections.logins(lambda _: None)) == [again.return_value]


async def test_topics_that_a_reload_names_are_asked_for_and_one_that_is_not_there_is_refused_with_the_remedy() -> None:
    async with FakeBroker() as broker:
        broker.lead([broker], ORDERS)
        connections = Connections(settings_with("earliest"), cluster_of(broker), MemberState())
        await connections.reach()
        missing = (
            r"dead-letter topic 'letters' does not exist on this cluster: create it, or correct dead_letters\.topic; "
            "it is never created by itself"
        )
        with pytest.raises(ConfigError, match=missing):
            await connections.look_for(LETTERS)
        broker.lead([broker], ORDERS | {"letters": {0: (1, 5)}})
        await connections.look_for(LETTERS)
        asked = [each.message.topics for each in broker.asked if each.api is Api.METADATA]
        assert {topic.name for topic in asked[-1]} == {"orders", "letters"}
        await connections.close()


async def test_while_no_broker_says_whether_a_topic_is_there_it_is_refused_and_without_one_nobody_is_asked() -> None:
    async with FakeBroker() as broker:
        broker.lead([broker], ORDERS)
        connections = Connections(settings_with("earliest"), cluster_of(broker), MemberState())
        await connections.reach()
        await broker.stop()
        await connections.look_for({})
        with pytest.raises(ConfigError, match=r"whether the topic 'letters' is there is not known: .*; reload again"):
            await connections.look_for(LETTERS)
        await connections.close()


@pytest.mark.parametrize(
    ("error", "doubts"), [(ErrorCode.NOT_LEADER_OR_FOLLOWER, True), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)]
)
async def test_a_leader_that_may_not_tell_where_its_log_ends_casts_no_doubt_on_the_metadata(
    error: int, doubts: bool
) -> None:
    """The right may be missing for days, and its end is asked for every second meanwhile."""
    async with FakeBroker() as broker:
        broker.lead([broker], ORDERS)
        broker.script[Api.LIST_OFFSETS] = lambda asked: by_partition(asked, lambda _: {"error_code": error})
        connections = Connections(settings_with("earliest"), cluster_of(broker), MemberState())
        await connections.reach()
        with mock.patch.object(connections.topics, "doubt") as doubt:
            await connections.brokers.list_offsets({TopicPartition("orders", 0): LATEST})
        assert doubt.called is doubts
        await connections.close()
