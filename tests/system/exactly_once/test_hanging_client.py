"""A client whose call never ends, in a real worker: the worker ends, its successor sends everything, and once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.outputs import committed_outputs
from tests.system.producing import produce

RECORDS = 300


def test_a_worker_whose_client_never_ends_a_call_is_replaced_and_every_input_has_one_output(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    kafka.create_topic(topic, 1)
    kafka.create_topic(f"{topic}.out", 1)
    produce(kafka.bootstrap, topic, RECORDS)
    producing = {"delivery": "transactions", "topic": f"{topic}.out", "transaction_timeout_ms": 1_000}
    members = members_of(
        kafka.bootstrap,
        topic,
        workers=1,
        entrypoint="tests.system.handlers.hanging:copy",
        settings={"producing": producing},
        env={"HANG_ONCE": str(tmp_path / "hung")},
    )
    member = members.start()
    member.wait(lambda: member.lag() == 0 and member.partitions("running"), "a successor to send everything", 120)
    assert "of a transaction, has not ended for 10 s" in member.output()
    assert member.stop() == 0
    assert committed_outputs(kafka.bootstrap, f"{topic}.out", 1) == {f"0:{offset}": 1 for offset in range(RECORDS)}
