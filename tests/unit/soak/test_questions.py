"""What a leg asks of brokers that have just come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.kafka.versions import RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes.broker import Asked, Reply
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.coordinator_broker import CoordinatorBroker
from tests.fakes.messages import blank, nested
from tests.fakes.simulation import TOPIC
from tests.system import producing


class Client:
    """The first one is never answered, as one that knew a coordinator before its restart."""

    made = 0

    def __init__(self, _: dict[str, Any]) -> None:
        Client.made += 1
        self.is_stale = Client.made == 1

    def committed(self, wanted: list[Coordinates], timeout: float) -> list[Coordinates]:
        """As `Consumer` has it."""
        if self.is_stale:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [Coordinates("t", 0, 7)]


def test_another_client_asks_where_one_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two legs in transactions ended so, each behind a restart of its brokers.
    monkeypatch.setattr(producing, "Consumer", Client)
    assert producing.committed_offsets("brokers of this test", "g", "t", 1) == {TopicPartition("t", 0): 7}
    assert Client.made == 2


class OlderBroker(CoordinatorBroker):
    """It says who coordinates as librdkafka 2.16 asks, in version 2 of FindCoordinator."""

    def __init__(self) -> None:
        super().__init__(1, ClassicGroup())
        self.versions[Api.FIND_COORDINATOR] = (0, 2)
        self.show(topics={TOPIC: 1})

    def _find(self, asked: Asked) -> Reply:
        host = b"127.0.0.1"
        node = self.node_id.to_bytes(4) + len(host).to_bytes(2) + host + self.port.to_bytes(4)
        throttled, error, no_message = bytes(4), bytes(2), (0xFFFF).to_bytes(2)
        return asked.correlation_id.to_bytes(4) + throttled + error + no_message + node


async def test_a_group_whose_coordinator_has_moved_is_asked_again() -> None:
    # Two legs were ended by SIGSEGV: an `AdminClient` does not outlive that answer.
    async with OlderBroker() as broker:

        def moved(asked: Asked) -> Reply:
            schema = RESPONSES[asked.api, asked.version]
            return blank(
                schema, groups=(blank(nested(schema, "groups"), group_id="g", error_code=ErrorCode.NOT_COORDINATOR),)
            )

        broker.plan(Api.OFFSET_FETCH, moved)
        broker.committed[TopicPartition(TOPIC, 0)] = 7
        offsets = await asyncio.to_thread(producing.committed_offsets, str(broker.address), "g", TOPIC, 1)
        assert offsets == {TopicPartition(TOPIC, 0): 7}
        assert broker.apis().count(Api.OFFSET_FETCH) == 2
        await asyncio.to_thread(producing._client_of.cache_clear)
