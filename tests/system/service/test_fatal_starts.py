"""A start that cannot work ends by itself, with its reason: a member that handles nothing holds its partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.errors import ExitCode
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, group_settings, merged
from tests.system.service.fatal_starts import PATIENCE, REFUSED, WAYS, starts

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("what", [way for way in WAYS if way != REFUSED])
def test_a_start_that_cannot_work_ends_with_its_reason_and_leaves_nothing_running(
    kafka: KafkaCluster, topic: str, tmp_path: Path, what: str, runs: int
) -> None:
    """One tells as much of a race as three: `make starts` makes two hundred. `test_refusals` has a broker that refuses
    the group."""
    kafka.create_topic(topic, 4)
    ended = starts(WAYS[what], kafka.bootstrap, tmp_path, runs, at_once=runs, topic=topic)
    assert [each.wrong for each in ended] == [""] * runs


SLOW = """
import importlib.machinery, pathlib, sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "kunicorn.observe.http" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pathlib.Path({begun!r}).touch()
        time.sleep(600)

sys.meta_path.insert(0, Slow())
"""
WAITS = """
import pathlib, time

while not pathlib.Path({begun!r}).exists():
    time.sleep(0.01)

def handle(record): ...
"""


def test_what_is_still_being_imported_does_not_hold_up_the_end(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    kafka.create_topic(topic)
    begun = str(tmp_path / "begun")
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(begun=begun))
    (tmp_path / "waits.py").write_text(WAITS.format(begun=begun))
    settings = group_settings(kafka.bootstrap, [topic], topic, "waits:handle", workers=1)
    settings = merged(settings, {"handler": {"options": {"dsn": "x"}}})
    member = MemberProcess("slow", tmp_path, settings, env={"PYTHONPATH": f"{ROOT / 'service'}:{ROOT}:{tmp_path}"})
    try:
        assert member.exit_code(PATIENCE) == ExitCode.HANDLER
    finally:
        member.close()
    (error,) = [line for line in member.output().splitlines() if " ERROR " in line]
    assert "has no setup" in error
