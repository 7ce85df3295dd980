"""Groups of other clients beside ours in a leg: the same brokers, the same kind of group, a load of their own.

A member is a process. The first of each group reaches the brokers over a link of the group's own, as each member of
ours does; the others over the listener that no fault is about.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from kunicorn.commands.child import python_module, python_path, start_child
from tests.chaos.group import BEHIND, MEMBERS, PARTITIONS, PATIENCE, now
from tests.chaos.load import Load
from tests.kafka import ProxiedCluster
from tests.kafka.artifacts import distribution, tools_version
from tests.kafka.broker import java_command
from tests.kafka.cluster import VERSION
from tests.soak.consumed import Consumption
from tests.soak.plan import Shape
from tests.soak.terms import LINGER_MS
from tests.waiting import wait_until

RATE = 1_000
"""Records a second."""
CONFLUENT, JAVA = "confluent-kafka", "Java"
LINKS: Mapping[str, str] = {CONFLUENT: "confluent", JAVA: "java"}
"""To the brokers, one for each group, by its client."""
_JAVA_VERSION = tools_version(VERSION)
VERSIONS: Mapping[str, str] = {CONFLUENT: version("confluent-kafka"), JAVA: _JAVA_VERSION}
"""Of the Java client it is that of the newest tools that there are: `VerifiableConsumer` is one of them."""
_STRATEGIES: Mapping[str, Mapping[str, str]] = {
    CONFLUENT: {"cooperative-sticky": "cooperative-sticky", "range": "range"},
    JAVA: {
        "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    },
}
_CONSUMER = "consumer"


@dataclass(eq=False)
class PeerGroup:
    """`MEMBERS` members of one client. Blocks where it waits; not thread-safe, but for another group beside it."""

    client: str
    kafka: ProxiedCluster
    shape: Shape
    topic: str
    coordinated_with: str
    """A group whose coordinator this one is to have: else a coordinator's death would mean nothing to it."""
    directory: Path
    members: list[Peer] = field(default_factory=list)
    """Those that live."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self.kafka.create_topic(self.topic, PARTITIONS)
        self.id = self._id()
        self.load = Load(self.kafka.bootstrap, self.topic, RATE, linger_ms=LINGER_MS)
        self.consumption = Consumption(self.directory, self.load.appended)
        self.rng = random.Random(self.topic)
        self._started = 0
        # The link's keys are there when the brokers are.
        self._secured = _secured(self.client, self.kafka.client_settings)

    @property
    def title(self) -> str:
        """The client and its version."""
        return f"{self.client} {VERSIONS[self.client]}"

    @property
    def link(self) -> str:
        """What its first member reaches the brokers by."""
        return LINKS[self.client]

    def start(self, instead_of: Peer | None = None) -> Peer:
        """One more member, or one in the place of another: with its link, and its instance id where ids are static."""
        self._started += 1
        slot = instead_of.slot if instead_of is not None else self._started - 1
        path = self.directory / f"member-{self._started}.properties"
        command, environment = _COMMANDS[self.client](self._properties(slot), self.topic, path)
        said = path.with_suffix(".jsonl")
        member = Peer(slot, said, start_child(command, env=environment, log=said))
        self.members.append(member)
        return member

    def stop(self, member: Peer) -> None:
        """In order."""
        self._end(member, signal.SIGTERM)

    def kill(self, member: Peer) -> None:
        """With SIGKILL."""
        self._end(member, signal.SIGKILL)

    def any_member(self) -> Peer:
        """One of the living."""
        return self.rng.choice(self.members)

    def begin(self) -> None:
        """All members, and the load."""
        for _ in range(MEMBERS):
            self.start()
        self.load.start()

    def wait_whole(self, within: float = PATIENCE) -> None:
        """Until each member has a share, and somebody has each partition: while there is load, each member has consumed
        something and something of each partition was consumed since the call; and everything that was in the log. The
        load is not held back any more."""
        began = now()
        wait_until(lambda: self._confirmed_since(began), f"records in each partition of {self.topic}", within, 0.2)
        ends = {partition: len(times) for partition, times in list(self.load.appended.items())}
        wait_until(lambda: self._caught_up(ends, began), f"{self.client} to consume {ends}", within, 0.2)

    def close(self) -> None:
        """Everything is gone afterwards."""
        for member in list(self.members):
            member.process.send_signal(signal.SIGCONT)
            self.kill(member)

    def _confirmed_since(self, at: int) -> bool:
        return len(self.load.appended) == PARTITIONS and self.load.has_confirmed_since(at)

    def _all_have_polled(self, since: int) -> bool:
        return all(self.consumption.polled[member.said] > since for member in self.members)

    def _caught_up(self, ends: Mapping[int, int], since: int) -> bool:
        self._look_after()
        self.consumption.read()
        appended = {partition: len(times) for partition, times in list(self.load.appended.items())}
        self.load.hold_back_beyond(BEHIND, self.consumption.behind(appended))
        if self.consumption.behind(ends) or self.load.is_held:
            return False
        return self.load.has_ended or self._all_have_polled(since)

    def _look_after(self) -> None:
        """As a process manager does: whoever has ended is started again. A static member of the consumer protocol is
        refused, and ends, until the session of the one before it is over (UNRELEASED_INSTANCE_ID)."""
        for member in list(self.members):
            if member.process.poll() is not None:
                self.members.remove(member)
                self.start(member)

    def _end(self, member: Peer, number: signal.Signals) -> None:
        self.members.remove(member)
        member.process.send_signal(number)
        wait_until(lambda: member.process.poll() is not None, f"a member of {self.client} to end", 60)

    def _id(self) -> str:
        offsets = self.kafka.admin().list_topics(timeout=60).topics["__consumer_offsets"]
        wanted = place(self.coordinated_with, len(offsets.partitions))
        return next(
            each for number in range(100_000)
            if place(each := f"{self.topic}-{number}", len(offsets.partitions)) == wanted
        )  # fmt: skip

    def _properties(self, slot: int) -> dict[str, str]:
        """In the dotted names that librdkafka and the Java client share."""
        over = {"bootstrap.servers": self.kafka.bootstrap}
        if slot == 0:
            over = {"bootstrap.servers": ",".join(self.kafka.bootstrap_over(self.link)), **self._secured}
        static = {"group.instance.id": f"{self.id}-{slot}"} if self.shape.static else {}
        if self.shape.protocol == _CONSUMER:
            protocol = {"group.protocol": _CONSUMER}
        else:
            protocol = {
                "partition.assignment.strategy": _STRATEGIES[self.client][self.shape.protocol],
                "session.timeout.ms": f"{self.shape.session * 1000:.0f}",
            }
        return {"group.id": self.id, "auto.offset.reset": "earliest", **over, **static, **protocol}


@dataclass(frozen=True, eq=False)
class Peer:
    """One member."""

    slot: int
    """Whose place it has, from 0."""
    said: Path
    """What it consumed, and whatever else it said."""
    process: subprocess.Popen[str]


def place(group: str, partitions: int) -> int:
    """Of `__consumer_offsets`, the partition whose leader coordinates the group: `GroupMetadataManager.partitionFor`,
    with Java's `String.hashCode`."""
    code = 0
    for letter in group:
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def _secured(client: str, connection: Mapping[str, str]) -> dict[str, str]:
    """Properties for the link, of settings of [kafka]."""
    if not connection:
        return {}
    secured = {"security.protocol": connection["security_protocol"]}
    name, password = connection.get("sasl_username", ""), ""
    if name:
        password = Path(connection["sasl_password_file"]).read_text().strip()
        secured["sasl.mechanism"] = connection["sasl_mechanism"]
    if client == CONFLUENT:
        login = {"sasl.username": name, "sasl.password": password} if name else {}
        return {**secured, "ssl.ca.location": connection["ssl_ca_location"], **login}
    module = (
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{name}" password="{password}";'
    )
    login = {"sasl.jaas.config": module} if name else {}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": connection["ssl_ca_location"]}
    return {**secured, **trust, **login}


