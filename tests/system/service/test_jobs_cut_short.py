"""Jobs that something ends before their end: a signal, or a limit of their command line. What whoever waits for them is
told by the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.kafka.ports import kept_port
from tests.system.embedded import Desk
from tests.waiting import wait_until

CONFIG = """\
[kafka]
bootstrap_servers = ["127.0.0.1:{port}"]
{source}
[handler]
entrypoint = "handlers:handle"
[workers]
count = 1
"""
GROUP = '[group]\nid = "{name}"\ntopics = ["orders"]'
ASSIGN = '[assign]\npartitions = ["orders"]\nstop = "end"'
HANDLERS = """\
import time

def handle(record):
    time.sleep(0.02)
    print("handled", record.offset)
"""
CUT_SHORT = "stopped before the end"


def desk_with(directory: Path, source: str, port: int) -> Desk:
    """The group has the directory's name, as a broker has groups of several tests."""
    (directory / "config.toml").write_text(CONFIG.format(port=port, source=source.format(name=directory.name)))
    (directory / "handlers.py").write_text(HANDLERS)
    return Desk(directory)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of an embedded broker."""
    number = kept_port()
    with desk_with(tmp_path_factory.mktemp("broker"), GROUP, number).broker():
        yield number


@pytest.mark.parametrize(("source", "options"), [(GROUP, " --until-end"), (ASSIGN, "")])
def test_a_job_that_a_signal_ends_before_its_end_is_not_done(
    tmp_path: Path, port: int, source: str, options: str
) -> None:
    desk = desk_with(tmp_path, source, port)
    with desk.running(f"kunicorn run{options}", exit_code=6) as log:
        wait_until(lambda: "handled 5" in log.read_text(), "the first records")
    assert CUT_SHORT in log.read_text()


@pytest.mark.parametrize(("source", "options"), [(GROUP, " --until-end"), (ASSIGN, "")])
def test_a_job_that_reaches_a_limit_of_its_command_line_first_has_done_as_asked(
    tmp_path: Path, port: int, source: str, options: str
) -> None:
    ran = desk_with(tmp_path, source, port).type(f"kunicorn run{options} --max-records 10")
    assert ran.returncode == 0, ran
    assert CUT_SHORT not in ran.stderr


def test_a_job_that_a_signal_ends_before_it_has_reached_a_broker_is_not_done(tmp_path: Path) -> None:
    desk = desk_with(tmp_path, GROUP, kept_port())
    with desk.running("kunicorn run --until-end", exit_code=6) as log:
        wait_until(lambda: "no broker" in log.read_text(), "the first look for brokers")


@pytest.mark.parametrize("limit", ["--for", "--stop-at"])
def test_a_limit_in_time_ends_a_service_whose_brokers_are_away(tmp_path: Path, limit: str) -> None:
    desk = desk_with(tmp_path, GROUP, kept_port())
    for seconds in (5, 20, 60, 180):
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        ran = desk.type("kunicorn run", limit, "1s" if limit == "--for" else at.isoformat())
        if "lies in the past" not in ran.stderr:  # It does where starting the service takes longer.
            assert ran.returncode == 0, ran
            return
    raise AssertionError("the service takes longer than three minutes to start")
