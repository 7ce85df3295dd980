"""A group's committed offsets beside the logs they point into, and the age of the oldest unhandled records, as the
brokers know them. Joins nothing, changes nothing, fetches no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kunicorn.clients.session import NOT_TOLD, ClusterSession
from kunicorn.errors import ConfigError
from kunicorn.group.protocol import Committed, LogOffset
from kunicorn.ipc.bitmap import is_of_another_topic
from kunicorn.kafka.admin import Described, DescribedMember, no_consumers
from kunicorn.kafka.stored_positions import Lost, Start, known_ends, resolve, unanswered
from kunicorn.kafka_errors import ErrorCode, describe
from kunicorn.positions import EARLIEST, LATEST, NO_OFFSET, Edges, Position, TopicPartition
from kunicorn.text import table, topic_id_text


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
    epoch_end: int | None = None
    """Where the log of the committed offset's leader epoch ends; None: not known."""
    anew: bool = False
    """Whether what is committed is of another topic, that had this name before."""
    policy: str = "earliest"
    """By which a member begins where the log does not hold what is committed (`auto_offset_reset`)."""

    @property
    def log(self) -> Edges | None:
        """Edges of the log; None where one of them is not known."""
        return None if self.first is None or self.end is None else Edges(self.first, self.end)

    @property
    def restart(self) -> Start | None:
        """Where a restart would go on at the earliest, and what is lost; None: nothing is committed, or the log's end
        is not known."""
        return self._resolved("earliest")

    def _resolved(self, policy: str) -> Start | None:
        if self.committed is None or self.end is None:
            return None
        log = Edges(self.first or 0, self.end)
        return resolve(self.tp, Position(self.committed), log, policy, epoch_end=self.epoch_end, anew=self.anew)

    @property
    def goes_on(self) -> int | None:
        """Where a member would go on by its `policy`; None: nothing is committed, a person has to decide, or the log's
        end is not known."""
        return None if (onward := self._resolved(self.policy)) is None else onward.offset

    @property
    def start(self) -> int | None:
        """Offset of `restart`."""
        return None if self.restart is None else self.restart.offset

    @property
    def loss(self) -> str | None:
        """What the log does not hold of the committed offset, in words; None: nothing, or it is not known."""
        if self.log is None or self.restart is None or (loss := self.restart.loss) is None:
            return None
        if loss.why is Lost.DELETED:
            return f"{loss.edge - loss.stored:,} offsets are not in the log any more"
        if loss.why is Lost.CREATED_ANEW:
            return "the topic was created anew: committed is an offset of the former one"
        return "beyond the end: the log was truncated, or the topic created anew"

    @property
    def owner(self) -> str | None:
        """Name of the member, which others may share, and the address that it comes from; for people."""
        if self.member is None:
            return None
        return f"{self.member.instance_id or self.member.client_id} at {self.member.address}"

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "committed": self.committed,
            "log_start": self.first,
            "log_end": self.end,
            "lag": self.lag,
            "member_id": self.member.member_id if self.member is not None else None,
            "problem": self.problem,
            "loss": self.loss,
        }

    @property
    def lag(self) -> int | None:
        """Number of records that a restart would handle at most; without a committed offset it is not known."""
        return None if self.end is None or (start := self.start) is None else self.end - start


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """A group and its partitions: those of the subscribed topics, and those it has committed besides."""

    group_id: str
    state: str
    """As the coordinator names it: Stable, Empty, …; "none" where there is no such group."""
    members: tuple[DescribedMember, ...]
    partitions: tuple[Standing, ...]

    def lines(self) -> Iterator[str]:
        yield self.head
        columns = ("topic", "partition", "committed", "log start", "log end", "lag", "member", "note")
        yield from table(columns, map(_row, self.partitions))

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group_id,
            "state": self.state,
            "members": None if self.count is None else [member_json(member) for member in self.members],
            "partitions": [each.as_json() for each in self.partitions],
        }

    @property
    def head(self) -> str:
        """The group in one line."""
        if self.count is None:
            return f"group {self.group_id}: these brokers tell neither its state nor its members"
        return f"group {self.group_id}: {self.state}, {self.count} members"

    @property
    def count(self) -> int | None:
        """Number of members; None: the brokers do not tell."""
        return None if self.state == NOT_TOLD else len(self.members)


