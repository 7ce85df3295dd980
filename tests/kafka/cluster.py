"""A cluster of real brokers in KRaft mode, for as long as a `with` block."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from kunicorn.commands.child import start_child
from tests.kafka.artifacts import Distribution, KafkaUnavailable, distribution, locked, tools_version
from tests.kafka.broker import SMALL, Broker, java_command
from tests.kafka.leaders import answers_of_leaders
from tests.kafka.ports import KeptPorts
from tests.kafka.properties import plan_nodes, server_properties
from tests.waiting import wait_until

VERSION = "4.4.0"
START_SECONDS = 180.0
"""A cluster is up in two to five seconds; a machine busy with everything else may take long."""


class KafkaCluster:
    """`brokers` real brokers on free loopback ports; everything is gone when the block ends.

    `overrides` are added to every `server.properties`, `format_arguments` to StorageTool's command
    line; `jvm` are the brokers' flags. With a `workdir` of the caller's, data and logs stay there.
    Raises `KafkaUnavailable` with the brokers' log where they do not come up.
    """

    def __init__(
        self,
        brokers: int = 1,
        workdir: Path | None = None,
        overrides: Mapping[str, object] | None = None,
        version: str = VERSION,
        format_arguments: Sequence[str] = (),
        jvm: Sequence[str] = SMALL,
    ) -> None:
        self._format_arguments = format_arguments
        self._kafka = distribution(version)
        self._keep = workdir is not None
        self.workdir = workdir or Path(tempfile.mkdtemp(prefix="kunicorn-kafka-"))
        self.ports = KeptPorts()
        self._nodes = plan_nodes(brokers, self.workdir, self.ports.take(2 * brokers))
        self._overrides = dict(overrides or {})
        self.brokers = [Broker(node, self._kafka, jvm) for node in self._nodes]
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all brokers and wait until they answer; what the `with` statement does."""
        try:
            make_archive(self._kafka)
            self._format()
            for broker in self.brokers:
                broker.start()
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill every broker and remove the data."""
        self._admin = None
        for broker in self.brokers:
            if broker.alive:
                broker.kill()
        self.ports.close()
        if not self._keep:
            shutil.rmtree(self.workdir, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        """All brokers, dead ones too: `host:port,host:port`."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, number: int) -> Broker:
        """The broker with that id; they count from 1."""
        return self.brokers[number - 1]

    def admin(self) -> AdminClient:
        """confluent-kafka's admin client of this cluster; the same one on every call."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int | None = None
    ) -> str:
        """Create a topic, replicated to every broker if not said, and wait until every partition has a leader."""
        replicas = replication or min(3, len(self.brokers))
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
        self.admin().create_topics([topic])[name].result(60)
        wait_until(lambda: self._led(name) == partitions, f"leaders of the {partitions} partitions of {name}")
        return name

    def add_partitions(self, topic: str, count: int) -> None:
        """Let the topic have so many partitions, and wait until each has a leader as far as the brokers know."""
        self.admin().create_partitions([NewPartitions(topic, count)])[topic].result(60)
        wait_until(lambda: self._led(topic) == count, f"leaders of the {count} partitions of {topic}")

    def topic_settings(self, topic: str) -> dict[str, str]:
        """By name, as a broker knows them, which learns a moment later of what the controller has confirmed."""
        (answer,) = self.admin().describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return {name: entry.value for name, entry in answer.result(60).items()}

    def alter_topic(self, topic: str, settings: Mapping[str, object]) -> None:
        """Settings of the topic; None: as the brokers have it. Returns when a broker tells of those that are set."""
        entries = [
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
            if value is None
            else ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for done in self.admin().incremental_alter_configs([changed]).values():
            done.result(60)
        known = {name: str(value) for name, value in settings.items() if value is not None}
        wait_until(lambda: known.items() <= self.topic_settings(topic).items(), f"{topic} to have {known}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the brokers name it no more."""
        self.admin().delete_topics([name])[name].result(60)
        wait_until(lambda: name not in self.admin().list_topics(timeout=60).topics, f"{name} to be gone")

    def delete_records(self, topic: str, before: Mapping[int, int]) -> Mapping[int, int]:
        """Move the starts of logs to these offsets, by partition, as retention does; −1: to the end. Where the logs
        begin from then on."""
        admin, places = self.admin(), [TopicPartition(topic, partition, at) for partition, at in before.items()]
        deleted = answers_of_leaders(admin, topic, lambda: admin.delete_records(places))
        return {partition: answer.low_watermark for partition, answer in deleted.items()}

    def rotate_replicas(self, topic: str) -> None:
        """Make the next of each partition's replicas its first, which is to lead it; an election then makes it so."""
        self.reassign(topic, {number: [*each[1:], each[0]] for number, each in self.replicas(topic).items()})

    def lead_anew(self, topic: str) -> None:
        """Have each partition led by the next of its replicas."""
        self.rotate_replicas(topic)
        self.elect_preferred(topic)

    def reassign(self, topic: str, wanted: Mapping[int, Sequence[int]]) -> None:
        """Give each partition these replicas; blocks until they are."""
        partitions = [{"topic": topic, "partition": number, "replicas": list(each)} for number, each in wanted.items()]
        plan = self.workdir / f"{topic}-replicas.json"
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
        main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        where = ("--bootstrap-server", self.bootstrap, "--reassignment-json-file", str(plan))
        self.tool(main, *where, "--execute")
        wait_until(lambda: self.replicas(topic) == wanted, f"{topic} reassigned")

    def replicas(self, topic: str) -> dict[int, list[int]]:
        """Brokers of each partition; the first is to lead it."""
        partitions = self.admin().list_topics(topic, timeout=60).topics[topic].partitions
        return {number: list(each.replicas) for number, each in sorted(partitions.items())}

    def elect_preferred(self, topic: str) -> None:
        """Have every partition led by the first of its replicas, and wait until those of the topic are. One that is not
        in sync yet is not elected: it is tried again."""

        def elected() -> bool:
            if not self.preferred_lead(topic):
                self.admin().elect_leaders(ElectionType.PREFERRED).result(60)
            return self.preferred_lead(topic)

        wait_until(elected, "each partition to be led by its first replica", 120, 1.0)

    def preferred_lead(self, topic: str) -> bool:
        """Whether each partition is led by the first of its replicas."""
        partitions = self.admin().list_topics(topic, timeout=60).topics[topic].partitions.values()
        return all(each.leader == each.replicas[0] for each in partitions)

    def upgrade(self, broker: Broker, version: str) -> None:
        """What the broker is of from its next start on; tools are so from now on."""
        self._kafka = distribution(version)
        make_archive(self._kafka)
        broker.upgrade(self._kafka)

    def tool(self, main: str, *arguments: str, input: str | None = None, timeout: float = 400.0) -> str:
        """Run one of Kafka's Java tools to its end and return what it printed.

        `main` is the class: `"org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"`.
        Raises `RuntimeError` with all its output where it fails. Kafka's client asks again for minutes where brokers
        that were just started answer that they are not ready.
        """
        tools = distribution(tools_version(self._kafka.version))
        done = subprocess.run(
            java_command(tools, main, arguments),
            env={**os.environ, "CLASSPATH": tools.classpath},
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main} {' '.join(arguments)} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def start_tool(self, main: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a tool that runs on, with text pipes; the caller ends it. It dies with this process."""
        log = self.workdir / f"{main.rpartition('.')[2]}.txt"
        tools = distribution(tools_version(self._kafka.version))
        command = java_command(tools, main, arguments)
        return start_child(command, env={"CLASSPATH": tools.classpath}, pipes=True, log=log)

    def wait_until_ready(self, within: float = START_SECONDS) -> None:
        """Wait until every broker is listed and the group coordinators answer."""
        deadline = time.monotonic() + within
        try:
            for broker in self.brokers:
                wait_until(partial(_listens, broker), f"broker {broker.id} to listen", deadline - time.monotonic())
            wait_until(self._complete, "all brokers in the metadata", deadline - time.monotonic())
            wait_until(self._coordinates, "a group coordinator", deadline - time.monotonic())
        except AssertionError as error:
            logs = "\n".join(f"-- broker {broker.id} --\n{broker.log_tail()}" for broker in self.brokers)
            raise KafkaUnavailable(f"Kafka {self._kafka.version} did not come up: {error}\n{logs}") from None

    def wait_until_whole(self, within: float = START_SECONDS) -> None:
        """Wait until every broker is back and every replica of every partition is in sync again."""
        self.wait_until_ready(within)
        # A broker that comes back may leave a question unanswered: then somebody else has the answer.
        wait_until(lambda: _answers(self._in_sync), "all replicas in sync", within, every=0.1)

    def _in_sync(self) -> bool:
        topics = self.admin().list_topics(timeout=10).topics.values()
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        return all(sorted(each.isrs) == sorted(each.replicas) for each in partitions)

    def _format(self) -> None:
        """Write configurations and empty storage, for all nodes at once."""
        identity = _cluster_id()
        running = []
        for node in self._nodes:
            node.directory.mkdir(parents=True, exist_ok=True)
            path = node.directory / "server.properties"
            path.write_text(server_properties(node, self._nodes, self._overrides))
            arguments = ["format", "-t", identity, "-c", str(path), "--ignore-formatted", *self._format_arguments]
            command = java_command(self._kafka, "kafka.tools.StorageTool", arguments)
            log = node.directory / "format.txt"
            running.append((start_child(command, env={"CLASSPATH": self._kafka.classpath}, log=log), log))
        for process, log in running:
            if process.wait(START_SECONDS) != 0:
                raise KafkaUnavailable(f"Kafka's StorageTool refused the configuration:\n{log.read_text()[-2000:]}")

    def _led(self, topic: str) -> int:
        metadata = self.admin().list_topics(topic, timeout=60).topics[topic]
        return sum(partition.leader > 0 for partition in metadata.partitions.values())

    def _complete(self) -> bool:
        return _answers(lambda: len(self.admin().list_topics(timeout=2).brokers) == len(self.brokers))

    def _coordinates(self) -> bool:
        """Asking for a group's offsets creates `__consumer_offsets`, which is missing in a fresh cluster."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "kunicorn-warm-up", "log_level": 0})
        try:
            return _answers(lambda: consumer.committed([TopicPartition("kunicorn-warm-up", 0)], timeout=5))
        finally:
            consumer.close()


def make_archive(kafka: Distribution) -> None:
    """Have one broker write down the classes it loaded, once per cache; the next ones start in half the time."""
    with locked(f"kafka-{kafka.version}-archive"):
        if kafka.archive.exists():
            return
        with tempfile.TemporaryDirectory(prefix="kunicorn-kafka-") as scratch:
            training = KafkaCluster(1, Path(scratch), version=kafka.version)
            part = kafka.archive.with_suffix(".part")
            training._format()
            broker = training.broker(1)
            broker.start(f"-XX:ArchiveClassesAtExit={part}")
            try:
                training.wait_until_ready()
                # It writes the archive as it ends: ten seconds, and minutes beside other work. Without an archive
                # every test of the session would fail, and so would those of the next one.
                broker.stop(timeout=240)
            finally:
                training.close()
            if part.exists():
                part.rename(kafka.archive)


def _cluster_id() -> str:
    """A random cluster id: 16 bytes in URL-safe base64. Fixed first byte: a leading `-` would be an option."""
    return base64.urlsafe_b64encode(b"K" + os.urandom(15)).decode().rstrip("=")


def _listens(broker: Broker) -> bool:
    if not broker.alive:
        raise AssertionError(f"broker {broker.id} exited")
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", broker.node.port)) == 0


def _answers(ask: Callable[[], object]) -> bool:
    """Whether `ask()` is true; false while the cluster still answers with errors."""
    try:
        return bool(ask())
    except KafkaException:
        return False
