"""What brokers say of their features is read, and one that was left behind is told."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.faults import Hurt
from tests.golden.make import COMMIT
from tests.soak.upgrades import THEN, broker_complaints, finalize
from tests.system.earlier import NotInHistory, check_history

_WIDE = "Feature: {:<35}SupportedMinVersion: {:<12}SupportedMaxVersion: {:<12}FinalizedVersionLevel: {:<12}Epoch: 1"
ROWS = (
    ("eligible.leader.replicas.version", "0", "1", "0"),
    ("group.version", "0", "1", "1"),
    ("kraft.version", "0", "1", "0"),
    ("metadata.version", "3.3-IV3", "UNKNOWN 33", "3.9-IV0"),
    ("share.version", "0", "2", "0"),
    ("transaction.version", "0", "2", "0"),
)


class Brokers:
    """Answer as Kafka's tool does."""

    def __init__(self, *rows: tuple[str, str, str, str], version: str = "4.4.0") -> None:
        self.rows = rows
        self.bootstrap = "127.0.0.1:1"
        self.brokers = [SimpleNamespace(id=1, version=version)]
        self.asked: list[str] = []

    def tool(self, main: str, *arguments: str) -> str:
        self.asked += arguments[2:]
        return "\n".join(_WIDE.format(*row) for row in self.rows)


def complaints(brokers: Brokers) -> list[str]:
    group: Any = SimpleNamespace(kafka=brokers)
    return list(broker_complaints(group, Hurt(0)))


def test_each_feature_that_groups_go_by_is_told_its_most_and_the_quorums_stays() -> None:
    brokers: Any = Brokers(*ROWS)
    finalize(brokers)
    told = brokers.asked[brokers.asked.index("upgrade") + 1 :]
    assert sorted(told) == [
        "--feature=eligible.leader.replicas.version=1",
        "--feature=metadata.version=33",
        "--feature=transaction.version=2",
    ]


def test_a_release_that_the_tool_knows_is_told_by_its_name() -> None:
    brokers: Any = Brokers(("metadata.version", "3.3-IV3", "4.4-IV1", "3.9-IV0"))
    finalize(brokers)
    assert brokers.asked[-2:] == ["upgrade", "--metadata=4.4-IV1"]


def test_a_broker_or_a_feature_that_was_left_behind_is_told() -> None:
    done = [(name, least, most, most) for name, least, most, _ in ROWS if name != "kraft.version"]
    assert complaints(Brokers(*done)) == []
    assert "brokers [1]" in complaints(Brokers(*done, version="3.9.1"))[0]
    (behind,) = complaints(Brokers(*ROWS))
    assert "metadata.version" in behind
    assert "kraft" not in behind
    assert "group.version" not in behind


@pytest.mark.parametrize("place", THEN.values())
def test_the_handlers_of_then_are_in_that_commit(place: str) -> None:
    try:
        check_history()
    except NotInHistory as error:
        pytest.skip(str(error))
    module, _, name = place.partition(":")
    file = ("service/" if module.startswith("kunicorn.") else "") + module.replace(".", "/") + ".py"
    command = ["git", "show", f"{COMMIT}:{file}"]
    told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    assert f"def {name}(" in told
