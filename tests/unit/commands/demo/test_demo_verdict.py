"""The demo's verdict: which figures break a promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kunicorn.commands.demo.judge import Outcome, RecordAt, Report, kept, verdict

ONE = (RecordAt("orders", 3, 41),)
GOOD = Outcome(
    report=Report(produced=10, handled=10, repeated=ONE, handled_by={"member-1": 7, "member-2": 4}),
    exit_codes={"member-1": 0, "member-2": 0},
    rebalances=3,
    worker_restarts=1,
    uncommitted=(),
)


def test_one_record_repeated_after_the_kill_is_within_the_promise() -> None:
    assert kept(verdict(GOOD))


@pytest.mark.parametrize(
    "broken",
    [
        replace(GOOD, report=replace(GOOD.report, lost=ONE)),
        replace(GOOD, report=replace(GOOD.report, handled_twice=ONE)),
        replace(GOOD, report=replace(GOOD.report, repeated=ONE * 2)),
        replace(GOOD, report=replace(GOOD.report, out_of_order=ONE)),
        replace(GOOD, report=replace(GOOD.report, overlaps=ONE)),
        replace(GOOD, report=replace(GOOD.report, unexpected=ONE)),
        replace(GOOD, report=replace(GOOD.report, handled_by={"member-1": 10})),
        replace(GOOD, report=Report(produced=0, handled=0, handled_by=GOOD.report.handled_by)),
        replace(GOOD, exit_codes={"member-1": 0, "member-2": 6}),
        replace(GOOD, exit_codes={"member-1": None, "member-2": 0}),
        replace(GOOD, worker_restarts=0),
        replace(GOOD, uncommitted=["orders-3"]),
    ],
    ids=lambda outcome: "",
)
def test_each_fault_alone_breaks_the_promise(broken: Outcome) -> None:
    assert sum(line.kept is False for line in verdict(broken)) == 1


def test_a_broken_promise_names_the_records() -> None:
    lines = verdict(replace(GOOD, report=replace(GOOD.report, lost=ONE * 7)))
    assert next(line.value for line in lines if line.name == "lost") == f"7 ({', '.join(['orders-3@41'] * 5)} …)"
