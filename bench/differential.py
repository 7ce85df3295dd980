"""Ours beside confluent-kafka's members through the same faults, for docs/conformance.md. `make bench-differential`

    python -m bench.differential [--write]

One broker, and groups of two members each, every group behind a link of its own. Each fault hits all groups at the same
moment; afterwards they are left alone until a missed session would have shown. `--write` keeps the figures, from which
`python -m tests.contract.conformance` makes the table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from bench.brokers import handled_by_two
from bench.contestants import CONTESTANTS, Contestant, Entry
from kunicorn.pipes.clock import NANOSECONDS, now_ns
from tests.chaos.calls import Call, longest_waits, repeats
from tests.kafka import KafkaCluster, ProxiedCluster
from tests.waiting import wait_until

RESULTS = Path(__file__).parents[1] / "tests/contract/conformance/differential.json"
RATE = 40
AFTER = 12.0
"""Seconds left alone after each fault."""
CHOSEN = (
    "kunicorn, cooperative-sticky",
    "confluent-kafka, cooperative-sticky, its defaults",
    "kunicorn, consumer protocol",
    "confluent-kafka, consumer protocol",
)
LINKS = tuple(f"link{number}" for number in range(len(CHOSEN)))


class Behind:
    """The cluster as it is reached over one link."""

    def __init__(self, kafka: ProxiedCluster, link: str) -> None:
        self.bootstrap = ",".join(kafka.bootstrap_over(link))
        self.create_topic = kafka.create_topic


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _cut(kafka: ProxiedCluster, seconds: float, *directions: Any) -> None:
    for link in LINKS:
        kafka.cut(link, *directions)
    _pause(seconds)
    for link in LINKS:
        kafka.heal(link)


def _reset(kafka: ProxiedCluster) -> None:
    for _ in range(3):
        for link in LINKS:
            kafka.reset(link)
        _pause(0.5)


def _slow(kafka: ProxiedCluster) -> None:
    for link in LINKS:
        kafka.slow(link, 0.5)
    _pause(8.0)
    for link in LINKS:
        kafka.heal(link)


def _restart(kafka: ProxiedCluster) -> None:
    kafka.broker(1).kill()
    kafka.broker(1).start()
    kafka.wait_until_ready()


def _freeze(kafka: ProxiedCluster) -> None:
    kafka.broker(1).freeze()
    _pause(6.0)
    kafka.broker(1).thaw()


FAULTS: Mapping[str, Callable[[ProxiedCluster], None]] = {
    "answers lost for 4 s": lambda kafka: _cut(kafka, 4.0, "from"),
    "requests lost for 7 s": lambda kafka: _cut(kafka, 7.0, "to"),
    "connections reset three times": _reset,
    "half a second slower each way for 8 s": _slow,
    "coordinator frozen for 6 s": _freeze,
    "nothing gets through for 50 s, longer than a session": lambda kafka: _cut(kafka, 50.0, "to", "from"),
    "coordinator killed and started: errors on heartbeats and commits": _restart,
}


def measured(kafka: ProxiedCluster, chosen: Sequence[Contestant], directory: Path) -> list[dict[str, Any]]:
    """A row for each fault and contestant."""
    with ExitStack() as stack:
        entries = []
        for number, who in enumerate(chosen):
            behind = cast("KafkaCluster", Behind(kafka, LINKS[number]))
            entry = Entry(who, behind, f"faults-{number}", directory / str(number), RATE)
            # What is produced must not suffer from the fault.
            entry.load = type(entry.load)(kafka.bootstrap, entry.topic, RATE)
            stack.callback(entry.close)
            entries.append(entry)
            for _ in range(2):
                entry.start()
            entry.load.start()
        for entry in entries:
            wait_until(lambda entry=entry: handled_by_two(entry), f"{entry.who.title}: two members at work", 90, 0.5)
        windows = {fault: _hit(kafka, inflict) for fault, inflict in FAULTS.items()}
        for entry in entries:
            entry.load.stop()
        _pause(1.0)
        return [_row(entry, fault, *window) for fault, window in windows.items() for entry in entries]


def _hit(kafka: ProxiedCluster, inflict: Callable[[ProxiedCluster], None]) -> tuple[int, int, int]:
    """When it began, when it was over, and when the time to recover was."""
    start = now_ns()
    inflict(kafka)
    over = now_ns()
    _pause(AFTER)
    return start, over, now_ns()


def _row(entry: Entry, fault: str, start: int, over: int, end: int) -> dict[str, Any]:
    calls = entry.calls()
    waits = longest_waits(calls, entry.load.appended, start, end)
    row = {
        "client": entry.who.title,
        "fault": fault,
        "lasted": round((over - start) / NANOSECONDS, 1),
        "pause": round(max(waits, default=0) / NANOSECONDS, 1),
        "moved": sum(_moves(each, start, end) for each in calls.values()),
        "repeated": len([each for each in repeats(calls) if start <= each.again.begin < end]),
    }
    print(row, flush=True)
    return row


def _moves(calls: Sequence[Call], start: int, end: int) -> int:
    """How often the partition went from one member to the other."""
    return sum(a.member != b.member and start <= b.begin < end for a, b in pairwise(calls))


def main() -> None:
    """Measure, and keep what was measured if that is wished for."""
    parser = argparse.ArgumentParser(description="ours beside confluent-kafka's members through the same faults")
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    chosen = [each for title in CHOSEN for each in CONTESTANTS if each.title == title]
    with (
        tempfile.TemporaryDirectory() as directory,
        ProxiedCluster(LINKS, brokers=1, workdir=Path(directory) / "kafka") as kafka,
    ):
        rows = measured(kafka, chosen, Path(directory))
    if options.write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
