"""What may happen twice when a member dies or freezes and another takes its partitions over."""

from __future__ import annotations

import threading
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


def judge_takeover(
    report: Report, audit: Path, victim: str, at_ns: int, interval: float = COMMIT_INTERVAL, overlaps: int = 0
) -> None:
    """Nothing is lost or out of order, and repeated is only what the victim handled after its last commit.

    `at_ns`: when it was killed or frozen; `interval`: seconds between its commits.
    """
    faults = report.faults()
    assert not faults.keys() - {"handled twice", "overlaps"}, report
    assert len(report.overlaps) <= overlaps, report
    # A commit takes its time, and on a busy machine the timer is late: a second more.
    settled = at_ns - int((interval + 1.0) * clock.NANOSECONDS)
    committed = handled_before(audit, victim, settled)
    assert not twice(report) & committed, "repeated although committed long before"
    assert twice(report) <= handled_before(audit, victim, clock.now_ns(), begun=True), "repeated, yet not the victim's"


def handled_before(audit: Path, member: str, instant: int, *, begun: bool = False) -> set[tuple[TopicPartition, int]]:
    """What the member had finished (or begun) by then."""
    kind = Kind.BEGIN if begun else Kind.END
    return {(tp, e.offset) for tp, e in entries_of(audit, member) if e.kind == kind and e.time_ns < instant}
