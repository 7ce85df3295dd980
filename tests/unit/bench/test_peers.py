"""The audit and the arithmetic of `make bench`: what would let a contender win by losing records."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers import tree
from bench.peers.contenders import BATCH_1, BATCH_2, CLIENTS, JAVA
from bench.peers.environments import pinned
from bench.peers.goals import Goal
from bench.peers.growth import steps
from bench.peers.loads import Load, values
from bench.peers.plan import Case, full, quick
from bench.peers.plot import Bar, Point, bars, curve
from bench.peers.results import Results
from bench.peers.run import Figures
from bench.peers.tallies import Counted, Tallies, findings, first_offsets

CASE = Case(Load(8, 200, "none", 1000), "nothing")


def figures(rate: float, finding: str = "") -> Figures:
    return Figures(rate, 1.0, 50.0, 0.01, 40.0, 0.5, 1000, finding)


def count_in_a_process(directory: Path, program: str, **more: str) -> None:
    """As a contender does it, forks included."""
    environment = {
        "BENCH_BOOTSTRAP": "", "BENCH_TOPIC": "", "BENCH_GROUP": "", "BENCH_FORM": "", "BENCH_WORKERS": "1",
        "BENCH_PARTITIONS": "3", "BENCH_HANDLER": "nothing", "BENCH_LOOPS": "10", "BENCH_TALLIES": str(directory),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment, **more}, cwd=CLIENTS, check=True, timeout=240
    )


def test_records_of_forked_processes_add_up(tmp_path: Path) -> None:
    program = (
        "import os, tally\n"
        "tally.handle(0, 0, b'a')\n"
        "if not (pid := os.fork()):\n"
        "    tally.handle(0, 1, b'b'); tally.handle_run(2, [0, 1, 2], [b'c'] * 3); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    count_in_a_process(tmp_path, program)
    tallies = Tallies(tmp_path, 3)
    assert tallies.total() == 5
    assert tallies.counted() == [Counted(2, 1), Counted(0, 0), Counted(3, 3)]
    assert findings(tallies.counted(), [2, 0, 3]) == ""


def test_delays_come_out_with_when_each_record_was_sent(tmp_path: Path) -> None:
    count_in_a_process(tmp_path, "import tally; tally.handle(1, 0, b'%-200d' % 5)", BENCH_HANDLER="delay")
    ((sent, delay),) = Tallies(tmp_path, 3).delays()
    assert sent == 5
    assert delay > 1e18


@pytest.mark.parametrize("kind", ["nothing", "work", "wait"])
def test_every_kind_of_handler_counts_alike(tmp_path: Path, kind: str) -> None:
    count_in_a_process(tmp_path, "import tally; tally.handle_run(1, [0, 1], [b'1', b'2'])", BENCH_HANDLER=kind)
    assert Tallies(tmp_path, 3).counted()[1] == Counted(2, 1)


def test_a_file_that_is_just_being_made_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    assert Tallies(tmp_path, 2).counted() == [Counted(0, 0)] * 2


@pytest.mark.parametrize(
    ("counted", "stopped", "finding"),
    [
        ([Counted(10, 45), Counted(10, 45)], False, ""),
        ([Counted(9, 36), Counted(10, 45)], False, "1 lost"),
        ([Counted(12, 60), Counted(10, 45)], False, "2 handled again"),
        ([Counted(10, 44), Counted(10, 45)], False, "other records than these in 1 partitions"),
        ([Counted(9, 36), Counted(0, 0)], True, ""),
        ([Counted(9, 37), Counted(0, 0)], True, "other records than these in 1 partitions"),
    ],
)
def test_what_was_not_handled_exactly_once_is_told(counted: list[Counted], stopped: bool, finding: str) -> None:
    assert findings(counted, [10, 10], stopped=stopped) == finding


def test_who_keeps_no_order_is_judged_by_the_number_alone_when_cut_short() -> None:
    assert findings([Counted(2, 9)], [10], stopped=True, in_order=False) == ""
    assert findings([Counted(11, 46)], [10], stopped=True, in_order=False) == "1 handled again"
    assert findings([Counted(10, 46)], [10], in_order=False) == "other records than these in 1 partitions"


def test_the_cells_hold_the_largest_load_that_is_planned() -> None:
    for load in (*quick().loads, *full().loads, *(step.load for step in steps(1.0))):
        most = max(load.produced)
        assert sum(load.produced) == load.records
        assert first_offsets(most) < 1 << 42
        assert most < 1 << 22
        struct.pack("Q", (most << 42) + first_offsets(most))


def test_a_ratio_is_the_median_of_the_rounds(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    for number, (mine, theirs) in enumerate([(100.0, 50.0), (10.0, 10.0), (300.0, 100.0)]):
        results.add(CASE, BATCH_2, number, figures(mine))
        results.add(CASE, JAVA, number, figures(theirs))
    assert results.ratio((CASE, BATCH_2), (CASE, JAVA)) == 2.0
    assert Results.read(tmp_path / "results.json").entries == results.entries


def test_a_contender_that_fails_is_told_with_the_reason_and_spoils_no_ratio(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add(CASE, BATCH_2, 0, figures(100.0))
    results.add(CASE, JAVA, 0, "no record within 60 s")
    assert results.failure(CASE, JAVA) == "no record within 60 s"
    assert results.ratio((CASE, BATCH_2), (CASE, JAVA)) is None
    results.add(CASE, JAVA, 1, figures(50.0))
    assert results.failure(CASE, JAVA) == ""
    assert results.ratio((CASE, BATCH_2), (CASE, JAVA)) == 2.0


def test_findings_of_all_rounds_are_told_once(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    for number, finding in enumerate(["", "1 lost", "1 lost"]):
        results.add(CASE, BATCH_1, number, figures(1.0, finding))
    assert results.finding(CASE, BATCH_1) == "1 lost"


@pytest.mark.parametrize(
    ("value", "at_least", "reached"), [(2.0, True, True), (1.0, True, False), (1.0, False, True), (None, True, None)]
)
def test_a_goal_is_reached_missed_or_not_measured(value: float | None, at_least: bool, reached: bool | None) -> None:
    assert Goal("g", 1.5, at_least, value).reached is reached


@pytest.mark.parametrize("size", [50, 200, 2048, 900_000])
def test_documents_are_json_of_the_size_asked_for(size: int) -> None:
    documents = values(size)
    assert {len(document) for document in documents} == {size}
    assert len({json.loads(document)["id"] for document in documents}) == len(documents)


def test_a_picture_has_a_bar_for_each_and_no_markup_of_others() -> None:
    drawn = bars("t", "µs", [Bar("<b>", 10.0, False), Bar("ours", 2.5e6, True)])
    assert "&lt;b&gt;" in drawn
    assert "2.5 M µs" in drawn
    assert drawn.count("<rect") == 3
    assert "</svg>" in bars("nothing", "", [])


def test_a_curve_has_both_panels_and_survives_having_no_points() -> None:
    drawn = curve("t", "partitions", [Point(8, 1e6, 1.0), Point(4000, 5e5, 2.5)])
    assert drawn.count("<circle") == 4
    assert drawn.count("<polyline") == 2
    assert "500 k" in drawn
    assert "</svg>" in curve("nothing", "x", [])


def test_the_tree_counts_children_that_have_ended() -> None:
    # By its own clock: a fixed number of additions was less than what is waited for on a fast machine, for ever.
    burn = (
        "import os, time\nif not (pid := os.fork()):\n    while time.process_time() < 0.1: pass\n    os._exit(0)\n"
        "os.waitpid(pid, 0); input()"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE) as process:
        used: Any = 0.0
        while used < 0.03:
            used = tree.cpu_seconds(process.pid)
            assert process.poll() is None
        assert tree.memory_mb(process.pid) > 1
        process.communicate(b"\n")
    assert tree.cpu_seconds(process.pid) == 0.0


def test_every_package_of_every_environment_is_pinned() -> None:
    for environment in pinned().values():
        assert all("==" in package for package in environment["packages"])


def test_a_case_that_is_measured_anew_keeps_nothing_of_its_old_runs(tmp_path: Path) -> None:
    other = Case(CASE.load, "delay")
    results = Results(tmp_path / "results.json")
    for case in (CASE, other):
        results.add(case, BATCH_1, 0, figures(1.0))
    results = Results.read(results.path)
    results.forget({(CASE, BATCH_1), (CASE, JAVA)})
    assert not results.of(CASE, BATCH_1)
    assert results.of(other, BATCH_1)
