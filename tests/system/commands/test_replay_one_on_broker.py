"""`kunicorn replay-one` beside a real broker: the record that is meant, and why there is none where there is none."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.errors import ConfigError
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.kafka.damage import damage
from tests.system.members import toml
from tests.system.producing import committed_offsets, end_offsets, produce, producer
from tests.waiting import wait_until

HANDLER = "import json\ndef handle(record):\n    json.loads(record.value)\n"


@pytest.fixture(scope="module")
def orders(kafka: KafkaCluster) -> str:
    """Of partition 0 offsets 0 and 1 are records, 2 is of an aborted transaction, 4 of one that was committed; 3 and 5
    are markers."""
    topic = kafka.create_topic(f"replay-orders-{uuid.uuid4().hex}", 2)
    plain = producer(kafka.bootstrap)
    for value in ("1", "nonsense"):
        plain.produce(topic, value=value, key="k", partition=0)
    assert plain.flush(60) == 0
    sender = producer(kafka.bootstrap, **{"transactional.id": topic})
    sender.init_transactions(30)
    for committed in (False, True):
        sender.begin_transaction()
        sender.produce(topic, value="2", partition=0)
        assert sender.flush(60) == 0
        (sender.commit_transaction if committed else sender.abort_transaction)(30)
    ends = {TopicPartition(topic, 0): 6, TopicPartition(topic, 1): 0}
    wait_until(lambda: end_offsets(kafka.bootstrap, topic, 2) == ends, "the last marker")
    return topic


@pytest.fixture
def replay_one(kafka: KafkaCluster, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, with further settings of [kafka]; the exit code and what was said."""
    (tmp_path / "replay_shop.py").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments: str, **more: Any) -> tuple[int, str]:
        own = {
            "kafka": {"bootstrap_servers": kafka.bootstrap.split(","), **more},
            "group": {"id": orders, "topics": [orders]},
            "handler": {"entrypoint": "replay_shop:handle"},
        }
        Path("config.toml").write_text(toml(own))
        result = CliRunner().invoke(app, ["replay-one", *arguments])
        if isinstance(result.exception, ConfigError):
            return 2, str(result.exception)
        return result.exit_code, result.stdout

    return run


def test_the_record_is_fetched_and_handled_and_nothing_is_committed(
    kafka: KafkaCluster, orders: str, replay_one: Any
) -> None:
    code, said = replay_one(orders, "0", "0")
    assert (code, "outcome   done" in said) == (0, True)
    code, said = replay_one(orders, "0", "1", "--json")
    told = json.loads(said)
    assert (code, told["value"], told["outcome"]) == (3, "nonsense", "halted")
    assert "replay_shop.py" in told["traceback"]
    assert set(committed_offsets(kafka.bootstrap, orders, orders, 2).values()) == {-1001}


def test_what_is_no_record_is_told_with_its_neighbours(orders: str, replay_one: Any) -> None:
    near = "the nearest records are {} before and {} behind".format
    marker = "is no record: compaction has removed it, or a transaction's marker stands there"
    assert replay_one(orders, "0", "3", isolation_level="read_committed") == (2, f"{orders}-0@3 {marker}; {near(1, 4)}")
    code, said = replay_one(orders, "0", "2", isolation_level="read_committed")
    assert (code, "a transaction that was aborted" in said, near(1, 4) in said) == (2, True, True)
    assert replay_one(orders, "0", "2", isolation_level="read_uncommitted")[0] == 0
    assert replay_one(orders, "0", "4", isolation_level="read_committed")[0] == 0
    assert replay_one(orders, "0", "6")[1] == f"{orders}-0 has no offset 6: its log has 0 to 5"
    assert replay_one(orders, "1", "0")[1] == f"{orders}-1 is empty: its log begins and ends at offset 0"
    assert replay_one(orders, "9", "0")[1] == f"topic '{orders}' has no partition 9: it has 0-1"
    code, said = replay_one(orders[:-1], "0", "0")
    assert (code, said.startswith(f"topic '{orders[:-1]}': "), "correct the name" in said) == (2, True, True)
    assert "--pdb needs a person at a terminal" in replay_one(orders, "0", "0", "--pdb")[1]


def test_of_a_damaged_log_there_is_what_lies_before_the_damage(
    kafka: KafkaCluster, topic: str, replay_one: Any
) -> None:
    kafka.create_topic(topic, 1)
    for _ in range(2):
        produce(kafka.bootstrap, topic, 30)
    damage(kafka.broker(1), f"{topic}-0", begins=30)
    assert replay_one(topic, "0", "29")[0] in (0, 3), "a record, whatever the handler says to it"
    code, said = replay_one(topic, "0", "30")
    assert (code, "offset 30" in said, "another replica" in said) == (2, True, True)


def test_an_open_transaction_is_told_of_and_holds_up_no_record_before_it(
    kafka: KafkaCluster, topic: str, replay_one: Any
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, 2)
    sender = producer(kafka.bootstrap, **{"transactional.id": topic})
    sender.init_transactions(30)
    sender.begin_transaction()
    sender.produce(topic, value="2", partition=0)
    assert sender.flush(60) == 0
    try:
        assert replay_one(topic, "0", "1", isolation_level="read_committed")[0] in (0, 3), "whatever the handler says"
        code, said = replay_one(topic, "0", "2", isolation_level="read_committed")
    finally:
        sender.abort_transaction(30)
    assert (code, "is still open" in said, "the nearest records are 1 before" in said) == (2, True, True), said
