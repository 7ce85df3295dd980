"""What a job says at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.pipeline import backfill, stream
from kunicorn.pipeline.lake.compact import Compacted
from kunicorn.pipeline.range_job import RangeJob
from kunicorn.pipeline.reconcile import Difference, Found
from kunicorn.pipeline.report import DryRun, Finished, FinishedRun, FinishedStream, command
from kunicorn.pipeline.state import Counts, Runs, RunState
from kunicorn.pipeline.tasks.executor_process import settings_file
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import load
from kunicorn.text import Answer, tell
from tests.answers import names_in
from tests.markdown import ROOT
from tests.system.members import group_settings, toml

ORDERS = TopicPartition("orders", 0)
RANGES = [OffsetRange("orders", 0, 10, 20), OffsetRange("orders", 1, 0, 5)]
STUCK = RunState(
    RANGES, positions={ORDERS: 12, TopicPartition("orders", 1): 5}, halted={ORDERS: "orders-0@12: Halt: look"},
    rounds=2, counts=Counts(5, 1, 1), seconds=3.5,
)  # fmt: skip
GO_ON = "kunicorn pipeline backfill --resume a"


def told(finished: Finished, *, for_program: bool) -> list[str]:
    said: list[str] = []
    tell(finished, said.append, as_json=for_program, in_one_line=True)
    return said


def test_a_program_gets_one_object_on_one_line_with_what_is_left_and_how_to_go_on() -> None:
    (line,) = told(FinishedRun("backfill", "a", STUCK, GO_ON), for_program=True)
    assert json.loads(line) == {
        "job": "backfill",
        "run": "a",
        "exit_code": 6,
        "finished": False,
        "records": 5,
        "skipped": 1,
        "dead_letters": 1,
        "filtered": 0,
        "seconds": 3.5,
        "offsets_per_second": 2.0,
        "offsets_left": 0,
        "positions": {"orders": {"0": 12, "1": 5}},
        "halted": [{"topic": "orders", "partition": 0, "offset": 12, "why": "orders-0@12: Halt: look"}],
        "go_on": GO_ON,
        "notes": [],
    }


def test_a_person_is_told_the_same_in_lines() -> None:
    assert told(FinishedRun("catch-up", "a", STUCK, GO_ON, ["the group is handed back"]), for_program=False) == [
        "handled       5 records in 3.5 s, 2 offsets/s",
        "dead letters  1",
        "skipped       1",
        "halted        orders-0 at 12: orders-0@12: Halt: look",
        "halted partitions go on with the record they halt at, once its cause is put right",
        f"to go on: {GO_ON}",
        "the group is handed back",
    ]


def test_a_run_that_was_stopped_says_how_much_is_left() -> None:
    stopped = FinishedRun("backfill", "a", RunState(RANGES, positions={ORDERS: 15}, rounds=1), GO_ON)
    assert "left          10 offsets" in told(stopped, for_program=False)
    assert (stopped.as_json()["offsets_left"], stopped.code) == (10, 6)


def test_a_job_that_found_nothing_to_do_says_only_that() -> None:
    nothing = FinishedRun("catch-up", None, RunState(()), notes=["the group is at its end already"])
    assert told(nothing, for_program=False) == ["the group is at its end already"]
    assert nothing.as_json() | {"finished": True, "exit_code": 0, "run": None, "go_on": None} == nothing.as_json()


def test_a_stream_tells_what_it_has_handled_since_it_was_started() -> None:
    ended = FinishedStream("stream", Counts(1_000, 2, 3), 4, finished=True)
    assert told(ended, for_program=False) == ["handled       1,000 records, 3 dead letters, 2 skipped"]
    assert ended.as_json() == {
        "job": "stream", "run": "stream", "exit_code": 0, "finished": True, "records": 1_000, "skipped": 2,
        "dead_letters": 3, "filtered": 0, "micro_batches": 4, "go_on": None,
    }  # fmt: skip


def test_a_stream_that_was_stopped_has_something_left_and_says_how_it_goes_on() -> None:
    again = command("stream", "--config", "/my settings.toml", "--run", "live", master="spark://spark:7077")
    stopped = FinishedStream("live", Counts(7, 0, 0), 1, finished=False, go_on=again)
    assert told(stopped, for_program=False)[1:] == [
        "stopped: kunicorn pipeline stream --config '/my settings.toml' --run live --master spark://spark:7077 "
        "goes on from the checkpoint"
    ]
    assert (stopped.code, stopped.as_json()["exit_code"], stopped.as_json()["finished"]) == (6, 6, False)
    assert stopped.as_json()["go_on"] == again


def found(start: int, stop: int) -> Found:
    return Found.of([OffsetRange("orders", 0, start, stop)])


JOBS_ANSWERS: dict[str, Answer] = {
    "a job": FinishedRun("backfill", "a", STUCK, GO_ON),
    "stream": FinishedStream("stream", Counts(7, 0, 0), 1, finished=True),
    "--dry-run": DryRun(RANGES, 2.0),
    "compact": Compacted(9, 8, 1, 1, 10_000, unlike=["a-0: 2 files"]),
    "reconcile": Difference(2, found(0, 1), found(1, 2), replace(found(2, 3), ranges=2)),
}


@pytest.mark.parametrize("what", JOBS_ANSWERS)
def test_the_page_has_every_name_of_what_a_program_is_told(what: str) -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text()
    page = text[text.index("## Answers for a program") : text.index("## On a cluster")]
    assert [name for name in names_in(JOBS_ANSWERS[what].as_json()) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("master", "where"), [("local[*]", ""), ("local[2]", " --master 'local[2]'"), ("yarn", " --master yarn")]
)
def test_a_job_goes_on_where_it_ran(master: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RangeJob, "__call__", lambda self, state, *_: state)
    config, said = tmp_path / "config.toml", list[str]()
    config.write_text(toml(group_settings("127.0.0.1:9", ["orders"], "orders", "shop:handle")))
    settings, runs = load(config, {}), Runs(str(tmp_path))
    run = runs.start(backfill.JOB, "shop:handle", backfill.Request().text, RunState(RANGES), "a")
    monkeypatch.setattr(backfill, "at_once", lambda settings: 1)
    ended = backfill._go_on(settings, settings_file(config, settings), runs, run, master, said.append)
    assert ended.go_on == f"kunicorn pipeline backfill --config {config} --resume a{where}"
    assert said[0] == f"run a; if it is cut off: {ended.go_on}"


def test_what_filters_passed_by_is_told_where_there_was_any() -> None:
    counts = Counts(1_000, 0, 0, 400)
    run = FinishedRun("backfill", "a", RunState(RANGES, rounds=1, counts=counts, seconds=2.0), GO_ON)
    assert "filtered      400 of those handled, which the handler never saw" in told(run, for_program=False)
    assert run.as_json()["filtered"] == 400
    (line,) = told(FinishedStream("stream", counts, 1, finished=True), for_program=False)
    assert line == "handled       1,000 records, 400 of them filtered, 0 dead letters, 0 skipped"


@pytest.mark.parametrize("for_program", [True, False])
def test_with_json_standard_output_has_the_object_and_nothing_of_the_progress(
    for_program: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def streamed(*arguments: Any) -> FinishedStream:
        arguments[-1]("micro-batch 0: 7 records")
        return FinishedStream("stream", Counts(7, 0, 0), 1, finished=True)

    monkeypatch.setattr(stream, "stream", streamed)
    config = tmp_path / "config.toml"
    config.write_text(toml(group_settings("127.0.0.1:9", ["orders"], "orders", "shop:handle")))
    command = ["pipeline", "stream", "--config", str(config), *(["--json"] if for_program else [])]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    if for_program:
        assert json.loads(result.stdout)["records"] == 7
        assert result.stderr == "micro-batch 0: 7 records\n"
    else:
        assert result.stdout.splitlines()[0] == "micro-batch 0: 7 records"