def _confluent(properties: Mapping[str, str], topic: str, path: Path) -> tuple[list[str], Mapping[str, str]]:
    path.write_text(json.dumps(properties))
    return python_module("tests.soak.confluent_member", str(path), topic), python_path()


def _java(properties: Mapping[str, str], topic: str, path: Path) -> tuple[list[str], Mapping[str, str]]:
    """What the tool has options for overrides the file, with defaults that are the tool's own."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    options = {
        "group.id": "--group-id",
        "group.instance.id": "--group-instance-id",
        "group.protocol": "--group-protocol",
        "partition.assignment.strategy": "--assignment-strategy",
        "session.timeout.ms": "--session-timeout",
        "bootstrap.servers": "--bootstrap-server",
    }
    told = [word for name, option in options.items() if name in properties for word in (option, properties[name])]
    tools = distribution(_JAVA_VERSION)
    arguments = ["--topic", topic, "--enable-autocommit", "--command-config", str(path), *told]
    command = java_command(tools, "org.apache.kafka.tools.VerifiableConsumer", arguments)
    return command, {"CLASSPATH": tools.classpath}


_COMMANDS: Mapping[str, Callable[[Mapping[str, str], str, Path], tuple[list[str], Mapping[str, str]]]] = {
    CONFLUENT: _confluent,
    JAVA: _java,
}
