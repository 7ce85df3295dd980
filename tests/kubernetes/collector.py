"""Where the pods' handlers send their audit: a TCP server that writes it into files, as the demo's judge reads them."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

from kunicorn.commands.demo.audit import SUFFIX, WORDS
from kunicorn.ipc.clock import now_ns

ENTRY = WORDS * 8
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """A worker in a pod. `number` is its pid in the audit: pods have pids of their own, and repeat one another's."""

    number: int
    member: str
    pid: int


class Collector:
    """Listens on `host`, where the pods can reach it, until the block ends. Files are in `directory`."""

    def __init__(self, host: str, directory: Path) -> None:
        self.directory = directory
        self.processes: list[Process] = []
        self.failure = ""
        """Why the audit cannot be judged; empty where it can."""
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._server = _Server((host, 0), _Line)
        self._server.collector = self
        port: int = self._server.server_address[1]
        self.address = f"{host}:{port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, name="collector", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def numbers(self, member: str, pid: int | None = None) -> Collection[int]:
        """Of a pod's workers, or of the one with that pid, as the audit has them."""
        return frozenset(p.number for p in self.processes if p.member == member and pid in (None, p.pid))

    def admit(self, hello: dict[str, Any]) -> Path:
        """The file of a process that has just introduced itself."""
        if hello["boot"] != _BOOT.read_text().strip():
            self.failure = "The pods run on another machine's clock: what overlaps and what pauses cannot be told."
        with self._lock:
            process = Process(next(self._numbers), hello["member"], hello["pid"])
            self.processes.append(process)
        topic: str = hello["topic"]
        path = self.directory / topic / f"{process.member}.{process.number}.{now_ns()}{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    collector: Collector


class _Line(socketserver.StreamRequestHandler):
    """One process's. Only whole entries are written: the judge may read at any time."""

    def handle(self) -> None:
        hello = self.rfile.readline()
        if not hello:
            return
        path = cast(_Server, self.server).collector.admit(json.loads(hello))
        with path.open("ab", buffering=0) as file:
            while len(entry := self.rfile.read(ENTRY)) == ENTRY:
                file.write(entry)
