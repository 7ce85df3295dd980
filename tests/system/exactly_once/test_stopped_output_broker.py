"""The broker that has the output topic is down: the member says so, goes on when it is back, and every input has its
output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import NewTopic

from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.outputs import committed_outputs
from tests.system.producing import committed_offsets, produce

pytestmark = pytest.mark.long

RECORDS = 500


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(3) as cluster:
        yield cluster


@pytest.mark.parametrize("delivery", ["at_least_once", "transactions"])
def test_while_no_broker_takes_the_outputs_the_status_says_so_and_nothing_is_consumed(
    three: KafkaCluster, topic: str, members_of: Callable[..., Members], delivery: str
) -> None:
    three.create_topic(topic, 1)
    victim = three.broker(3)
    out = f"{topic}.out"
    three.admin().create_topics([NewTopic(out, 1, replica_assignment=[[victim.id]])])[out].result(60)
    # So short that outputs are refused and sent anew, and not only late.
    producing = {"delivery": delivery, "topic": out, "delivery_timeout_ms": 5000}
    settings = {"producing": producing}
    members = members_of(
        three.bootstrap, topic, entrypoint="tests.system.handlers.sending:copy", settings=settings, workers=1
    )
    member = members.start()
    member.wait_running(1)
    victim.stop()
    produce(three.bootstrap, topic, RECORDS)
    waiting = f'kunicorn_partitions_waiting{{group="{topic}",waits_for="delivery"}} 1.0'
    member.wait(lambda: waiting in member.get("/metrics")[1], "the outputs to be late")
    (partition,) = member.partitions("running")
    assert partition["position"] == 0, "nothing is consumed before its output is there"
    assert "for delivery: " in partition["reason"]
    assert member.get("/livez")[0] == 200, "a restart would not cure it"
    victim.start()
    three.wait_until_whole()
    member.wait(lambda: committed(three, topic) == RECORDS, "all inputs to be committed")
    member.wait(lambda: waiting not in member.get("/metrics")[1], "the status to say that all is well")
    assert member.stop() == 0
    outputs = committed_outputs(three.bootstrap, out, 1)
    assert set(outputs) == {f"0:{offset}" for offset in range(RECORDS)}
    assert delivery == "at_least_once" or set(outputs.values()) == {1}


def committed(kafka: KafkaCluster, topic: str) -> int:
    """The group's offset."""
    (offset,) = committed_offsets(kafka.bootstrap, topic, topic, 1).values()
    return offset
