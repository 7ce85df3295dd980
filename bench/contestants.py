"""Who is compared in `bench.handover`: groups of ours and of reference clients, under the same load and audit."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunicorn.commands.child import python_module, python_path, start_child
from tests.chaos.calls import Call, read_calls
from tests.chaos.load import Load
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members, group_settings, merged
from tests.waiting import wait_until

PARTITIONS = 12
RATE = 120
HANDLER_MS = 4
WORKERS = 2
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Contestant:
    """A client and its settings; `settings` are our [group] settings, or the client's own properties."""

    title: str
    client: str
    settings: Mapping[str, Any]
    commits: str = "auto"


CONTESTANTS = (
    Contestant("kunicorn, cooperative-sticky", "kunicorn", {"partition_assignment_strategy": ["cooperative-sticky"]}),
    Contestant("kunicorn, consumer protocol", "kunicorn", {"group_protocol": "consumer"}),
    Contestant(
        "confluent-kafka, cooperative-sticky, its defaults",
        "confluent-kafka",
        {"partition.assignment.strategy": "cooperative-sticky"},
    ),
    Contestant(
        "confluent-kafka, cooperative-sticky, tuned",
        "confluent-kafka",
        {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 100},
        "synchronous",
    ),
    Contestant("confluent-kafka, consumer protocol", "confluent-kafka", {"group.protocol": "consumer"}, "synchronous"),
    Contestant("aiokafka, roundrobin, its defaults", "aiokafka", {"partition_assignment_strategy": "roundrobin"}),
    Contestant(
        "aiokafka, sticky, tuned",
        "aiokafka",
        {"partition_assignment_strategy": "sticky", "heartbeat_interval_ms": 500, "fetch_max_wait_ms": 100},
        "synchronous",
    ),
)
"""Tuned: heartbeats every half second, offsets committed every second and when partitions are revoked."""


@dataclass
class Entry:
    """One contestant's group on a topic of its own, under load."""

    who: Contestant
    kafka: KafkaCluster
    topic: str
    directory: Path
    rate: int = RATE
    _members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self.kafka.create_topic(self.topic, PARTITIONS)
        settings = merged(
            group_settings(self.kafka.bootstrap, [self.topic], self.topic, workers=WORKERS),
            # The tests' members are quicker than the defaults.
            {"group": {"heartbeat_interval_ms": 1000}, "log": {"level": "info"}},
            {"group": self.who.settings} if self.who.client == "kunicorn" else {},
        )
        self._ours = Members(self.directory, settings, {"KUNICORN_HANDLER_MS": str(HANDLER_MS)})
        self.load = Load(self.kafka.bootstrap, self.topic, self.rate)

    def start(self) -> Member:
        """One more member."""
        member: Member
        if self.who.client == "kunicorn":
            member = _Ours(self._ours.start())
        else:
            member = _Theirs(self, f"member-{len(self._members) + 1}")
        self._members.append(member)
        return member

    def calls(self) -> dict[int, list[Call]]:
        """Every handler call so far, by partition."""
        return read_calls(self._ours.audit)

    @property
    def audit(self) -> Path:
        """Where the handlers write."""
        return self._ours.audit

    def close(self) -> None:
        """End what is left."""
        self._ours.close()
        for member in self._members:
            member.close()


@dataclass
class _Ours:
    """`kunicorn run`."""

    process: MemberProcess

    @property
    def name(self) -> str:
        """As the audit has it."""
        return self.process.name

    def stop(self) -> None:
        """In order."""
        if code := self.process.stop(STOP_SECONDS):
            raise SystemExit(f"{self.name} exited with {code}:\n{self.process.output()[-3000:]}")

    def close(self) -> None:
        """Its group's `Members` do that."""


class _Theirs:
    """`bench.reference`."""

    def __init__(self, entry: Entry, name: str) -> None:
        who, servers = entry.who, entry.kafka.bootstrap
        dotted = who.client == "confluent-kafka"
        needed = {"bootstrap.servers": servers, "group.id": entry.topic}
        properties = needed if dotted else {key.replace(".", "_"): value for key, value in needed.items()}
        told = json.dumps({**properties, **who.settings})
        arguments = (who.client, told, entry.topic, name, str(entry.audit), str(HANDLER_MS), who.commits)
        self.name = name
        self._log = entry.directory / f"{name}.log"
        command = python_module("bench.reference", *arguments)
        self._process: subprocess.Popen[str] = start_child(command, env=python_path(), log=self._log)

    def stop(self) -> None:
        """In order."""
        self._process.send_signal(signal.SIGTERM)
        wait_until(lambda: self._process.poll() is not None, f"{self.name} to end", STOP_SECONDS)
        if self._process.returncode:
            raise SystemExit(f"{self.name} exited with {self._process.returncode}:\n{self._log.read_text()[-3000:]}")

    def close(self) -> None:
        """By force, if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


Member = _Ours | _Theirs
