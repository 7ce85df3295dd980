"""What a job says before it begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.errors import ConfigError, HandlerLoadError, ServiceError
from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline import backfill, catch_up, export
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.lake.files import partitioning
from kunicorn.pipeline.lake.tables import DeltaLake
from kunicorn.pipeline.report import DryRun
from kunicorn.pipeline.state import Run, Runs, RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import Settings, load
from kunicorn.text import tell
from tests.unit.pipeline.played_log import PlayedLog
from tests.unit.settings.files import LEAST

RANGES = [OffsetRange("orders", 0, 10, 410), OffsetRange("orders", 1, 0, 100)]
ENTRYPOINT = f"{__name__}:handle_order"
HERE = LEAST.replace("shop.handlers:handle_order", ENTRYPOINT)


def handle_order(record: object) -> None:
    """The settings' handler."""


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
    config.write_text(f'{HERE}[pipeline]\ndirectory = "{tmp_path / "runs"}"\n')
    ranges, done = (OffsetRange("orders", 0, 0, 90), OffsetRange("orders", 1, 0, 90)), {TopicPartition("orders", 0): 60}
    request = backfill.Request().text
    runs.start(
        backfill.JOB, ENTRYPOINT, request, RunState(ranges, done, halted={TopicPartition("orders", 1): "bad"}), "a"
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
    runs.start(backfill.JOB, ENTRYPOINT, request.text, state, "replay-2026", group)


def config_in(directory: Path, text: str = HERE) -> Path:
    config = directory / "config.toml"
    config.write_text(f'{text}[pipeline]\ndirectory = "{directory / "runs"}"\n')
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


@pytest.mark.parametrize(
    ("job", "entrypoint", "why"),
    [
        ("catch-up", ENTRYPOINT, "is a catch-up and no backfill: choose another id"),
        (backfill.JOB, "shop:other", f"is of shop:other, and the settings have {ENTRYPOINT}: resume it with its own"),
    ],
)
def test_a_run_of_another_job_or_handler_is_told_with_what_can_be_done(
    tmp_path: Path, job: str, entrypoint: str, why: str
) -> None:
    state = RunState((OffsetRange("orders", 0, 0, 90),))
    Runs(str(tmp_path / "runs")).start(job, entrypoint, "", state, "nightly", "orders")
    with pytest.raises(ConfigError, match=f"run 'nightly' {why}"):
        backfill.dry_run_of_resumed(load(config_in(tmp_path), {}), "nightly")


@pytest.mark.parametrize("asked", ['[null, null, null, [], null, "more"]', '{"since": 5}', ""])
@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["plan", "run"])
def test_a_run_that_a_later_version_was_asked_more_for_is_left_to_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, dry: list[str]
) -> None:
    monkeypatch.setattr(backfill, "check_installed", lambda: None)
    state = RunState((OffsetRange("orders", 0, 0, 90),))
    Runs(str(tmp_path / "runs")).start(backfill.JOB, ENTRYPOINT, asked, state, "replay-2026", "orders")
    said = CliRunner().invoke(
        app, ["pipeline", "backfill", "--begin-or-resume", "replay-2026", *dry, "--config", str(config_in(tmp_path))]
    )
    assert isinstance(said.exception, ConfigError), said.output
    assert str(said.exception).startswith("run 'replay-2026' was asked for something that kunicorn ")


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


PLANS: dict[str, Callable[[Settings], DryRun]] = {
    "backfill": lambda settings: backfill.dry_run(settings, backfill.Request()),
    "resumed": lambda settings: backfill.dry_run_of_resumed(settings, "replay-2026"),
    "catch-up": catch_up.dry_run,
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        (HERE.replace(":handle_order", ":handle_ordre"), HandlerLoadError, "has no 'handle_ordre'"),
        (f'{HERE}ordering = "key"\n', ConfigError, "handler.ordering = 'key', but the handler is a plain function"),
        (f'{HERE}[producing]\ndelivery = "at_least_once"\n', ConfigError, "jobs on Spark send nothing that a handler"),
    ],
    ids=["no handler", "no threads", "outputs"],
)
def test_a_plan_is_refused_where_the_run_would_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: Callable[[Settings], DryRun],
    settings: str,
    error: type[ServiceError],
    why: str,
) -> None:
    for job in (backfill, catch_up):
        monkeypatch.setattr(job, "cluster_session", PlayedLog({"orders": 1}).session)
    loaded = load(config_in(tmp_path, settings), {})
    state = RunState((OffsetRange("orders", 0, 0, 90),))
    runs, request = Runs(loaded.pipeline.directory), backfill.Request().text
    runs.start(backfill.JOB, loaded.handler.entrypoint, request, state, "replay-2026", "orders")
    with pytest.raises(error, match=why):
        plan(loaded)


