"""Kafka's own consumer: `VerifiableConsumer`, the one of Kafka's own system tests."""

from __future__ import annotations

import json
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.members import Members

VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"

_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


def _protocol(strategy: str) -> tuple[str, ...]:
    if strategy == "consumer":
        return ("--group-protocol", "consumer")
    return ("--group-protocol", "classic", "--assignment-strategy", _ASSIGNORS[strategy])


class JavaConsumer:
    """A process that commits after each poll, synchronously, and tells on its output what it does.

    What it consumed counts as handled once its commit was accepted: it knows no revoke hook, so that a cooperative
    rebalance may refuse the last commit before a partition leaves. Those records are somebody else's to handle.
    """

    def __init__(self, kafka: KafkaCluster, group: str, topic: str, strategy: str, members: Members) -> None:
        """`strategy`: an assignor of the classic protocol, or "consumer" for the protocol of that name."""
        self._kafka = kafka
        config = members.directory / "verifiable-consumer.properties"
        config.write_text("client.id=foreign\n" + ("" if strategy == "consumer" else "heartbeat.interval.ms=500\n"))
        self._arguments = [
            *("--bootstrap-server", kafka.bootstrap, "--topic", topic, "--group-id", group),
            *_protocol(strategy),
            *("--reset-policy", "earliest", "--command-config", str(config)),
        ]
        self.owned: frozenset[TopicPartition] = frozenset()
        self.unaudited: Mapping[TopicPartition, set[int]] = defaultdict(set)
        self._pending: dict[TopicPartition, set[int]] = defaultdict(set)
        self._reader = threading.Thread(target=self._read, daemon=True)

    @property
    def handled(self) -> int:
        """See `Foreign`."""
        return sum(map(len, self.unaudited.values()))

    def __enter__(self) -> Self:
        self._process = self._kafka.start_tool(VERIFIABLE_CONSUMER, *self._arguments)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._reader.join(60)
        assert not self._reader.is_alive(), "the foreign consumer does not end"
        self._process.wait(60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        on: dict[str, Callable[[dict[str, Any]], None]] = {
            "partitions_assigned": self._assigned,
            "partitions_revoked": self._revoked,
            "records_consumed": self._consumed,
            "offsets_committed": self._committed,
        }
        for line in self._process.stdout:
            event = json.loads(line)
            if event["name"] in on:
                on[event["name"]](event)

    def _assigned(self, event: dict[str, Any]) -> None:
        self.owned |= {_coordinates(each) for each in event["partitions"]}

    def _revoked(self, event: dict[str, Any]) -> None:
        leaving = {_coordinates(each) for each in event["partitions"]}
        for tp in leaving:
            self._pending.pop(tp, None)
        self.owned -= leaving

    def _consumed(self, event: dict[str, Any]) -> None:
        for each in event["partitions"]:
            offsets = range(each["minOffset"], each["maxOffset"] + 1)
            assert len(offsets) == each["count"], event
            self._pending[_coordinates(each)].update(offsets)

    def _committed(self, event: dict[str, Any]) -> None:
        if not event["success"]:
            return
        for each in event["offsets"]:
            tp = _coordinates(each)
            done = {offset for offset in self._pending[tp] if offset < each["offset"]}
            self._pending[tp] -= done
            self.unaudited[tp].update(done)


def _coordinates(each: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(each["topic"], each["partition"])
