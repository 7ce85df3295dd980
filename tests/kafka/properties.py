"""The `server.properties` of a small, quick cluster; everything not named here is Kafka's default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

AS_KAFKA_SHIPS: Mapping[str, object] = dict.fromkeys(
    (
        "log.retention.ms",
        "offsets.topic.num.partitions",
        "transaction.state.log.num.partitions",
        "group.initial.rebalance.delay.ms",
        "group.min.session.timeout.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.backoff.ms",
        "num.network.threads",
    )
)
"""Overrides that leave to Kafka's defaults what is otherwise set for tests to be quick; brokers need a gigabyte of heap
with it. Replicas stay what the number of brokers says."""


@dataclass(frozen=True)
class Node:
    """One server that is broker and controller; both ports are on the loopback interface."""

    id: int
    port: int
    controller_port: int
    directory: Path


def plan_nodes(count: int, workdir: Path, ports: Sequence[int]) -> list[Node]:
    """`count` nodes, numbered from 1, with two ports each."""
    return [Node(n + 1, ports[2 * n], ports[2 * n + 1], workdir / f"broker-{n + 1}") for n in range(count)]


def server_properties(node: Node, nodes: list[Node], overrides: Mapping[str, object]) -> str:
    """The file's text. In an override's value `{id}` is the node's number: `{"broker.rack": "rack-{id}"}`; a function
    is called with the node; None leaves the setting to Kafka's default."""
    replicas = min(3, len(nodes))
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": ",".join(f"{each.id}@127.0.0.1:{each.controller_port}" for each in nodes),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{node.port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": node.directory / "data",
        "auto.create.topics.enable": "false",
        # Tests write records of any age; those older than a week would be deleted at some moment of the test.
        "log.retention.ms": -1,
        "default.replication.factor": replicas,
        "offsets.topic.num.partitions": 6,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": 3,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": max(1, replicas - 1),
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": max(1, replicas - 1),
        # The default waits three seconds for more members before every group's first rebalance.
        "group.initial.rebalance.delay.ms": 0,
        # Lets a test evict a member in two seconds; sessions are as long as members ask for.
        "group.min.session.timeout.ms": 1_000,
        # The default takes 128 MiB of a 512 MiB heap.
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
        # The default looks every fifteen seconds whether there is something to compact.
        "log.cleaner.backoff.ms": 100,
    }
    for name, value in overrides.items():
        settings[name] = _text(value, node)
    return "".join(f"{name}={value}\n" for name, value in settings.items() if value is not None)


def _text(value: object, node: Node) -> object:
    if value is None:
        return None
    return value(node) if callable(value) else str(value).format(id=node.id)
