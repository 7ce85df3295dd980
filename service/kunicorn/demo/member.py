"""One member of the demo's group: a real `kunicorn run`, watched over HTTP like any other."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kunicorn.demo.processes import python_module, python_path, start_child
from kunicorn.observe.status import Status, WorkerStatus

_CONFIG = """\
[kafka]
bootstrap_servers = [{bootstrap}]

[group]
id = "{group}"
topics = ["{topic}"]
partition_assignment_strategy = ["cooperative-sticky"]
heartbeat_interval_ms = 500
session_timeout_ms = {session_timeout_ms}
allow_short_session_timeout = true
commit_interval_ms = 1000
drain_timeout_ms = 5000

[handler]
entrypoint = "kunicorn.demo.handlers:handle"

[workers]
count = {workers}

[http]
host = "127.0.0.1"
port = {port}

[log]
level = "info"
format = "text"
"""


@dataclass(frozen=True)
class MemberConfig:
    """What the members of one demo have in common."""

    bootstrap: str
    group: str
    topic: str
    workers: int
    handler_ms: int
    session_timeout_ms: int
    directory: Path

    @property
    def audit(self) -> Path:
        """Where all members' handlers write what they did."""
        return self.directory / "audit"


class Member:
    """A member's supervisor process. Only `start` and `stop` block."""

    def __init__(self, number: int, config: MemberConfig) -> None:
        self.name = f"member-{number}"
        self.log = config.directory / f"{self.name}.log"
        self.status: Status | None = None
        """What it last said of itself; kept when it is gone."""
        self._config = config
        self._port = _free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before."""
        return None if self._process is None else self._process.poll()

    @property
    def alive(self) -> bool:
        """It was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Write its configuration and start it."""
        path = self._config.directory / f"{self.name}.toml"
        path.write_text(
            _CONFIG.format(
                bootstrap=", ".join(f'"{address}"' for address in self._config.bootstrap.split(",")),
                group=self._config.group,
                topic=self._config.topic,
                session_timeout_ms=self._config.session_timeout_ms,
                workers=self._config.workers,
                port=self._port,
            )
        )
        environment = {
            **python_path(),
            "KUNICORN_AUDIT_DIR": str(self._config.audit),
            "KUNICORN_AUDIT_MEMBER": self.name,
            "KUNICORN_HANDLER_MS": str(self._config.handler_ms),
        }
        command = python_module("kunicorn", "run", "--config", str(path))
        self._process = start_child(command, env=environment, log=self.log)

    def refresh(self) -> Status | None:
        """Ask for `/status`; the last answer stays where there is no new one (starting, stopping, gone)."""
        if self.alive:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/status", timeout=1) as answer:
                    self.status = msgspec.json.decode(answer.read(), type=Status)
            except (OSError, urllib.error.URLError, http.client.HTTPException):
                pass  # Nobody listens yet or any more; whether it lives is asked of the process, not of the port.
        return self.status

    def kill_worker(self) -> WorkerStatus | None:
        """SIGKILL a worker, one with a record in hand if there is one; None where no worker has partitions."""
        workers = self.status.workers if self.status else ()
        busy = sorted((w for w in workers if w.pid and w.partitions), key=lambda w: w.in_hand is None)
        if not busy or busy[0].pid is None:
            return None
        os.kill(busy[0].pid, signal.SIGKILL)
        return busy[0]

    def ask_to_stop(self) -> None:
        """SIGTERM: drain, commit, leave, exit 0."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """Make sure that it is gone."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """The end of what it logged."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