def test_the_plan_of_a_run_with_the_name_of_a_stream_is_refused_as_the_run_would_be(tmp_path: Path) -> None:
    settings = load(config_in(tmp_path), {})
    Runs(settings.pipeline.directory).enter_stream("nightly", ENTRYPOINT, "orders.stream")
    with pytest.raises(ConfigError, match="there is a stream 'nightly', whose outcomes lie in the same place"):
        backfill.dry_run_of_named(settings, backfill.Request(), "nightly")


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers with something to handle, and an empty group that is behind."""
    for module in (backfill, export):
        monkeypatch.setattr(module, "cluster_session", PlayedLog({"orders": 1}).session)
    monkeypatch.setattr(catch_up, "wait_until_empty", lambda *_: None)
    monkeypatch.setattr(catch_up, "_standing", lambda _: catch_up.TakeOver({}, RANGES, {}, {}, {}, []))
    monkeypatch.setattr(catch_up, "group_members", lambda _: [])


@pytest.mark.parametrize("job", ["backfill", "catch-up"])
@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("replay-2026", "there is a run 'replay-2026' already"),
        ("nightly", "there is a stream 'nightly', whose outcomes lie in the same place"),
        ("a/b", "'a/b' is no id of a run"),
    ],
)
def test_a_plan_is_refused_under_a_name_under_which_the_run_would_be(
    tmp_path: Path, job: str, name: str, why: str
) -> None:
    config = config_in(tmp_path)
    begun(tmp_path, "orders", "orders", backfill.Request())
    Runs(str(tmp_path / "runs")).enter_stream("nightly", ENTRYPOINT, "orders.stream")
    said = CliRunner().invoke(app, ["pipeline", job, "--dry-run", "--run", name, "--config", str(config)])
    assert isinstance(said.exception, ConfigError), said.output
    assert why in str(said.exception)


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["plan", "run"])
@pytest.mark.parametrize("job", ["backfill", "catch-up", "export"])
@pytest.mark.usefixtures("behind")
def test_a_master_that_no_job_takes_is_refused_before_a_run_of_the_name_is_there(
    tmp_path: Path, job: str, dry: list[str]
) -> None:
    own = [str(tmp_path / "runs")] if job == "export" else ["--run", "replay-2026"]
    arguments = [*own, *dry, "--master", "sc://spark:15002", "--config", str(config_in(tmp_path))]
    said = CliRunner().invoke(app, ["pipeline", job, *arguments])
    assert isinstance(said.exception, ConfigError), said.output
    assert "--master sc://spark:15002 is a server of Spark Connect" in str(said.exception)
    assert not (tmp_path / "runs").exists(), "the name is still free"


def test_the_plan_of_an_export_makes_no_table_and_is_refused_where_its_table_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "cluster_session", PlayedLog({"orders": 1}).session)
    settings, place = load(config_in(tmp_path), {}), tmp_path / "lake"
    planned = export.dry_run(settings, Directory(str(place)), Form(delta=True))
    assert planned.ranges == [OffsetRange("orders", 0, 0, 100)]
    assert not place.exists()
    deltalake.DeltaTable.create(str(place), pa.schema([*SCHEMA, pa.field("date", pa.date32())]), partition_by=["topic"])
    with pytest.raises(ConfigError, match="is partitioned by topic, and not by date: name another directory"):
        export.dry_run(settings, Directory(str(place)), Form(delta=True))


def test_the_plan_of_an_export_has_no_round_that_its_table_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a driver that was killed between the table's commit and its manifest."""
    monkeypatch.setattr(export, "cluster_session", PlayedLog({"orders": 1}).session)
    settings, target = load(config_in(tmp_path), {}), Directory(str(tmp_path / "lake"))
    first, whole = OffsetRange("orders", 0, 0, 60), OffsetRange("orders", 0, 0, 100)
    export._Known(target, Form(delta=True), SCHEMA).save(RunState((whole,), underway=(first,)))
    lake = DeltaLake(target, SCHEMA, partitioning("day"))
    lake.open()
    lake.commit(1, [], {first.tp: 60})
    manifests = target.names(".json")
    assert export.dry_run(settings, target, Form(delta=True)).ranges == [OffsetRange("orders", 0, 60, 100)]
    assert target.names(".json") == manifests, "nothing is written"


def test_a_delta_table_that_somebody_has_made_is_gone_on_with_though_its_log_has_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are Parquet, as an engine writes one after ten changes."""
    monkeypatch.setattr(export, "cluster_session", PlayedLog({"orders": 1}).session)
    settings, target = load(config_in(tmp_path), {}), Directory(str(tmp_path / "lake"))
    schema = pa.schema([*SCHEMA, pa.field("date", pa.date32())])
    deltalake.DeltaTable.create(target.url, schema, partition_by=["date"]).create_checkpoint()
    assert target.names(".parquet") == ["_delta_log/00000000000000000000.checkpoint.parquet"]
    assert export.dry_run(settings, target, Form(delta=True)).ranges == [OffsetRange("orders", 0, 0, 100)]
    target.write("date=2026-01-01/a.parquet", b"")
    with pytest.raises(ConfigError, match="has Parquet files of another's; name another directory"):
        export.dry_run(settings, target, Form(delta=True))


def test_a_plan_goes_by_the_pace_of_the_run_that_began_last_whatever_its_name(tmp_path: Path) -> None:
    runs, whole = Runs(str(tmp_path)), OffsetRange("orders", 0, 0, 100)
    for name, day, seconds in (("weekly", 1, 10.0), ("again", 2, 20.0), ("nightly", 3, 0.0)):
        state = RunState((whole,), {whole.tp: 100 if seconds else 0}, seconds=seconds)
        runs.save(Run(name, backfill.JOB, ENTRYPOINT, f"2026-01-0{day}T00:00:00+00:00", state))
    assert runs.pace(backfill.JOB, ENTRYPOINT) == 5.0, "of the last one that has moved"
    with pytest.raises(ConfigError, match="the latest there: weekly, again, nightly"):
        runs.read("none")
