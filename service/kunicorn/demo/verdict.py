"""What the demo promises, and whether it was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kunicorn.demo.check import RecordAt, Report


@dataclass(frozen=True)
class Outcome:
    """Everything the verdict rests on."""

    report: Report
    exit_codes: Mapping[str, int | None]
    """By member."""
    rebalances: int
    """That the first member went through."""
    worker_restarts: int
    uncommitted: Sequence[str]
    """Partitions whose committed offset, asked of the broker at the end, is not behind the last record."""


@dataclass(frozen=True)
class Line:
    """One line of the result. `kept` is None where a number is only told."""

    name: str
    value: str
    kept: bool | None = None


def verdict(outcome: Outcome) -> list[Line]:
    """Every promise with its measured value."""
    report = outcome.report
    handled_by = ", ".join(f"{member} {count}" for member, count in sorted(report.handled_by.items()))
    exits = ", ".join(f"{member} {code}" for member, code in outcome.exit_codes.items())
    return [
        Line("records produced", str(report.produced), report.produced > 0),
        Line("records handled", str(report.handled), report.handled == report.produced),
        Line("lost", _records(report.lost), not report.lost),
        Line("handled twice", _records(report.handled_twice), not report.handled_twice),
        Line("repeated after the kill (≤ 1)", _records(report.repeated), len(report.repeated) <= 1),
        Line("out of order", _records(report.out_of_order), not report.out_of_order),
        Line("two processes in one partition", _records(report.overlaps), not report.overlaps),
        Line("never produced, yet handled", _records(report.unexpected), not report.unexpected),
        Line("not committed at the end", ", ".join(outcome.uncommitted) or "0", not outcome.uncommitted),
        Line("handled by", handled_by, len(report.handled_by) == len(outcome.exit_codes)),
        Line("worker restarts", str(outcome.worker_restarts), outcome.worker_restarts >= 1),
        Line("rebalances", str(outcome.rebalances)),
        Line("exit codes", exits, all(code == 0 for code in outcome.exit_codes.values())),
    ]


def kept(lines: Sequence[Line]) -> bool:
    """Whether every promise was kept."""
    return all(line.kept is not False for line in lines)


def _records(records: Sequence[RecordAt]) -> str:
    """The number of records, and the first of them by name."""
    names = ", ".join(map(str, records[:5])) + (" …" if len(records) > 5 else "")
    return f"{len(records)} ({names})" if records else "0"
