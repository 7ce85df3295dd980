"""The cookbook's recipes: each one's files are written, and its own test or its commands are run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kunicorn.commands.broker import produce
from tests.fakes.collector import collector, total
from tests.kafka import KafkaCluster
from tests.kafka.ports import kept_port
from tests.markdown import ROOT, commands, files, write_files
from tests.postgres import postgres
from tests.system.embedded import SERVICE, Desk
from tests.waiting import wait_until

COOKBOOK = ROOT / "docs" / "cookbook"
INDEX = COOKBOOK / "README.md"
PAGES = sorted(page for page in COOKBOOK.glob("*.md") if page != INDEX)
TESTED = [page for page in PAGES if any(name.startswith("test_") for name in files(page))]
NEEDS = {
    "clickhouse": ("chdb", "half a gigabyte: pip install chdb"),
    "dataframes": ("polars", "pip install polars duckdb"),
    "django": ("django", "pip install django"),
    "sentry": ("sentry_sdk", "pip install sentry-sdk"),
}
"""Packages that are not kunicorn's: `make test` installs them, but for the first, which is too large."""


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    with postgres() as started:
        yield started


def desk_for(page: Path, directory: Path) -> Desk:
    """A directory with the page's files, and what all recipes have in common."""
    port = kept_port()
    write_files(INDEX, directory, port)
    write_files(page, directory, port)
    config = directory / "config.toml"
    own = config.read_text() if config.exists() else '[handler]\nentrypoint = "handled:handle"\n'
    (directory / "handled.py").write_text("def handle(record):\n    pass\n")
    config.write_text((directory / "common.toml").read_text() + own)
    return Desk(directory)


def test_there_are_at_least_twelve_and_the_index_names_each() -> None:
    assert len(PAGES) >= 12
    assert {page.name for page in PAGES} == set(re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text()))


def test_each_recipe_is_run_by_a_test() -> None:
    this = Path(__file__).read_text()
    untested = [page.stem for page in PAGES if page not in TESTED and f'COOKBOOK / "{page.name}"' not in this]
    assert not untested


@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_a_recipes_own_test_passes(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    package, advice = NEEDS.get(page.stem, ("kunicorn", ""))
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed ({advice})")
    desk = desk_for(page, tmp_path)
    path = os.pathsep.join([str(SERVICE), str(tmp_path)])
    # Of the plugins that are installed here, only kunicorn's own: each costs every recipe a moment.
    environ = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if page.stem == "postgresql":
        environ["SHOP_DSN"] = request.getfixturevalue("dsn")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "kunicorn.testing.plugin"],
        cwd=desk.directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout


def test_each_tenants_changes_are_applied_in_their_order(tmp_path: Path) -> None:
    page = COOKBOOK / "tenants.md"
    desk = desk_for(page, tmp_path)
    broker, run = commands(page)
    with desk.broker(broker):
        ran = desk.type(run)
    assert ran.returncode == 0, ran.stdout[-3000:]
    applied = [(tenant, int(change)) for tenant, change in re.findall(r"^tenant (\S+) change (\d+)$", ran.stdout, re.M)]
    assert len(applied) == 1000
    for tenant in {tenant for tenant, _ in applied}:
        changes = [change for each, change in applied if each == tenant]
        assert changes == sorted(changes)
    assert [change for _, change in applied] != sorted(change for _, change in applied)


def test_a_new_handler_handles_what_the_old_one_has_handled(tmp_path: Path) -> None:
    page = COOKBOOK / "beside.md"
    desk = desk_for(page, tmp_path)
    broker, old, new = commands(page)
    variables, command = re.findall(r"(KUNICORN_\w+)=(\S+)", new), new[new.index("kunicorn run") :]
    with desk.broker(broker):
        assert desk.type(old).returncode == 0
        assert Desk(tmp_path, dict(variables)).type(command).returncode == 0
    handled = {kind: {path.name: path.read_text() for path in (tmp_path / kind).iterdir()} for kind in ("old", "new")}
    assert len(handled["old"]) == 200
    assert handled["old"] == handled["new"]


