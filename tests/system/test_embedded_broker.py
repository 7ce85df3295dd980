"""`kunicorn broker` as a newcomer's Kafka: what no page shows of it. README, tutorial and cookbook have the rest."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kunicorn.commands.broker import WHAT_IT_IS_NOT
from tests.kafka.ports import kept_port
from tests.markdown import ROOT
from tests.system.embedded import Desk
from tests.waiting import wait_until

CONFIG = """\
[kafka]
bootstrap_servers = ["127.0.0.1:{port}"]
[group]
id = "shop"
topics = ["orders"]
[handler]
entrypoint = "handlers:handle"
[workers]
count = 2
"""
HANDLERS = """\
import json

def handle(record):
    print("handled", json.loads(record.value)["id"])
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG.format(port=kept_port()))
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


@contextmanager
def broker(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command, and its first line; with --json that is all that it says."""
    command = [sys.executable, "-m", "kunicorn", "broker", *arguments]
    environ = Desk(directory).everything
    with subprocess.Popen(
        command, cwd=directory, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_a_service_goes_on_with_a_broker_that_was_started_again_at_its_port(shop: Path) -> None:
    """The new broker knows neither the group nor its offsets. It takes a commit for a group that it does not know, so
    what was handled before is handled again or not, by what comes first; what is behind that is handled in any case."""
    desk = Desk(shop)
    with ExitStack() as later, ExitStack() as first:
        first.enter_context(desk.broker("kunicorn broker --seed 10"))
        with desk.running("kunicorn run") as log:
            wait_until(lambda: handled(log) >= set(range(10)), "ten orders", 120)
            first.close()
            later.enter_context(desk.broker("kunicorn broker --seed 30"))
            wait_until(lambda: handled(log) >= set(range(30)), "the orders that the first broker did not have", 180)


def handled(log: Path) -> set[int]:
    """The orders' ids that the handler has printed."""
    return {int(number) for number in re.findall(r"^handled (\d+)$", log.read_text(), re.MULTILINE)}


def test_a_stopped_group_is_put_elsewhere_and_no_page_and_no_broker_says_that_it_cannot_be(shop: Path) -> None:
    desk = Desk(shop)
    with desk.broker("kunicorn broker --seed 10 --partitions 1"):
        reset = desk.type("kunicorn offsets reset --to-offset 4 --execute")
        assert (reset.returncode, desk.type("kunicorn offsets show --csv").stdout) == (0, "orders,0,4\n"), reset.stderr
    assert "offsets reset" not in WHAT_IT_IS_NOT
    table = (ROOT / "docs" / "commands.md").read_text().partition("| you want | the embedded broker |")[2]
    (row,) = [line for line in table.splitlines() if "`offsets reset --execute`" in line]
    assert row.split(" | ")[1].startswith("works")


def test_what_takes_a_real_kafka_is_said_so_and_not_taken_for_brokers_that_do_not_answer(shop: Path) -> None:
    desk = Desk(shop)
    with desk.broker("kunicorn broker --seed 10 --partitions 1"):
        check = desk.type("kunicorn check")
        assert (check.returncode, "is it a Kafka broker?" in check.stdout) == (0, False), check.stdout
        assert "ok      members   not known: the embedded broker does not tell a group's members" in check.stdout
        letters = desk.type("kunicorn dlq list --letters nope")
        assert letters.stderr.endswith("'nope' does not exist on this cluster: create it, or correct --letters\n")
        plan = desk.type("kunicorn topics plan")
        assert (plan.returncode, plan.stdout) == (2, "")
        assert plan.stderr.startswith("kunicorn: the embedded broker tells and changes no topic's settings"), (
            plan.stderr
        )
        for setting, value in (("GROUP__GROUP_PROTOCOL", "consumer"), ("PRODUCING__DELIVERY", "transactions")):
            other = Desk(shop, {f"KUNICORN_{setting}": value}).type("kunicorn check")
            (told,) = [line for line in other.stdout.splitlines() if line.startswith("FAILED")]
            assert (other.returncode, f'= "{value}": the embedded broker' in told) == (2, True), told


def test_the_group_of_a_service_that_has_run_stays_where_it_is_and_the_remedy_is_told(shop: Path) -> None:
    desk = Desk(shop)
    with desk.broker("kunicorn broker --seed 10 --partitions 1"):
        assert desk.type("kunicorn run --until-end").returncode == 0
        reset = desk.type("kunicorn offsets reset --to-earliest --execute")
        assert (reset.returncode, "start the broker again" in reset.stderr) == (2, True), reset.stderr
        assert desk.type("kunicorn offsets show --csv").stdout == "orders,0,10\n"


def test_topics_can_be_named_without_settings_and_any_client_consumes_them(tmp_path: Path) -> None:
    arguments = ["--topic", "orders:3", "--port", "0", "--seed", "30", "--json"]
    with broker(tmp_path, *arguments) as (process, line):
        told = json.loads(line)
        assert told["topics"] == {"orders": 3}
        group = {"group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": told["bootstrap_servers"][0], **group})
        consumer.subscribe(["orders"])
        orders: list[dict[str, object]] = []

        def consumed() -> bool:
            orders.extend(json.loads(message.value() or b"") for message in consumer.consume(30, 0.2))
            return len(orders) == 30

        wait_until(consumed, "thirty orders")
        consumer.close()
        assert {order["id"] for order in orders} == set(range(30))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_the_end_of_the_mock_itself_is_told(tmp_path: Path) -> None:
    with broker(tmp_path, "--topic", "orders:1", "--port", "0", "--json") as (process, line):
        children = Path(f"/proc/{process.pid}/task")
        for child in " ".join((task / "children").read_text() for task in children.iterdir()).split():
            os.kill(int(child), signal.SIGKILL)
        client = Consumer(
            {"bootstrap.servers": json.loads(line)["bootstrap_servers"][0], "group.id": "g", "log_level": 0}
        )
        wait_until(lambda: client.poll(0.1) is None and process.poll() is not None, "the command's end")
        client.close()
        assert process.returncode == 1
        assert process.stderr is not None
        assert "has ended by itself" in process.stderr.read()
