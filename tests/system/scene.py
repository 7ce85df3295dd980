"""One topic, one group and its judge."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from kunicorn.commands.demo.audit import Entry, Kind
from kunicorn.commands.demo.judge import Audit, Report
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.audits import noted
from tests.system.members import MemberProcess, Members
from tests.system.producing import committed_offsets, end_offsets, held, producer
from tests.waiting import PATIENCE, wait_until


@dataclass(frozen=True)
class Scene:
    """What a test of the worker pool plays with. The group's id is the topic's name."""

    kafka: KafkaCluster
    topic: str
    partitions: int
    members: Members
    marks: Path

    # -- records

    def send(self, partition: int, *values: str) -> None:
        """Append records with these values to one partition; delivered when it returns."""
        sender: Producer = producer(self.kafka.bootstrap)
        for value in values:
            sender.produce(self.topic, value=value.encode(), partition=partition)
        assert sender.flush(60) == 0, "not everything was delivered"

    def ends(self) -> dict[TopicPartition, int]:
        """Log ends, as the broker says."""
        return end_offsets(self.kafka.bootstrap, self.topic, self.partitions)

    def committed(self) -> dict[int, int]:
        """Committed offsets by partition, as the broker says."""
        found = committed_offsets(self.kafka.bootstrap, self.topic, self.topic, self.partitions)
        return {tp.partition: offset for tp, offset in found.items()}

    # -- what has happened

    def marked(self, *marks: str) -> bool:
        """Whether the handlers have left all these marks: `0@1 sleeps`."""
        return all((self.marks / mark).exists() for mark in marks)

    def wait_marked(self, mark: str, member: MemberProcess, within: float = PATIENCE) -> None:
        """Until a handler has left this mark."""
        member.wait(lambda: self.marked(mark), f"the mark {mark!r}", within)

    def handled(self, partition: int) -> list[int]:
        """Offsets of the partition in the order in which their handling ended."""
        return [entry.offset for entry in self.ended(partition)]

    def ended(self, partition: int) -> list[Entry]:
        """Every end of handling a record of the partition, in order."""
        return noted(self.members.audit, Kind.END, partition)

    def begun(self, partition: int, offset: int) -> list[int]:
        """When the handler was called with this record, in nanoseconds."""
        begun = noted(self.members.audit, Kind.BEGIN, partition)
        return [entry.time_ns for entry in begun if entry.offset == offset]

    def wait_handled(self, partition: int, offset: int, member: MemberProcess, within: float = PATIENCE) -> None:
        """Until the handler has returned from this record."""
        member.wait(lambda: offset in self.handled(partition), f"{partition}@{offset} to be handled", within)

    def wait_all_committed(self, within: float = PATIENCE) -> None:
        """Until everything in the topic is handled and committed."""
        ends = {tp.partition: end for tp, end in self.ends().items()}
        expected = {partition: end for partition, end in ends.items() if end}

        def done() -> bool:
            committed = self.committed()
            return all(committed[partition] == end for partition, end in expected.items())

        wait_until(done, f"the committed offsets {expected}; now {self.committed()}", within, every=0.2)

    def rebalances(self) -> list[str]:
        """The rebalances of our group that its coordinators have told of (GroupCoordinator's own log)."""
        text = "".join(broker.log.read_text(errors="replace") for broker in self.kafka.brokers)
        # GroupMetadataManager.prepareRebalance (Kafka 4).
        pattern = rf"Preparing to rebalance group {re.escape(self.topic)} in state .*"
        return re.findall(pattern, text)

    def judge(self, killed: Collection[int] = (), except_from: Sequence[tuple[int, int]] = ()) -> Report:
        """The audit's report on everything produced; `except_from` are partitions that are not to be handled from
        that offset on."""
        offsets = held(self.ends())
        for partition, first in except_from:
            offsets[TopicPartition(self.topic, partition)] = range(first)
        return Audit(self.members.audit).check(offsets, killed)
