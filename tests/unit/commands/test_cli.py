"""The commands as people call them: processes of their own, judged by what they print and how they exit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kunicorn import __version__
from kunicorn.commands import cli_group, dlq, topics
from kunicorn.commands.cli import app
from kunicorn.commands.dlq_topic import Selection
from tests.unit.settings.files import LEAST


def kunicorn(
    *arguments: str | Path, cwd: Path | None = None, config: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`kunicorn` with these arguments, and without this machine's settings; `config` is KUNICORN_CONFIG."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KUNICORN_")}
    if config is not None:
        environ["KUNICORN_CONFIG"] = str(config)
    return subprocess.run(
        [sys.executable, "-m", "kunicorn", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=240,
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_version_is_said() -> None:
    done = kunicorn("--version")
    assert (done.returncode, done.stdout) == (0, f"kunicorn {__version__}\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_somebody_has_closed_is_nothing_and_its_number_nobody_elses(closed: str, tmp_path: Path) -> None:
    command = f'exec "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "kunicorn", "config", "show", "--config", tmp_path / "none"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert done.stdout == "", "no error is printed in place of an answer"
    assert ("there is no file" in done.stderr) == ("2>&-" not in closed)


def test_saying_the_version_loads_nothing_heavy() -> None:
    program = (
        "import sys; from kunicorn.commands import cli\n"
        "heavy = {'aiohttp', 'confluent_kafka', 'kio', 'pydantic', 'rich', 'uvloop', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "[]\n"


def test_help_shows_commands_examples_and_exit_codes() -> None:
    text = kunicorn("--help").stdout
    for words in ("run ", "check ", "demo ", "kunicorn check --config config.toml", "3 the handler cannot be loaded"):
        assert words in text


def test_the_file_that_kunicorn_config_names_is_read_unless_the_option_names_another(tmp_path: Path) -> None:
    mounted, other = tmp_path / "mounted.toml", tmp_path / "other.toml"
    mounted.write_text(LEAST)
    other.write_text(LEAST.replace('topics = ["', 'topics = ["other-'))
    by_variable = kunicorn("config", "show", cwd=tmp_path, config=mounted)
    assert (by_variable.returncode, "other-" in by_variable.stdout) == (0, False)
    by_option = kunicorn("config", "show", "--config", other, cwd=tmp_path, config=mounted)
    assert (by_option.returncode, "other-" in by_option.stdout) == (0, True)


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def test_every_command_has_help_without_loading_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUNICORN_CONFIG", raising=False)
    of_a_process = kunicorn("offsets", "reset", "--help", cwd=tmp_path)
    assert (of_a_process.returncode, of_a_process.stderr) == (0, "")
    assert len(of_a_process.stdout.splitlines()) > 6
    for name, _ in commands(typer.main.get_command(app)):
        done = CliRunner().invoke(app, [*name.split(), "--help"])
        assert (done.exit_code, done.stderr) == (0, ""), name
        assert len(done.stdout.splitlines()) > 6, name


NO_RESULT_FOR_A_PROGRAM = {
    "run": "the service; its log is JSON by [log] format",
    "completion": "a script for a shell",
    "config schema": "JSON as it is",
}


def test_every_command_speaks_to_programs() -> None:
    silent = {
        name
        for name, command in commands(typer.main.get_command(app))
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert silent == NO_RESULT_FOR_A_PROGRAM.keys()


def test_every_command_is_on_the_page_of_commands() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
    rows = " ".join(re.findall(r"^\| (`.*?`[^|]*) \|", page, re.MULTILINE))
    named = [name for name, _ in commands(typer.main.get_command(app)) if not name.startswith("pipeline ")]
    assert [name for name in named if not re.search(rf"[` ]{name.split()[-1]}[` ]", rows)] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(shell: str) -> None:
    done = kunicorn("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_KUNICORN_COMPLETE" in done.stdout


def test_a_shell_that_asks_what_may_follow_is_told_without_any_file(tmp_path: Path) -> None:
    asked = {"_KUNICORN_COMPLETE": "complete_bash", "COMP_WORDS": "kunicorn offsets re", "COMP_CWORD": "2"}
    environ = {**os.environ, **asked, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kunicorn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=tmp_path, timeout=240)
    assert (done.returncode, done.stdout.split()) == (0, ["reset"])


def test_the_settings_in_force_are_shown_with_their_origin_and_as_json(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LEAST + "[http]\ntoken = 'correct-horse-battery'\n")
    done = kunicorn("config", "show", "--config", path)
    assert done.returncode == 0
    assert f'id = "orders"  # {path}' in done.stdout
    told = kunicorn("config", "show", "--config", path, "--json")
    assert json.loads(told.stdout)["workers"]["max_crashes"] == 2
    assert "battery" not in done.stdout + told.stdout
    schema = json.loads(kunicorn("config", "schema", cwd=tmp_path).stdout)
    assert schema["properties"].keys() >= {"kafka", "group", "handler"}


def test_a_terminal_that_has_not_the_character_is_shown_its_number_and_all_the_rest() -> None:
    program = "from kunicorn.commands import cli; cli.app.command('lagging')(lambda: print('… and 3 more')); cli.main()"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, "lagging"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2026 and 3 more\n", "")


def test_a_service_that_does_not_run_is_told_with_exit_code_2(tmp_path: Path) -> None:
    done = kunicorn("status", "--url", "http://127.0.0.1:1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kunicorn: no service answers at http://127.0.0.1:1: ")


@pytest.mark.parametrize("arguments", [[], ["--to-earliest", "--to-latest"]])
def test_a_reset_that_does_not_say_where_to_is_refused_before_any_broker_is_asked(
    arguments: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LEAST)
    done = kunicorn("offsets", "reset", "--config", path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("kunicorn: say exactly one of --to-earliest, --to-latest,")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            "pause orders:0 orders:1-",
            "'orders:1-': not a topic and its partitions; write orders, orders:7 or orders:0-3",
        ),
        ("resume orders:x", "'orders:x': not a topic and its partitions; write orders, orders:7 or orders:0-3"),
        ("seek orders:3-1 --latest", "'orders:3-1': the range ends before it begins; write orders:1-3"),
    ],
)
def test_of_several_partitions_the_one_that_is_none_is_named_before_any_service_is_asked(
    command: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(LEAST)
    done = kunicorn(*command.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"kunicorn: {why}\n")


def test_an_offset_that_kafka_cannot_have_is_refused_before_any_service_is_asked(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(LEAST)
    done = kunicorn("seek", "orders:0", "--to-offset", str(2**63), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Invalid value for '--to-offset'" in done.stderr


def test_offsets_are_shown_in_one_format_at_a_time(tmp_path: Path) -> None:
    done = kunicorn("offsets", "show", "--json", "--csv", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kunicorn: --csv and --json both say how to answer: choose one\n"


def test_letters_given_up_after_a_time_and_before_an_earlier_one_are_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(LEAST)
    done = kunicorn("dlq", "replay", "--since", "1h", "--until", "2h", "--yes", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "kunicorn: --since is not before --until: exchange the two\n")


def test_letters_are_found_by_a_key_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's `--key $'\\xff'` reaches Python as a surrogate, which UTF-8 does not have."""
    path = tmp_path / "config.toml"
    path.write_text(LEAST)
    chosen: list[Selection] = []
    monkeypatch.setattr(dlq, "run", lambda settings, selection, limit, **_: chosen.append(selection))
    key = os.fsdecode(b"\xff-\xc3\xa9")
    done = CliRunner().invoke(app, ["dlq", "replay", "--yes", "--config", str(path), "--key", key])
    assert (done.exit_code, done.exception) == (0, None)
    assert [each.key for each in chosen] == [b"\xff-\xc3\xa9"]


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
        "  handler.mod: unknown setting; did you mean mode?",
        "  http.port = -1: too small; the least is 0",
    ]


