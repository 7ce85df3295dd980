"""Members under test: the real command as a real process, told what to do by signals and asked over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kafka.ports import kept_port
from tests.waiting import PATIENCE, wait_until

QUICK: dict[str, dict[str, Any]] = {"group": {"heartbeat_interval_ms": 500}}
"""Settings that most tests want: a short heartbeat keeps them short."""


GROUP_PROTOCOL = "classic"
"""What groups speak whose settings do not say; see `--group-protocol`."""

_LINE_OF_THE_LOG = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) .*\n")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_ROOT = Path(__file__).parents[2]
IMPORTABLE = os.pathsep.join([str(_ROOT / "service"), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
"""The service, whether or not it is installed, and the tests' own handlers (`tests.system.handlers`)."""


def toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections and values as TOML, tables inline; JSON's strings, numbers, booleans and lists are TOML's."""
    lines: list[str] = []
    for section, values in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def merged(*parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Sections of all parts; later values win."""
    whole: dict[str, dict[str, Any]] = {}
    for part in parts:
        for section, values in part.items():
            whole.setdefault(section, {}).update(values)
    return whole


def _spoken(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    if "assign" in settings or GROUP_PROTOCOL == "classic":
        return QUICK
    # Tests that commit offsets before the service starts make a classic group by that.
    return merged(QUICK, {"group": {"group_protocol": GROUP_PROTOCOL, "allow_protocol_upgrade": True}})


class MemberProcess:
    """One `kunicorn run`. Its output goes to `<directory>/<name>.log`, which failures show the end of."""

    def __init__(
        self,
        name: str,
        directory: Path,
        settings: Mapping[str, Mapping[str, Any]],
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        within: Sequence[str] = (),
        options: Sequence[str] = (),
        *,
        more: str = "",
        python: str = sys.executable,
    ) -> None:
        """`within` is a command that runs the service: `("unshare", "--pid", "--fork")`; `pid` is then its pid.
        `options` are further ones of `kunicorn run`, `more` further tables of the settings' file, `python` is the
        interpreter of the environment that kunicorn is installed in."""
        self.name = name
        self.port = kept_port()
        self.log = directory / f"{name}.log"
        self.config = directory / f"{name}.toml"
        own: dict[str, dict[str, Any]] = {
            "http": {"host": "127.0.0.1", "port": self.port},
            "log": {"format": "text", "level": "debug"},
        }
        self.config.write_text(toml(merged(_spoken(settings), own, settings)) + more)
        self.environment = {**os.environ, "PYTHONPATH": IMPORTABLE, "KUNICORN_AUDIT_MEMBER": name, **(env or {})}
        self._output = self.log.open("ab")
        self._has_answered = False
        self.process = subprocess.Popen(
            [*within, python, "-m", "kunicorn", "run", "--config", str(self.config), *options],
            env=self.environment,
            stdout=self._output if stdout is None else stdout,
            stderr=self._output,
            stdin=subprocess.DEVNULL,
            cwd=directory,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    # -- asking

    def get(self, path: str, timeout: float = 60.0) -> tuple[int, str]:
        """Status code and body; (0, reason) where nobody answers. On a busy machine an answer may take long."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def status(self) -> dict[str, Any]:
        """`/status`, or nothing while the service does not answer. One that has just been started is waited for: first
        records may be handled before anything is shown."""
        if not self._has_answered:
            self._has_answered = True
            with suppress(AssertionError):
                wait_until(lambda: self.process.poll() is not None or self.get("/livez")[0], "an answer")
        code, body = self.get("/status")
        return json.loads(body) if code == 200 else {}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of its series at `/metrics` that have these labels; 0 where there is none."""
        return sum(self.series(name, **labels))

    def series(self, name: str, **labels: str) -> list[float]:
        """The values of these series."""
        found = re.findall(rf"(?m)^{name}(?:\{{(.*)\}})? (\S+)$", self.get("/metrics")[1])
        return [float(value) for told, value in found if labels.items() <= dict(_LABEL.findall(told)).items()]

    def partitions(self, *states: str) -> list[dict[str, Any]]:
        """Assigned partitions, in these states if any are given."""
        return [p for p in self.status().get("partitions", []) if not states or p["state"] in states]

    def workers(self) -> list[dict[str, Any]]:
        """Workers that have a process."""
        return [w for w in self.status().get("workers", []) if w["pid"]]

    def generation(self) -> int:
        return int(self.status()["group"]["generation"])

    def lag(self) -> int | None:
        """What is left to handle and commit, as the service knows it; None while it does not."""
        partitions = self.partitions()
        if not partitions or any(p["log_end"] is None or p["committed"] is None for p in partitions):
            return None
        return sum(int(p["log_end"] - p["committed"]) for p in partitions)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def stacks(self) -> str:
        """What was written past the log. A process that is aborted writes its stacks letter by letter, and a line of
        the log may come between any two."""
        return _LINE_OF_THE_LOG.sub("", self.output())

    # -- waiting

    def wait_running(self, partitions: int, within: float = PATIENCE) -> None:
        """Until so many partitions are being fetched."""
        self.wait(lambda: len(self.partitions("running")) == partitions, f"{partitions} running partitions", within)

    def wait(self, condition: Any, what: str, within: float = PATIENCE, every: float = 0.05) -> Any:
        try:
            return wait_until(lambda: self._alive() and condition(), f"{self.name}: {what}", within, every)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- status: {self.status()}\n--- log:\n{self.output()[-6000:]}") from None

    def _alive(self) -> bool:
        code = self.process.poll()
        assert code is None, f"{self.name} exited with {code}\n{self.output()[-6000:]}"
        return True

    def wait_said(self, text: str) -> None:
        """Until it is in the log, which each process writes when it comes to it."""
        self.wait(lambda: text in self.output(), f"{text!r} in the log")

    # -- ending

    def stop(self, within: float = PATIENCE, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(number)
        return self.exit_code(within)

    def exit_code(self, within: float = PATIENCE) -> int:
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not exit\n{self.status()}\n{self.output()[-6000:]}") from None

    def kill(self) -> None:
        """SIGKILL to the supervisor alone."""
        self.process.kill()
        self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._output.close()


class Members:
    """Starts members of one group for one test and sees to it that none survives it."""

    def __init__(self, directory: Path, settings: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> None:
        self.directory = directory
        self.audit = directory / "audit"
        self.audit.mkdir(exist_ok=True)
        self._settings = settings
        self._env = {"KUNICORN_AUDIT_DIR": str(self.audit), **env}
        self.started: list[MemberProcess] = []

    def start(
        self,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        name: str | None = None,
        within: Sequence[str] = (),
        options: Sequence[str] = (),
        *,
        more: str = "",
        python: str = sys.executable,
    ) -> MemberProcess:
        """One more member; `settings` over those of the group, and `more` tables."""
        member = MemberProcess(
            name or f"member-{len(self.started) + 1}",
            self.directory,
            merged(self._settings, settings or {}),
            {**self._env, **(env or {})},
            stdout,
            within,
            options,
            more=more,
            python=python,
        )
        self.started.append(member)
        return member

    def close(self) -> None:
        for member in self.started:
            member.close()


def group_settings(
    bootstrap: str,
    topics: Sequence[str],
    group: str,
    entrypoint: str = "kunicorn.commands.demo.audit:handle",
    workers: int = 2,
) -> dict[str, dict[str, Any]]:
    """The least that a member needs."""
    return {
        "kafka": {"bootstrap_servers": bootstrap.split(",")},
        "group": {"id": group, "topics": list(topics)},
        "handler": {"entrypoint": entrypoint},
        "workers": {"count": workers},
    }


def leave(member: MemberProcess, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    """`kunicorn leave` with the member's own configuration."""
    return subprocess.run(
        [sys.executable, "-m", "kunicorn", "leave", "--config", str(member.config), *arguments],
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
