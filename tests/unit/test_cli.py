"""The commands as people call them: processes of their own, judged by what they print and how they exit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kunicorn import __version__
from tests.unit.settings.files import LEAST


def kunicorn(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`kunicorn` with these arguments, and without this machine's settings."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KUNICORN_")}
    return subprocess.run(
        [sys.executable, "-m", "kunicorn", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=60,
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_version_is_said() -> None:
    done = kunicorn("--version")
    assert (done.returncode, done.stdout) == (0, f"kunicorn {__version__}\n")


def test_saying_the_version_loads_nothing_heavy() -> None:
    program = (
        "import sys; from kunicorn import cli\n"
        "heavy = {'aiohttp', 'confluent_kafka', 'kio', 'pydantic', 'structlog', 'uvloop', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "[]\n"


def test_help_shows_commands_examples_and_exit_codes() -> None:
    text = kunicorn("--help").stdout
    for words in ("run ", "check ", "demo ", "kunicorn check --config config.toml", "3 the handler cannot be loaded"):
        assert words in text


@pytest.mark.parametrize("command", ["run", "check", "leave", "demo"])
def test_every_command_has_help_without_loading_a_file(command: str, tmp_path: Path) -> None:
    done = kunicorn(command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 8


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_missing_file_is_a_plain_message_and_exit_code_2(command: str, tmp_path: Path) -> None:
    done = kunicorn(command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kunicorn: there is no file config.toml: name the settings' file with --config")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["run", "check"])
def test_wrong_settings_are_listed_on_standard_error(command: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LEAST + "mod = 'batch'\n[http]\nport = -1\n")
    done = kunicorn(command, "--config", path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"kunicorn: {path}: 2 problems in the settings",
        '  handler.mod = "batch": unknown setting; did you mean mode?',
        "  http.port = -1: too small; the least is 0",
    ]


def test_an_unknown_command_is_refused_with_the_one_that_was_meant() -> None:
    done = kunicorn("rnu")
    assert done.returncode == 2
    assert "run" in done.stderr


@pytest.mark.parametrize("seconds", ["0", "soon", "nan"])
def test_the_demo_refuses_a_time_that_is_none(seconds: str) -> None:
    done = kunicorn("demo", "--seconds", seconds)
    assert done.returncode == 2
    assert "--seconds" in done.stderr