def test_an_unknown_command_is_refused_with_the_one_that_was_meant() -> None:
    done = kunicorn("rnu")
    assert done.returncode == 2
    assert "run" in done.stderr


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("check", "a topic that is just being made are waited for"),
        ("replay-one", "dead letters, retries and outputs that it would have made are shown"),
        ("pipeline reconcile", "Ranges and sums, for a program."),
    ],
)
def test_help_names_all_that_a_command_waits_for_or_shows(command: str, told: str) -> None:
    assert told in " ".join(kunicorn(*command.split(), "--help").stdout.split())


@pytest.mark.parametrize("seconds", ["0", "soon", "nan"])
def test_the_demo_refuses_a_time_that_is_none(seconds: str) -> None:
    done = kunicorn("demo", "--seconds", seconds)
    assert done.returncode == 2
    assert "--seconds" in done.stderr


def test_somebody_who_ends_the_input_at_the_question_has_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-D, or Ctrl-C: typer alone would exit with 1, as for a bug."""
    monkeypatch.setattr(cli_group, "check_confirmable", lambda **_: None)
    answers: list[bool] = []
    monkeypatch.setattr(topics, "apply", lambda _settings, _say, confirm, **_: answers.append(confirm()))
    path = tmp_path / "config.toml"
    path.write_text(LEAST)
    assert CliRunner().invoke(app, ["topics", "apply", "--config", str(path)], input="").exit_code == 0
    assert answers == [False]


def test_an_interpreter_that_may_not_be_executed_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(LEAST)
    (python := tmp_path / "python").touch(mode=0o644)
    program = (
        f"import sys; sys.executable = {str(python)!r}\n"
        f"sys.argv = ['kunicorn', 'run', '--config', {str(tmp_path / 'config.toml')!r}]\n"
        "from kunicorn.commands.cli import main; main()"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"no process can be started with {python}: Permission denied" in done.stderr
