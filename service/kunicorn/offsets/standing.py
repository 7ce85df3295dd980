"""Where a group stands: its committed offsets beside the logs they point into. Joins nothing, changes nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kunicorn.errors import ConfigError
from kunicorn.group.protocol import Committed, LogOffset
from kunicorn.topics import NO_OFFSET, TopicPartition
from kunicorn.visits import REQUEST_TIMEOUT, Visit
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.group_admin import Described, DescribedMember
from kunicorn.wire.log_offsets import EARLIEST, LATEST, IsolationLevel, list_offsets
from kunicorn.wire.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition. Offsets are the next one to read; None: not known, or there is none."""

    tp: TopicPartition
    committed: int | None
    first: int | None
    """Where the log begins."""
    end: int | None
    """High watermark, or last stable offset with `isolation_level = "read_committed"`."""
    member: DescribedMember | None = None
    """Whose it is now."""
    problem: str | None = None
    """Why something is not known."""

    @property
    def lag(self) -> int | None:
        """Records that a restart would handle at most; without a committed offset it is not known."""
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
    """Names of the topics that the settings mean, and of those `besides` that exist. Raises `ConfigError` for one that
    is missing."""
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
    """The first offset of each partition whose record is not older; the log's end where all are.

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
        remedy = _REMEDIES.get(error, "ask whoever runs the cluster")
        raise ConfigError(f"topic {name!r}: {describe(error)}; {remedy}")


_REMEDIES: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or correct group.topics",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this user DESCRIBE and READ on it",
}


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
