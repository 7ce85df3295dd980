"""A group's committed offsets beside the logs they point into, and the age of the oldest unhandled records, as the
brokers know them. Joins nothing, changes nothing, fetches no record.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass

from kunicorn.clients.session import REQUEST_TIMEOUT, Visit
from kunicorn.errors import ConfigError
from kunicorn.group.protocol import EARLIEST, LATEST, Committed, LogOffset
from kunicorn.ipc.clock import wall_ms
from kunicorn.kafka.admin import Described, DescribedMember, IsolationLevel, list_offsets
from kunicorn.kafka.metadata import Metadata
from kunicorn.kafka.record_times import record_times
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.positions import NO_OFFSET, NO_TIMESTAMP, TopicPartition


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition's offsets and owner. Offsets are the next one to read; None: not known, or there is none."""

    tp: TopicPartition
    committed: int | None
    first: int | None
    """First offset of the log."""
    end: int | None
    """High watermark, or last stable offset with `isolation_level = "read_committed"`."""
    member: DescribedMember | None = None
    """Member that the partition is assigned to."""
    problem: str | None = None
    """Why one of the offsets is not known."""

    @property
    def lag(self) -> int | None:
        """Number of records that a restart would handle at most; without a committed offset it is not known."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - max(self.committed, self.first or 0))


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """A group and its partitions: those of the subscribed topics, and those it has committed besides."""

    group_id: str
    state: str
    """As the coordinator names it: Stable, Empty, …; "none" where there is no such group."""
    members: tuple[DescribedMember, ...]
    partitions: tuple[Standing, ...]


def look(visit: Visit) -> GroupStanding:
    """Ask coordinator and leaders. Blocks.

    Raises `ConfigError` with [assign], or where nothing is there; `FatalGroupError` where the group refuses.
    """
    if visit.settings.assigned:
        raise ConfigError(
            "there is no group: these settings assign partitions by name, and commit nothing; see [assign]"
        )
    group = visit.described()
    committed = visit.ask(visit.group.committed) if not group.error else {}
    topics = subscribed(visit, {tp.topic for tp, found in committed.items() if found.offset != NO_OFFSET})
    partitions = {TopicPartition(t, n) for t in topics for n in visit.cluster.metadata.topics[t].partitions}
    firsts, ends = (_log_offsets(visit, dict.fromkeys(partitions, at)) for at in (EARLIEST, LATEST))
    held = {tp: member for member in group.members for tp in member.partitions}
    every = partitions | {tp for tp, found in committed.items() if found.offset != NO_OFFSET}
    rows = tuple(_standing(tp, committed.get(tp), firsts.get(tp), ends.get(tp), held.get(tp)) for tp in sorted(every))
    return GroupStanding(visit.group_id, _state(group), tuple(group.members), rows)


def subscribed(visit: Visit, besides: Collection[str] = ()) -> list[str]:
    """Names of the topics that the settings match, and of those `besides` that exist. Raises `ConfigError` for one that
    is missing.
    """
    wanted = visit.settings.subscribed_topics
    patterns = [topic for topic in wanted if topic.startswith("^")]
    asked = None if patterns else {*wanted, *besides}
    metadata = visit.ask(lambda: visit.cluster.refresh(asked))
    for name in wanted:
        if not name.startswith("^"):
            _refuse_missing(name, metadata)
    matching = {name for name in metadata.topics if any(re.match(pattern, name) for pattern in patterns)}
    named = matching.union(besides, (name for name in wanted if not name.startswith("^")))
    return sorted(name for name in named if name in metadata.topics and metadata.topics[name].partitions)


def at_time(visit: Visit, partitions: Collection[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
    """First offset of each partition whose record is not older; the log's end where all are.

    Raises `ConfigError` where a leader does not answer: an offset that is guessed would be lost records.
    """
    found = _log_offsets(visit, dict.fromkeys(partitions, timestamp_ms))
    older = [tp for tp, answer in found.items() if not answer.error and answer.offset == NO_OFFSET]
    answers = {**found, **_log_offsets(visit, dict.fromkeys(older, LATEST))}
    for tp, answer in answers.items():
        if answer.error:
            raise ConfigError(f"{tp}: its leader cannot look up a time: {describe(answer.error)}; try again")
    return {tp: answer.offset for tp, answer in answers.items()}


def _log_offsets(visit: Visit, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
    level = IsolationLevel[visit.settings.kafka.isolation_level.upper()]
    return visit.ask(lambda: list_offsets(visit.cluster, queries, level, REQUEST_TIMEOUT)) if queries else {}


def _refuse_missing(name: str, metadata: Metadata) -> None:
    topic = metadata.topics.get(name)
    error = topic.error if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if error:
        raise ConfigError(f"topic {name!r}: {describe(error)}; {fault(error).remedy(setting='group.topics')}")


def _state(group: Described) -> str:
    return "none" if group.error == ErrorCode.GROUP_ID_NOT_FOUND else group.state


def _standing(
    tp: TopicPartition,
    committed: Committed | None,
    first: LogOffset | None,
    end: LogOffset | None,
    member: DescribedMember | None,
) -> Standing:
    errors = [answer.error for answer in (committed, first, end) if answer is not None and answer.error]
    problem = describe(errors[0]) if errors else None if end is not None else "this partition does not exist any more"
    return Standing(
        tp,
        committed.offset if committed is not None and committed.offset != NO_OFFSET else None,
        first.offset if first is not None and not first.error else None,
        end.offset if end is not None and not end.error else None,
        member,
        problem,
    )


def timestamps(visit: Visit, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Timestamps of the records at these offsets, in milliseconds since 1970, by the running service's rule. Blocks.

    A partition is missing whose leader does not answer, or whose records carry no time.
    """
    level = IsolationLevel[visit.settings.kafka.isolation_level.upper()]

    def ask(queries: Mapping[TopicPartition, int]) -> Awaitable[Mapping[TopicPartition, LogOffset]]:
        return list_offsets(visit.cluster, queries, level, REQUEST_TIMEOUT)

    found = visit.ask(lambda: record_times(ask, offsets, wall_ms()))
    return {tp: at for tp, at in found.items() if at != NO_TIMESTAMP}
