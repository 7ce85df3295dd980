"""What may happen twice when a member dies or freezes and another takes its partitions over."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunicorn.commands.demo.audit import Entry, Kind, read_audit
from kunicorn.commands.demo.judge import Report
from kunicorn.ipc import clock
from kunicorn.positions import TopicPartition

SESSION = 6.0
"""Seconds; long enough for a machine that is busy with other things."""
COMMIT_INTERVAL = 1.0


def short_sessions(session: float = SESSION) -> dict[str, dict[str, Any]]:
    """Settings under which a dead member's partitions are free after `session` seconds."""
    return {
        "group": {
            "session_timeout_ms": int(session * 1000),
            "allow_short_session_timeout": True,
            "commit_interval_ms": int(COMMIT_INTERVAL * 1000),
        }
    }


def entries_of(audit: Path, member: str) -> list[tuple[TopicPartition, Entry]]:
    """Everything that this member's workers wrote."""
    files = (file for file in read_audit(audit) if file.member == member)
    return [(TopicPartition(file.topic, e.partition), e) for file in files for e in file.entries()]


def begun_between(audit: Path, member: str, start_ns: int, end_ns: int) -> int:
    """How many records this member began in that time."""
    times = (entry.time_ns for _, entry in entries_of(audit, member) if entry.kind == Kind.BEGIN)
    return sum(start_ns < at < end_ns for at in times)


def wait_until_ns(instant: int) -> None:
    """Until `clock.now_ns()` has reached that instant."""
    threading.Event().wait(max(0, instant - clock.now_ns()) / clock.NANOSECONDS)


def twice(report: Report) -> set[tuple[TopicPartition, int]]:
    """Records that were begun more than once, excused or not."""
    return {(TopicPartition(r.topic, r.partition), r.offset) for r in (*report.repeated, *report.handled_twice)}


def judge_takeover(report: Report, audit: Path, victim: str, committed: Mapping[int, int], overlaps: int = 0) -> None:
    """Nothing is lost or out of order, and repeated is only what the victim handled after its last commit.

    `committed`: by partition, what the broker knew right before it was killed or frozen.
    """
    faults = report.faults()
    assert not faults.keys() - {"handled twice", "overlaps"}, report
    assert len(report.overlaps) <= overlaps, report
    again = twice(report)
    assert not {(tp, offset) for tp, offset in again if offset < committed[tp.partition]}, "repeated though committed"
    begun = {(tp, entry.offset) for tp, entry in entries_of(audit, victim) if entry.kind == Kind.BEGIN}
    assert again <= begun, "repeated, yet not the victim's"
