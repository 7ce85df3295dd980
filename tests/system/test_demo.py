"""`kunicorn demo`, as anybody would try it first."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from kunicorn.commands.demo import scenario
from kunicorn.commands.demo.scenario import run_demo
from kunicorn.errors import ConfigError
from tests.kafka import KafkaCluster
from tests.waiting import wait_until


@pytest.fixture
def console() -> Console:
    """Plain lines, kept."""
    return Console(file=io.StringIO(), width=200, highlight=False)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


SECONDS = 10.0
"""Less than somebody watches: all acts are played, as each begins two seconds behind the former one at the least."""


@pytest.mark.parametrize("arrow", [False, True], ids=["records", "columns"])
def test_the_demo_keeps_every_promise_on_the_mock_cluster(console: Console, arrow: bool) -> None:
    assert run_demo(console=console, arrow=arrow, seconds=SECONDS) == 0, printed(console)
    assert "every promise kept" in printed(console)


@pytest.mark.long
def test_the_demo_keeps_every_promise_on_a_real_broker_and_cleans_up(
    kafka: KafkaCluster, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(kafka.bootstrap, seconds=SECONDS, console=console, as_json=True) == 0, printed(console)
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is True
    assert {"name", "value", "kept"} == told["audit"][0].keys()
    topics = kafka.admin().list_topics
    wait_until(lambda: not [name for name in topics(timeout=60).topics if name.startswith("kunicorn-demo")], "its end")
    groups = kafka.admin().list_consumer_groups().result(60).valid
    assert not [group.group_id for group in groups if group.group_id.startswith("kunicorn-demo")]


def test_a_cluster_that_nobody_reaches_is_reported(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of any command: exit code 2, as 1 is for bugs, with a remedy and no trace of what was begun."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"--bootstrap 127\.0\.0\.1:1: no broker that makes topics answers within 10 s; "
    ):
        run_demo("127.0.0.1:1", console=console)
    assert list(tmp_path.iterdir()) == []


def test_a_member_that_does_not_start_ends_the_demo_with_the_end_of_its_log(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenario, "WORKERS", -1)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    assert run_demo(console=console) == 1
    assert "member-1 exited 2" in printed(console)
    assert "workers" in printed(console)
    assert (tmp_path / "member-1.log").exists()
