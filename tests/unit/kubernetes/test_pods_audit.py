"""What handlers in pods tell arrives as the audit that the judge reads."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.chaos.calls import read_calls, repeats
from tests.chaos.faults import Repeats
from tests.kubernetes import handler, verdict
from tests.kubernetes.collector import Collector
from tests.waiting import wait_until

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Told:
    topic: str
    partition: int
    offset: int
    key: bytes = b"k"
    value: bytes = b"v"


@pytest.fixture
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector(HERE, tmp_path) as made:
        monkeypatch.setenv("AUDIT_COLLECTOR", made.address)
        monkeypatch.setenv("AUDIT_MEMBER", "orders-0")
        yield made


@pytest.fixture
def topic() -> str:
    """Another one for each test: a process keeps its line for a topic."""
    return f"orders-{uuid4().hex[:8]}"


def test_a_handled_record_is_one_whole_call_of_its_pod(collector: Collector, topic: str) -> None:
    for offset in range(3):
        handler.handle(Told(topic, 1, offset))
    wait_until(lambda: _ended(collector) == 3, "three calls")
    report = Audit(collector.directory).check({TopicPartition(topic, 1): range(3)})
    assert report.holds
    assert report.handled_by == {"orders-0": 3}


def test_a_record_that_no_pod_told_of_is_lost(collector: Collector, topic: str) -> None:
    handler.handle(Told(topic, 0, 0))
    wait_until(lambda: _ended(collector), "a call")
    report = Audit(collector.directory).check({TopicPartition(topic, 0): range(2)})
    assert [each.offset for each in report.lost] == [1]


def test_a_faulty_record_is_refused_by_the_broken_handler_alone(
    collector: Collector, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler.handle(Told(topic, 0, 0, value=handler.FAULTY))
    monkeypatch.setenv("HANDLER_IS", "broken")
    with pytest.raises(ValueError, match="faulty"):
        handler.handle(Told(topic, 0, 1, value=handler.FAULTY))


def test_processes_of_two_pods_with_one_pid_are_told_apart(collector: Collector, topic: str) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for member in ("orders-0", "orders-1"):
        _introduce(collector, {"topic": topic, "member": member, "pid": 7, "boot": boot})
    wait_until(lambda: len(collector.processes) == 2, "two processes")
    assert not {*collector.numbers("orders-0", 7)} & {*collector.numbers("orders-1", 7)}
    assert collector.failure == ""


def test_pods_on_another_machines_clock_are_not_judged(collector: Collector, topic: str) -> None:
    _introduce(collector, {"topic": topic, "member": "orders-0", "pid": 7, "boot": "another"})
    wait_until(lambda: collector.failure, "a reason")


@pytest.mark.parametrize(
    ("allowed", "round_", "broken"),
    [
        (Repeats.NOTHING, 0, True),
        (Repeats.IN_HAND, 0, True),
        (Repeats.SINCE_COMMIT, 0, False),
        (Repeats.ROUND, 1, False),
        (Repeats.ROUND, 0, True),
    ],
)
def test_a_finished_record_may_be_handled_again_only_where_a_pod_was_cut_off(
    collector: Collector, topic: str, allowed: Repeats, round_: int, broken: bool
) -> None:
    for _ in range(2):
        handler.handle(Told(topic, 0, 0))
    wait_until(lambda: _ended(collector) == 2, "both calls")
    begin = read_calls(collector.directory)[0][0].begin
    scene = SimpleNamespace(victims={"orders-0"}, hurt_at=begin, in_hand=1, round=round_)
    again = repeats(read_calls(collector.directory))
    assert bool(list(verdict._beyond(scene, again, allowed))) is broken  # type: ignore[arg-type]


def _ended(collector: Collector) -> int:
    return sum(call.end is not None for calls in read_calls(collector.directory).values() for call in calls)


def _introduce(collector: Collector, hello: dict[str, object]) -> None:
    host, _, port = collector.address.rpartition(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(json.dumps(hello).encode() + b"\n")