def _row(each: Standing) -> tuple[str | int | None, ...]:
    offsets = (each.committed, each.first, each.end, each.lag)
    return (each.tp.topic, each.tp.partition, *offsets, each.owner, each.problem or each.loss or " ")


def member_json(member: DescribedMember) -> dict[str, Any]:
    """One member for a program."""
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.address,
        "partitions": [str(tp) for tp in member.partitions],
    }


def described(session: ClusterSession) -> Described:
    """The group with its members. Blocks. Raises `ConfigError` for one that no consumer joins: where brokers know no
    consumers of that name, it would pass for a group that does not exist; `FatalGroupError` where it may not be read.
    """
    group = session.described()
    if group.refuses_consumers:
        raise ConfigError(no_consumers(session.group_id, group))
    return group


def look(session: ClusterSession) -> GroupStanding:
    """Ask coordinator and leaders. Blocks.

    Raises `ConfigError` with [assign], where nothing is there, and for a group of others than consumers;
    `FatalGroupError` where the group refuses.
    """
    settings = session.settings
    if settings.assigned:
        raise ConfigError(
            "there is no group: these settings assign partitions by name, and commit nothing; see [assign]"
        )
    group = described(session)
    # Before the offsets: with a topic's id it is known whose leader epochs a commit's metadata names.
    topics = session.topics(settings.subscribed_topics)
    answered = session.ask(session.group.committed) if not group.error else {}
    committed = {tp: found for tp, found in answered.items() if found.offset != NO_OFFSET}
    if besides := {tp.topic for tp in committed}.difference(topics):
        topics = session.topics(settings.subscribed_topics, besides)
    known = session.cluster.metadata.topics
    partitions = {TopicPartition(topic, number) for topic in topics for number in known[topic].partitions}
    if group.state == NOT_TOLD:
        # Such a broker does not list what a group has committed, either; asked for partitions by name, it answers.
        answered = session.ask(lambda: session.group.committed(partitions))
        committed = {tp: found for tp, found in answered.items() if found.offset != NO_OFFSET}
    firsts, ends = (session.log_offsets(dict.fromkeys(partitions, at)) for at in (EARLIEST, LATEST))
    told = session.told_epoch_ends({tp: each.leader_epoch for tp, each in committed.items() if tp in partitions})
    epoch_ends, errors = known_ends(told), unanswered(told)
    held = {tp: member for member in group.members for tp in member.partitions}
    ids = {topic: topic_id_text(known[topic].topic_id) for topic in topics}
    cluster_id = session.cluster.metadata.cluster_id or ""
    anew = {
        tp
        for tp, each in committed.items()
        if is_of_another_topic(each.offset, each.metadata, cluster_id, ids.get(tp.topic, ""))
    }
    rows = tuple(
        replace(
            _standing(tp, answered.get(tp), firsts.get(tp), ends.get(tp), errors.get(tp, ErrorCode.NONE)),
            member=held.get(tp),
            epoch_end=epoch_ends.get(tp),
            anew=tp in anew,
            policy="earliest" if tp.topic in settings.retry_topics else settings.group.auto_offset_reset,
        )
        for tp in sorted(partitions.union(committed))
    )
    return GroupStanding(session.group_id, _state(group), tuple(group.members), rows)


def _state(group: Described) -> str:
    return "none" if group.error == ErrorCode.GROUP_ID_NOT_FOUND else group.state


def _standing(
    tp: TopicPartition,
    committed: Committed | None,
    first: LogOffset | None,
    end: LogOffset | None,
    epoch_error: int,
) -> Standing:
    """`epoch_error`: why the leader does not tell where the committed offset's leader epoch ends."""
    errors = [answer.error for answer in (committed, first, end) if answer is not None and answer.error]
    errors += [epoch_error] if epoch_error else []
    problem = describe(errors[0]) if errors else None if end is not None else "this partition does not exist any more"
    return Standing(
        tp,
        committed.offset if committed is not None and committed.offset != NO_OFFSET else None,
        first.offset if first is not None and not first.error else None,
        end.offset if end is not None and not end.error else None,
        problem=problem,
    )