def test_a_group_is_saved_given_to_another_moved_in_time_and_put_back(tmp_path: Path, kafka: KafkaCluster) -> None:
    page = COOKBOOK / "moving-a-group.md"
    desk = desk_for(page, tmp_path)
    kafka.create_topic("orders", 2)
    produce(kafka.bootstrap, "orders", 100)
    config = tmp_path / "config.toml"
    config.write_text(re.sub(r"127\.0\.0\.1:\d+", kafka.bootstrap, config.read_text()))
    show, rename, plan, go_back, undo = commands(page)
    assert desk.type("kunicorn run --until-end").returncode == 0
    saved = desk.type(show.partition(" >")[0])
    (tmp_path / "before.csv").write_text(saved.stdout)
    assert sum(int(line.split(",")[2]) for line in saved.stdout.split()) == 100
    renamed = Desk(tmp_path, dict(re.findall(r"(KUNICORN_\w+)=(\S+)", rename)))
    assert renamed.type(rename[rename.index("kunicorn ") :]).returncode == 0
    assert renamed.type(show.partition(" >")[0]).stdout == saved.stdout
    assert "100 offsets would be handled again" in desk.type(plan).stdout
    assert desk.type(go_back).returncode == 0
    assert desk.type(show.partition(" >")[0]).stdout != saved.stdout
    assert desk.type(undo).returncode == 0
    assert desk.type(show.partition(" >")[0]).stdout == saved.stdout


def test_spans_and_metrics_come_to_one_collector_in_the_trace_of_the_producer(tmp_path: Path) -> None:
    page = COOKBOOK / "opentelemetry.md"
    desk = desk_for(page, tmp_path)
    (run,) = commands(page)
    with collector() as there, desk.broker("kunicorn broker --seed 20"):
        variable, url = "OTEL_EXPORTER_OTLP_ENDPOINT", there.url.removesuffix("/v1/metrics")
        assert run.startswith(f"{variable}=http://127.0.0.1:4318 ")
        ran = Desk(tmp_path, {variable: url}).type(run[run.index("kunicorn run") :])
        assert ran.returncode == 0, ran.stdout[-3000:]
    scopes = [scope for each in there.traces for spans in each.resource_spans for scope in spans.scope_spans]
    names = Counter(span.name for scope in scopes for span in scope.spans)
    assert names == {"process orders": 20, "charge": 20}
    assert total(there.latest()["messaging.client.consumed.messages"], messaging__destination__name="orders") == 20


def test_lines_of_a_service_name_tenant_place_and_outcome(tmp_path: Path) -> None:
    desk = desk_for(COOKBOOK / "logging.md", tmp_path)
    with desk.broker("kunicorn broker --seed 20"):
        ran = Desk(tmp_path, {"KUNICORN_LOG__FORMAT": "json"}).type("kunicorn run --until-end")
    assert ran.returncode == 0, ran.stdout[-3000:]
    said = [json.loads(line) for line in (ran.stdout + ran.stderr).splitlines() if line.startswith("{")]
    told = [line for line in said if line["logger"] == "shop"]
    assert len({(line["topic"], line["partition"], line["offset"]) for line in told}) == len(told) == 20
    assert {(line["event"], line["tenant"], line["outcome"]) for line in told} == {("handled", "none", "Done")}


def test_topics_that_settings_need_are_created_once_and_found_to_be_there(tmp_path: Path, kafka: KafkaCluster) -> None:
    page = COOKBOOK / "topics.md"
    desk = desk_for(page, tmp_path)
    if "orders" not in kafka.admin().list_topics(timeout=60).topics:
        kafka.create_topic("orders", 2)
    config = tmp_path / "config.toml"
    config.write_text(re.sub(r"127\.0\.0\.1:\d+", kafka.bootstrap, config.read_text()))
    plan, apply, check = commands(page)
    planned = desk.type(plan)
    names = ["shop.dead-letters", "shop.retry.10s", "totals"]
    assert [name for name in names if f"+ {name}: " in planned.stdout] == names, planned.stdout
    assert desk.type(check).returncode == 2
    assert desk.type(apply).returncode == 0
    wait_until(lambda: set(names) <= kafka.admin().list_topics(timeout=60).topics.keys(), "the topics")
    checked = desk.type(check)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_record_that_kills_its_process_becomes_a_dead_letter_and_is_looked_at(tmp_path: Path) -> None:
    page = COOKBOOK / "poison.md"
    desk = desk_for(page, tmp_path)
    broker, run, listed, shown, debugged, replay = commands(page)
    with desk.broker(broker):
        ran = desk.type(run)
        assert ran.returncode == 0, ran.stdout[-3000:]
        assert len(set(re.findall(r"^order (\d+)$", ran.stdout, re.M))) == 199
        letter = re.search(r"(\d+)@(\d+) .*orders-(\d+)@(\d+).*WorkerDied", desk.type(listed).stdout)
        assert letter
        # Where the record is depends on its key's partition: the page names one place, as an example.
        told = desk.type(re.sub(r"\d+@\d+$", f"{letter[1]}@{letter[2]}", shown))
        assert "WorkerDied" in told.stdout
        assert '"id": 77' in told.stdout
        looked = re.sub(r"\d+ \d+ --pdb", f"{letter[3]} {letter[4]}", debugged)
        assert desk.type(looked).returncode == 139
        assert "sent back and acknowledged: 1" in desk.type(replay).stdout
