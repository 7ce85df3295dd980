"""librdkafka's mock cluster as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer

from kunicorn.commands.demo import mock_cluster
from kunicorn.commands.demo.mock_cluster import MockUnavailable, mock_cluster_process
from tests.waiting import runs, wait_until


def test_a_record_goes_in_and_comes_out() -> None:
    with mock_cluster_process([("orders", 3)]) as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        producer.produce("orders", b"value", b"key")
        assert producer.flush(60) == 0
        group = {"group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": bootstrap, **group})
        consumer.subscribe(["orders"])
        message = wait_until(lambda: consumer.poll(0.2), "the record")
        consumer.close()
        assert (message.key(), message.value()) == (b"key", b"value")


def test_topics_have_the_partitions_asked_for_on_every_broker() -> None:
    with mock_cluster_process([("orders", 3), ("refunds", 1)], brokers=3) as bootstrap:
        metadata = Producer({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=60)
    assert {name: len(topic.partitions) for name, topic in metadata.topics.items()} == {"orders": 3, "refunds": 1}
    assert len(metadata.brokers) == 3


def test_the_cluster_ends_when_its_starter_is_killed() -> None:
    starter = _starter("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    pid = int(starter.stdout)
    wait_until(lambda: not runs(pid), "the mock cluster's end")


def test_the_cluster_ends_with_the_block() -> None:
    starter = _starter("pass")
    assert starter.returncode == 0, starter.stderr
    assert not runs(int(starter.stdout))


def test_a_topic_that_is_not_named_with_its_partitions_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("orders", "orders:", ":3", "orders:0", "orders:many"):
        with pytest.raises(SystemExit):
            mock_cluster.main(["--topic", wrong])
        assert f"{wrong!r} is not NAME:PARTITIONS" in capsys.readouterr().err


def test_a_cluster_that_does_not_come_up_is_reported() -> None:
    with pytest.raises(MockUnavailable, match="exited 2"), mock_cluster_process([("orders", 0)]):
        pass


def test_without_a_bundled_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(confluent_kafka, "__file__", str(tmp_path / "confluent_kafka" / "__init__.py"))
    with pytest.raises(MockUnavailable, match="--bootstrap"):
        mock_cluster.load_library()


def _starter(then: str) -> subprocess.CompletedProcess[str]:
    """A process that starts a cluster, prints the pid of it, and goes on with `then` inside the block."""
    script = f"""
from pathlib import Path
from kunicorn.commands.demo.mock_cluster import mock_cluster_process
import os
with mock_cluster_process([("orders", 1)]):
    print(*((task / "children").read_text() for task in Path("/proc/self/task").iterdir()), flush=True)
    {then}
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
