"""The tutorial's six steps, in their own words: the files that each tells to write, the commands it tells to type."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.charts import HELMS, template
from tests.deploy.tools import Tools
from tests.kafka import KafkaCluster
from tests.kafka.ports import kept_port
from tests.markdown import ROOT, blocks, commands, write_files
from tests.system.embedded import COMMITS_SOON, LOOK_SECONDS, Desk
from tests.waiting import wait_until

TUTORIAL = ROOT / "docs" / "tutorial"
STEPS = sorted(TUTORIAL.glob("[0-9]-*.md"))


def desk_for(step: int, directory: Path) -> tuple[Desk, Path]:
    page = STEPS[step - 1]
    write_files(page, directory, kept_port())
    return Desk(directory, {"KUNICORN_HTTP__PORT": str(kept_port())}), page


def orders_in(database: Path, what: str = "count(*)") -> int:
    with sqlite3.connect(database, timeout=30) as db:
        return int(db.execute(f"SELECT {what} FROM orders").fetchone()[0])


def test_there_are_six_steps_and_each_leads_to_the_next() -> None:
    assert [page.name[0] for page in STEPS] == list("123456")
    for page, following in itertools.pairwise(STEPS):
        assert f"]({following.name})" in page.read_text().splitlines()[-1]
    index = (TUTORIAL / "README.md").read_text()
    assert all(f"]({page.name})" in index for page in STEPS)


def test_step_1_a_first_handler_prints_every_order(tmp_path: Path) -> None:
    desk, page = desk_for(1, tmp_path)
    desk = Desk(tmp_path, {**desk.environ, **COMMITS_SOON})
    broker, check, run, status, lag = commands(page)
    tried = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, check=False)
    assert tried.returncode == 0, tried.stdout
    with desk.broker(broker):
        assert desk.type(check).returncode == 0
        with desk.running(run) as log:
            wait_until(lambda: len(re.findall(r"^order \d+ of ", log.read_text(), re.M)) == 1000, "1,000 orders")
            wait_until(lambda: "stable" in desk.type(status).stdout, "the status page", every=LOOK_SECONDS)
            wait_until(lambda: re.search(r"orders +8 +0 ", desk.type(lag).stdout), "no lag", every=LOOK_SECONDS)


def test_step_2_failures_halt_then_become_dead_letters_then_are_repaired(tmp_path: Path) -> None:
    page = STEPS[1]
    desk, _ = desk_for(1, tmp_path)
    failing, _, repaired = (block.text for block in blocks(page) if block.file)
    (tmp_path / "shop" / "handlers.py").write_text(failing)
    broker, run, status, broker_again, run_again, letters, replay = commands(page)
    halting = "ValueError: the bank refuses 204"
    with desk.broker(broker), desk.running(run) as log:
        wait_until(lambda: halting in log.read_text(), "the first failure")
        wait_until(lambda: halting in desk.type(status).stdout, "halted partitions", every=LOOK_SECONDS)
    port = re.search(r"127.0.0.1:(\d+)", (tmp_path / "config.toml").read_text())
    assert port
    write_files(page, tmp_path, int(port[1]))
    (tmp_path / "shop" / "handlers.py").write_text(failing)
    refused = sum(5 + number * 7 % 200 > 200 for number in range(1000))
    with desk.broker(broker_again), desk.running(run_again) as log:
        wait_until(lambda: log.read_text().count("is paid") == 1000 - refused, "the other orders")
        refusal = "ValueError: the bank refuses"
        wait_until(lambda: refusal in desk.type(letters).stdout, "dead letters", every=LOOK_SECONDS)
        (tmp_path / "shop" / "handlers.py").write_text(repaired)
        wait_until(lambda: "reload completed" in log.read_text(), "the reload")
        sent = desk.type(replay)
        assert f"sent back and acknowledged: {refused}" in sent.stdout
        wait_until(lambda: log.read_text().count("is paid") == 1000, "the repaired orders")


def test_step_3_a_service_that_is_killed_enters_each_order_once(tmp_path: Path) -> None:
    desk, page = desk_for(3, tmp_path)
    broker, run, count = commands(page)
    database = tmp_path / "orders.db"
    # How long the group waits for the member that was killed is not what this is about.
    short = {"KUNICORN_GROUP__SESSION_TIMEOUT_MS": "6000", "KUNICORN_GROUP__ALLOW_SHORT_SESSION_TIMEOUT": "true"}
    desk = Desk(tmp_path, {**desk.environ, **short, "KUNICORN_LOG__FORMAT": "json"})
    with desk.broker(broker):
        with desk.running(run, exit_code=-signal.SIGKILL) as log:
            wait_until(lambda: database.exists() and "is ready" in log.read_text(), "the workers")
            wait_until(lambda: orders_in(database) > 0, "a first order", every=0.001)
            supervisor = re.search(r'"process":"supervisor","pid":(\d+)', log.read_text())
            assert supervisor
            os.kill(int(supervisor[1]), signal.SIGKILL)
        with desk.running(run):
            wait_until(lambda: orders_in(database) >= 1000, "all orders")
    assert desk.type(count).stdout == "1000 orders, 1000 different ones\n"


def test_step_4_batches_are_entered_in_one_statement(tmp_path: Path) -> None:
    desk, page = desk_for(4, tmp_path)
    broker, run, count = commands(page)
    with desk.broker(broker), desk.running(run) as log:
        wait_until(lambda: (tmp_path / "batches.db").exists() and "batch of" in log.read_text(), "a batch")
        wait_until(lambda: orders_in(tmp_path / "batches.db") == 1000, "all orders")
        assert log.read_text().count("batch of") < 200
    assert desk.type(count).stdout == "1000 orders\n"


def test_step_5_the_settings_are_shown_and_the_chart_takes_the_values(tmp_path: Path, tools: Tools) -> None:
    for earlier in (1, 2, 3, 4):
        desk_for(earlier, tmp_path)  # Whoever comes to this step has what these have left.
    desk, page = desk_for(5, tmp_path)
    broker, check, show = commands(page)
    config = tmp_path / "config.toml"
    with desk.broker(broker):
        assert desk.type(check).returncode == 0
        assert "entrypoint" in desk.type(show).stdout
        brokers = re.findall(r"^bootstrap_servers = .*$", config.read_text(), re.M)
        for helm in HELMS:
            rendered = template(tools, helm, files=[tmp_path / "values.yaml"])
            assert "registry.example.com/shop/orders:1" in rendered
            documents = [each for each in yaml.safe_load_all(rendered) if each and each["kind"] == "ConfigMap"]
            (in_the_pod,) = (each["data"]["config.toml"] for each in documents if "config.toml" in each["data"])
            config.write_text(re.sub(r"^bootstrap_servers = .*$", brokers[0], in_the_pod, flags=re.M))
            judged = desk.type(check)
            assert judged.returncode == 0, judged.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_step_6_the_same_handler_runs_over_history_on_spark(tmp_path: Path, kafka: KafkaCluster) -> None:
    page = STEPS[5]
    write_files(page, tmp_path, 9092)
    for path in (tmp_path / "config.toml", tmp_path / "produce.py"):
        path.write_text(path.read_text().replace("127.0.0.1:9092", kafka.bootstrap))
    desk = Desk(tmp_path)
    produce, dry_run, backfill = commands(page)
    assert desk.type(produce).returncode == 0
    planned = desk.type(dry_run)
    assert "1,000 offsets" in planned.stdout, planned
    done = desk.type(backfill, "--json", timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["records"] == 1000
    corrected = sorted((tmp_path / "corrected").iterdir(), key=lambda path: int(path.stem))
    assert json.loads(corrected[200].read_text()) == {"id": 200, "total": 200, "tax": 38}
    assert len(corrected) == 1000
