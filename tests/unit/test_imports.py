"""What each command loads, and when: a start is mostly imports, and so is `--help`. Processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

SETTINGS = """
[kafka]
bootstrap_servers = ["127.0.0.1:1"]
[group]
id = "orders"
topics = ["orders"]
[handler]
entrypoint = "json:loads"
[http]
port = 0
"""
NEVER = {"confluent_kafka", "rich", "structlog", "pygments", "kunicorn.handler.record", "kunicorn.worker"}
"""The supervisor neither fetches nor handles, and prints no tables."""
LATER = {"kunicorn.supervisor.service", "prometheus_client", "uvloop", "kio.serial", "aiohttp"}
"""What the supervisor loads while the template is at work."""
BESIDE = {"aiohttp"}
"""What nobody waits for before the group is joined."""
_NAME = re.compile(r"^import time: *\d+ \| *\d+ \| *(\S+)$", re.MULTILINE)


def environment() -> dict[str, str]:
    """Of this machine, but for its settings."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KUNICORN_")}
    return {**environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def loaded(*arguments: str | Path, code: int = 0) -> set[str]:
    """What is imported once `kunicorn` with these arguments has ended, with that exit code."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kunicorn", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=240, env=environment(),
    )  # fmt: skip
    assert done.returncode == code
    return set(_NAME.findall(done.stderr))


@pytest.mark.parametrize("arguments", ["--help", "--version", "run --help"])
def test_help_loads_no_settings_and_nothing_that_talks_to_kafka(arguments: str) -> None:
    names = loaded(*arguments.split())
    assert "kunicorn.commands.cli" in names
    assert not names & (NEVER | LATER | {"asyncio", "kunicorn.settings", "msgspec", "ssl"})


@pytest.mark.parametrize("refused", [("session_timeout_ms = 1\n", ()), ("", ("--for", "long"))])
def test_what_is_refused_is_refused_before_any_process_is_started(
    refused: tuple[str, tuple[str, ...]], tmp_path: Path
) -> None:
    setting, options = refused
    config = tmp_path / "config.toml"
    config.write_text(SETTINGS.replace("[handler]", setting + "[handler]"))
    names = loaded("run", "--config", config, *options, code=2)
    assert "kunicorn.settings" in names
    assert "kunicorn.supervisor.workers.spawn" not in names


@pytest.fixture(scope="module")
def of_run(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a service imports, in order, that finds no broker and is told to stop once its pages are served."""
    directory = tmp_path_factory.mktemp("run")
    config = directory / "config.toml"
    config.write_text(SETTINGS)
    imports = directory / "imports"
    with imports.open("w") as file:
        command = [sys.executable, "-X", "importtime", "-m", "kunicorn", "run", "--config", str(config)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment())
        assert process.stdout is not None
        said = next((line for line in process.stdout if "serving /livez" in line), "")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
    assert said
    return _NAME.findall(imports.read_text())


def test_a_stop_while_the_service_still_loads_is_one_in_order(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(SETTINGS)
    command = [sys.executable, "-m", "kunicorn", "run", "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(children.read_text, "the template to be started")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "SIGTERM: stopping" in said


def test_the_template_is_started_before_what_only_the_supervisor_needs(of_run: list[str]) -> None:
    before = set(of_run[: of_run.index("kunicorn.supervisor.workers.spawn")])
    assert "kunicorn.settings" in before, "settings that are wrong are told before any process is started"
    assert not before & LATER


def test_the_supervisor_never_loads_what_workers_and_tables_need(of_run: list[str]) -> None:
    assert not {name for name in of_run if name in NEVER or name.startswith("kunicorn.worker.")}


def test_nobody_waits_for_the_http_server_to_be_loaded(of_run: list[str]) -> None:
    before = set(of_run[: of_run.index("kunicorn.supervisor.service")])
    assert not before & BESIDE
    assert "aiohttp.web" in of_run
