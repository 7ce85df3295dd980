"""What a job says before it begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.errors import ConfigError
from kunicorn.pipeline import backfill
from kunicorn.pipeline.report import DryRun
from kunicorn.pipeline.state import Runs, RunState
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import load
from kunicorn.text import tell
from tests.unit.pipeline.played_log import PlayedLog
from tests.unit.settings.files import LEAST

RANGES = [OffsetRange("orders", 0, 10, 410), OffsetRange("orders", 1, 0, 100)]


def told(dry_run: DryRun, *, as_json: bool) -> list[str]:
    said: list[str] = []
    tell(dry_run, said.append, as_json=as_json, in_one_line=True)
    return said


def test_a_program_gets_the_plan_on_one_line() -> None:
    (line,) = told(DryRun(RANGES, 250.0, ["the group has 1 member(s) now"]), as_json=True)
    assert json.loads(line) == {
        "ranges": [
            {"topic": "orders", "partition": 0, "start": 10, "stop": 410, "offsets": 400},
            {"topic": "orders", "partition": 1, "start": 0, "stop": 100, "offsets": 100},
        ],
        "offsets": 500,
        "offsets_per_second": 250.0,
        "estimated_seconds": 2.0,
        "notes": ["the group has 1 member(s) now"],
    }


def test_a_program_gets_every_range_and_a_person_the_first_ones() -> None:
    many = DryRun([OffsetRange("orders", number, 0, 1) for number in range(80)], None)
    (line,) = told(many, as_json=True)
    assert len(json.loads(line)["ranges"]) == 80
    assert "and 30 more partitions" in told(many, as_json=False)


def test_a_time_that_nothing_is_known_of_is_null_or_said_to_be_unknown() -> None:
    assert DryRun(RANGES, None).as_json()["estimated_seconds"] is None
    assert "estimated time: unknown" in told(DryRun(RANGES, None), as_json=False)[-1]


def test_a_person_gets_time_unevenness_and_notes() -> None:
    lines = told(DryRun([*RANGES, OffsetRange("orders", 2, 0, 100)], 300.0, ["some are gone"]), as_json=False)
    assert lines[-3:] == [
        "the largest partition is 4.0 times the median (100) and will be the last to finish",
        "estimated time: 2.0 s at the last run's 300 offsets/s",
        "some are gone",
    ]


@pytest.mark.parametrize("option", ["--resume", "--begin-or-resume"])
def test_the_plan_of_a_run_that_has_begun_is_what_is_left_of_it_and_nothing_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(backfill, "cluster_session", PlayedLog({"orders": 2}).session)
    config, runs = tmp_path / "config.toml", Runs(str(tmp_path / "runs"))
    config.write_text(f'{LEAST}[pipeline]\ndirectory = "{tmp_path / "runs"}"\n')
    ranges, done = (OffsetRange("orders", 0, 0, 90), OffsetRange("orders", 1, 0, 90)), {TopicPartition("orders", 0): 60}
    entrypoint = "shop.handlers:handle_order"
    request = backfill.Request().text
    runs.start(
        backfill.JOB, entrypoint, request, RunState(ranges, done, halted={TopicPartition("orders", 1): "bad"}), "a"
    )
    manifests = list(runs.directory.names(".json"))
    said = CliRunner().invoke(
        app, ["pipeline", "backfill", option, "a", "--dry-run", "--json", "--config", str(config)]
    )
    assert said.exit_code == 0, said.exception
    plan = json.loads(said.stdout)
    assert [(each["partition"], each["start"], each["stop"]) for each in plan["ranges"]] == [(0, 60, 90), (1, 0, 90)]
    assert plan["notes"] == ["run a has handled 60 offsets, and goes on with these"]
    assert list(runs.directory.names(".json")) == manifests, "nothing is written"


def begun(directory: Path, group: str, topic: str, request: backfill.Request) -> None:
    """A backfill of that group, named as those of other services may be."""
    state = RunState((OffsetRange(topic, 0, 0, 90),))
    runs = Runs(str(directory / "runs"))
    runs.start(backfill.JOB, "shop.handlers:handle_order", request.text, state, "replay-2026", group)


def config_in(directory: Path) -> Path:
    config = directory / "config.toml"
    config.write_text(f'{LEAST}[pipeline]\ndirectory = "{directory / "runs"}"\n')
    return config


@pytest.mark.parametrize("option", ["--resume", "--begin-or-resume"])
@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["plan", "run"])
def test_another_services_run_of_that_name_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, dry: list[str]
) -> None:
    monkeypatch.setattr(backfill, "check_installed", lambda: None)
    begun(tmp_path, "payments", "payments", backfill.Request())
    said = CliRunner().invoke(
        app, ["pipeline", "backfill", option, "replay-2026", *dry, "--config", str(config_in(tmp_path))]
    )
    assert isinstance(said.exception, ConfigError), said.output
    assert "run 'replay-2026' is of group 'payments', and the settings are of group 'orders'" in str(said.exception)


def test_a_run_that_was_begun_with_another_request_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "cluster_session", PlayedLog({"orders": 2}).session)
    begun(tmp_path, "orders", "orders", backfill.Request(since=5))
    settings = load(config_in(tmp_path), {})
    same = backfill.dry_run_of_named(settings, backfill.Request(since=5), "replay-2026")
    other = backfill.dry_run_of_named(settings, backfill.Request(since=6, topics=("orders",)), "replay-2026")
    assert other.ranges == same.ranges == [OffsetRange("orders", 0, 0, 90)]
    assert [each for each in other.notes if each not in same.notes] == [
        "run replay-2026 was begun with another --from and another --topic, and goes on with that: to have this "
        "command's handled, name another run"
    ]
