"""Processes of the demo: members (a real `kunicorn run` each, watched over HTTP), a producer of keyed records at a
steady pace.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError, Message, Producer

from kunicorn.commands.child import python_module, python_path, start_child
from kunicorn.commands.demo.ports import free_port
from kunicorn.observe.status import Status, WorkerStatus
from kunicorn.positions import TopicPartition

KEYS = 500


class Feed:
    """Producer thread: `rate` records a second to `topic` until `stop`; remembers where each record went."""

    def __init__(self, bootstrap: str, topic: str, rate: float) -> None:
        # Java's partitioner, so that keys go where every other producer of the topic would send them; idempotent, so
        # that what is counted once here is in the log once.
        properties = {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True}
        self._producer = Producer({**properties, "linger.ms": 5, "log_level": 0})
        self._topic = topic
        self._rate = rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._offsets: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        self.acknowledged = 0
        """Records the broker has confirmed."""
        self.failure: str | None = None
        """The first delivery that failed for good."""

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Let it produce for so long."""
        self._ended.wait(seconds)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop producing and wait for the last confirmations; harmless before `start` and when repeated."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._producer.flush(timeout) > 0 and self.failure is None:
            self.failure = f"the broker confirmed only {self.acknowledged} records within {timeout:g} s"

    @property
    def produced(self) -> Mapping[TopicPartition, set[int]]:
        """Offsets by partition; complete after `stop`."""
        return self._offsets

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._ended.wait(0.01):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(sent, due):
                key = f"customer-{random.randrange(KEYS)}"
                self._producer.produce(self._topic, f"order {number}", key, on_delivery=self._delivered)
            sent = max(sent, due)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None or topic is None or partition is None or offset is None:
            self.failure = self.failure or f"a record could not be produced to {self._topic}: {error}"
            return
        self._offsets[TopicPartition(topic, partition)].add(offset)
        self.acknowledged += 1


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
{handler}

[workers]
count = {workers}

[http]
host = "127.0.0.1"
port = {port}

[log]
level = "info"
format = "text"
"""


_OF_RECORDS = 'entrypoint = "kunicorn.commands.demo.audit:handle"'
_ROWS = 10
"""So many has a batch at most: each takes as long as one record."""
_OF_COLUMNS = f'entrypoint = "kunicorn.commands.demo.columnar:handle"\nmode = "arrow"\nbatch_max_records = {_ROWS}'


@dataclass(frozen=True)
class MemberConfig:
    """Settings that the members of one demo share."""

    bootstrap: str
    group: str
    topic: str
    workers: int
    handler_ms: int
    session_timeout_ms: int
    directory: Path
    arrow: bool = False
    """The handler gets columns."""

    @property
    def audit(self) -> Path:
        """Directory of all members' audit files."""
        return self.directory / "audit"

    @property
    def handler(self) -> str:
        """Lines of [handler]."""
        return _OF_COLUMNS if self.arrow else _OF_RECORDS

    @property
    def in_hand(self) -> int:
        """Most records that one of its workers has in hand."""
        return _ROWS if self.arrow else 1


class Member:
    """One member's supervisor process. Only `start` and `stop` block."""

    def __init__(self, number: int, config: MemberConfig) -> None:
        self.name = f"member-{number}"
        self.log = config.directory / f"{self.name}.log"
        self.status: Status | None = None
        """What it last said of itself; kept when it is gone."""
        self._config = config
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs, and before."""
        return None if self._process is None else self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Write its configuration and start it."""
        self._port = free_port()
        path = self._config.directory / f"{self.name}.toml"
        path.write_text(
            _CONFIG.format(
                bootstrap=", ".join(f'"{address}"' for address in self._config.bootstrap.split(",")),
                group=self._config.group,
                topic=self._config.topic,
                session_timeout_ms=self._config.session_timeout_ms,
                workers=self._config.workers,
                port=self._port,
                handler=self._config.handler,
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
        """Send SIGTERM: drain, commit, leave, exit 0."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
