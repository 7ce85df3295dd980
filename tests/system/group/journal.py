"""What tests of whole groups ask of members beside what `MemberProcess` answers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from kunicorn.commands.demo.judge import Audit, Report
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members
from tests.system.producing import committed_offsets, end_offsets, held

_LET_GO = re.compile(r"let go of \d+ partitions in .*? in_hand=(\d+)")


def handled_up_to(member: MemberProcess) -> int:
    """Sum of the positions of what the member owns: of all it may handle, so much is handled."""
    return sum(p["position"] or 0 for p in member.partitions())


def revokes(members: Members) -> list[int]:
    """Of every revoke of every member: how many partitions had a record in hand when it began."""
    return [int(found) for member in members.started for found in _LET_GO.findall(member.output())]


def judgement(
    kafka: KafkaCluster,
    members: Members,
    topic: str,
    partitions: int,
    elsewhere: Mapping[TopicPartition, Collection[int]] | None = None,
    killed: Collection[int] = (),
    in_hand: int = 1,
) -> Report:
    """The audit's report on a topic without gaps, which holds, and of which everything is committed (invariant 8).

    `elsewhere` are the offsets that somebody has handled who writes no audit: nobody else may have.
    `killed` are the pids of workers that were killed, each with at most `in_hand` records in hand. A call that ended
    right before the kill, and whose end was not stored, is repeated: where several were in hand, the judge does not
    know which they were.
    """
    ends = end_offsets(kafka.bootstrap, topic, partitions)
    done = elsewhere or {}
    expected = {tp: set(offsets) - set(done.get(tp, ())) for tp, offsets in held(ends).items()}
    report = Audit(members.audit).check(expected, killed)
    assert replace(report, handled_twice=()).holds, report
    assert len(report.handled_twice) <= (in_hand - 1) * len(killed), report
    assert committed_offsets(kafka.bootstrap, topic, topic, partitions) == ends
    return report


def own(member: MemberProcess) -> set[TopicPartition]:
    """The partitions that the member owns, as it says."""
    return {TopicPartition(p["topic"], p["partition"]) for p in member.partitions()}
