"""Start offsets of partitions. None is guessed (invariant 9).

- committed: from there;
- never committed: by `auto_offset_reset`, and the choice is committed before anything is fetched. A partition that was
  added after the group began to consume its topic is new: it starts at its beginning whatever the policy, else the
  records between its creation and our noticing it would be lost under `latest`; so does one of a topic that was
  deleted and created anew; and so does every partition of a retry topic, which nobody but this group writes to.
  Under `latest` every commit says in its metadata how many partitions the topic had when the group began. That
  others are committed proves nothing by itself: in a new group members choose at the same time, and one look-up
  may fail where the others do not;
- below the log's start (retention): by policy, logged and counted;
- above the log's end (truncation): where the log of the last epoch we saw ends (KIP-320), never at `latest`.

The brokers' answers about offsets, with the group's settings filled in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from kunicorn.errors import FatalGroupError, PeerError
from kunicorn.group.protocol import (
    EARLIEST,
    LATEST,
    Committed,
    EpochEnd,
    LogOffset,
    OffsetFetchAnswer,
    Offsets,
)
from kunicorn.group.reactions import Api, Reaction, reaction
from kunicorn.ipc import bitmap
from kunicorn.kafka.admin import IsolationLevel, epoch_ends, list_offsets
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.observe import logs
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.topics import Topics

log = logs.get("kunicorn.starts")

T = TypeVar("T")

_AT_A_STRETCH = 250
"""So many partitions are told of in the log, each for itself, before the loop has another turn."""


@dataclass(slots=True)
class Starts:
    """The start offsets that one look-up found. Partitions in none of the fields have to be looked up again."""

    committed: dict[TopicPartition, Position] = field(default_factory=dict)
    chosen: dict[TopicPartition, Position] = field(default_factory=dict)
    """By policy: to be committed before they are fetched from."""
    given: dict[TopicPartition, Position] = field(default_factory=dict)
    """By the settings: nothing is committed for them."""
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    """Why no start offset can be determined: an operator must act."""
    denied: dict[TopicPartition, str] = field(default_factory=dict)
    """Why the brokers deny us the committed offset; tried again later."""
    open: dict[TopicPartition, str] = field(default_factory=dict)
    """Nothing is committed and `auto_offset_reset` is "none": refused, unless the handler keeps its offsets itself."""


async def look_up(
    offsets: Offsets, partitions: Collection[TopicPartition], policy: str, from_earliest: Collection[str] = ()
) -> Starts:
    """Start offsets of partitions that were just assigned; those of topics `from_earliest` by that, whatever the
    policy.

    Raises `PeerError` where asking again may help, `FatalGroupError` where only a person can.
    """
    starts = Starts()
    topics = {tp.topic for tp in partitions}
    # Taken before the logs' ends are asked for: what is added from here on is no part of what the group begins with.
    known = frozenset(offsets.partitions_of(topics)) if policy == "latest" else frozenset()
    answer = await offsets.fetch_committed(known.union(partitions))
    if answer.error != ErrorCode.NONE:
        why = f"OffsetFetch was answered with {describe(answer.error)}"
        if reaction(Api.OFFSET_FETCH, answer.error) is Reaction.FAIL:
            raise FatalGroupError(f"{why}: {fault(answer.error).remedy()}")
        raise PeerError(why)
    undecided: list[TopicPartition] = []
    for tp in partitions:
        found = answer.partitions.get(tp)
        if found is None:
            continue
        match reaction(Api.OFFSET_FETCH, found.error):
            case Reaction.PROCEED if found.offset >= 0:
                starts.committed[tp] = Position(found.offset, found.leader_epoch, found.metadata)
            case Reaction.PROCEED:
                undecided.append(tp)
            case Reaction.GIVE_UP | Reaction.FAIL:
                remedy = fault(found.error).remedy(topic=f"topic {tp.topic!r}", rights="READ")
                starts.denied[tp] = f"OffsetFetch was answered with {describe(found.error)}: {remedy}"
            case _:
                log.info(f"the committed offset of {tp} is not stable yet (error {found.error}), asking again")
    regular = [tp for tp in undecided if tp.topic not in from_earliest]
    if policy == "latest":
        began_with = {topic: _began_with(topic, known, answer.partitions) for topic in topics}
        began_with |= {topic: 0 for topic in topics if offsets.created_anew(topic)}
        await _choose_latest(offsets, regular, known, began_with, starts)
    else:
        await _choose(offsets, regular, policy, starts)
    await _choose(offsets, [tp for tp in undecided if tp.topic in from_earliest], "earliest", starts)
    return starts


def _began_with(
    topic: str, known: Collection[TopicPartition], answers: Mapping[TopicPartition, Committed]
) -> int | None:
    """How many partitions the topic had when the group began to consume it: now, if the group has not begun.

    Offsets that other clients have committed do not say it: what lies above all of them was added since. None where
    the answers leave it open: some offset may be committed that they do not show.
    """
    committed = {tp.partition: each for tp, each in answers.items() if tp.topic == topic and each.offset >= 0}
    told = [count for each in committed.values() if (count := bitmap.partitions(each.metadata)) is not None]
    if told:
        return min(told)
    ours = [tp for tp in known if tp.topic == topic]
    if any(tp not in answers or answers[tp].error for tp in ours):
        return None
    return max(committed) + 1 if committed else len(ours)


async def begin(offsets: Offsets, partitions: Collection[TopicPartition]) -> Starts:
    """The first offsets of partitions whose topic was created anew while we consumed the old one.

    What is committed under its name may be of the old one. Raises `PeerError`.
    """
    starts = Starts()
    none_before = bitmap.with_partitions(0, "")
    for tp, found in (await offsets.list_offsets(dict.fromkeys(partitions, EARLIEST))).items():
        if found.error == ErrorCode.NONE and found.offset != NO_OFFSET:
            starts.chosen[tp] = Position(found.offset, found.leader_epoch, none_before)
    return starts


async def _choose_latest(
    offsets: Offsets,
    undecided: Collection[TopicPartition],
    known: Collection[TopicPartition],
    began_with: Mapping[str, int | None],
    starts: Starts,
) -> None:
    """`known`: the partitions there are, as far as our metadata says. One that was assigned and is not among them has
    its leader asked for all the same, which brings the metadata up to date, and is chosen for in the next look-up:
    to the others it would look as if it had been added after the group began."""
    counts = {tp: count for tp in undecided if (count := began_with[tp.topic]) is not None}
    queries = {tp: LATEST if tp.partition < count else EARLIEST for tp, count in counts.items()}
    queries |= {tp: LATEST for tp in undecided if tp not in known}
    chosen = {}
    for tp, found in (await offsets.list_offsets(queries) if queries else {}).items():
        if tp in known and found.error == ErrorCode.NONE and found.offset != NO_OFFSET:
            metadata = bitmap.with_partitions(counts[tp], "")
            chosen[tp] = Position(found.offset, found.leader_epoch, metadata)
    _note_chosen(starts, chosen, "latest")


async def _choose(offsets: Offsets, undecided: Collection[TopicPartition], policy: str, starts: Starts) -> None:
    if policy == "none":
        for tp in undecided:
            starts.open[tp] = 'nothing is committed for it and auto_offset_reset is "none": commit a start offset'
        return
    queries = dict.fromkeys(undecided, EARLIEST)
    chosen = {}
    for tp, found in (await offsets.list_offsets(queries) if queries else {}).items():
        if found.error == ErrorCode.NONE and found.offset != NO_OFFSET:
            chosen[tp] = Position(found.offset, found.leader_epoch)
    _note_chosen(starts, chosen, policy)


def _note_chosen(starts: Starts, chosen: Mapping[TopicPartition, Position], policy: str) -> None:
    if chosen:
        starts.chosen.update(chosen)
        # One line: a new group on a wide topic would write thousands.
        shown = " ".join(f"{tp}@{start.offset}" for tp, start in islice(chosen.items(), 20))
        log.info(f"{len(chosen)} partitions were never committed: starting by policy", policy=policy, at=shown)


async def in_stretches(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a turn of the loop now and then: there may be thousands, and each has its line in the log."""
    for number, each in enumerate(items, 1):
        yield each
        if number % _AT_A_STRETCH == 0:
            await asyncio.sleep(0)


async def find(offsets: Offsets, queries: Mapping[TopicPartition, int]) -> Starts:
    """Start offsets by time, for partitions that [assign] names; the log's end where all records are older.

    `queries`: milliseconds since 1970, `EARLIEST` or `LATEST`. Raises `PeerError`.
    """
    starts = Starts()
    found = await offsets.list_offsets(queries) if queries else {}
    older = [tp for tp, each in found.items() if not each.error and each.offset == NO_OFFSET]
    ends = await offsets.list_offsets(dict.fromkeys(older, LATEST)) if older else {}
    for tp, each in {**found, **ends}.items():
        if not each.error and each.offset != NO_OFFSET:
            starts.given[tp] = Position(each.offset, each.leader_epoch)
            log.info(f"{tp} starts at offset {each.offset}")
    return starts


async def recover(
    offsets: Offsets, lost: Mapping[TopicPartition, Position], policy: str, from_earliest: Collection[str] = ()
) -> Starts:
    """New start offsets for positions that the log does not hold; `from_earliest` as in `look_up`. Raises
    `PeerError`."""
    starts = Starts()
    policies = {tp: "earliest" if tp.topic in from_earliest else policy for tp in lost}
    starts.refused = {
        tp: f'offset {position.offset} is not in the log and auto_offset_reset is "none"'
        for tp, position in lost.items()
        if policies[tp] == "none"
    }
    lost = {tp: position for tp, position in lost.items() if tp not in starts.refused}
    if not lost:
        return starts
    earliest, latest = await asyncio.gather(
        offsets.list_offsets(dict.fromkeys(lost, EARLIEST)), offsets.list_offsets(dict.fromkeys(lost, LATEST))
    )
    epochs = {tp: position.leader_epoch for tp, position in lost.items() if position.leader_epoch != NO_EPOCH}
    ends = await offsets.epoch_ends(epochs) if epochs else {}
    async for tp, position in in_stretches(lost.items()):
        first, last = earliest.get(tp), latest.get(tp)
        if first is None or last is None or first.error or last.error:
            continue
        target = _nearest(position, first.offset, last.offset, ends.get(tp), policies[tp])
        starts.chosen[tp] = Position(target)
        log.warning(
            f"{tp}: position {position.offset} is not in the log ({first.offset}-{last.offset}), going on at {target}",
            skipped=max(0, target - position.offset),
            policy=policies[tp],
        )
    return starts


def _nearest(position: Position, first: int, last: int, end: EpochEnd | None, policy: str) -> int:
    if position.offset < first:
        return last if policy == "latest" else first
    if end is not None and not end.error and end.end_offset != NO_OFFSET:
        return max(first, min(position.offset, end.end_offset))
    return max(first, min(position.offset, last))


_ENDS_TIMEOUT = 5.0
"""Seconds; a leader knows where its log begins and ends, only times have to be searched for. One that is frozen keeps
its connections, and start offsets led by the others wait for its answer, too."""


class Brokers:
    """Implements `Offsets` with the cluster's and the coordinator's answers, and the settings' isolation and
    time-outs."""

    def __init__(
        self, settings: Settings, cluster: Cluster, coordinator: Coordinator, topics: Topics, member: MemberState
    ) -> None:
        self._member = member
        self._cluster = cluster
        self._coordinator = coordinator
        self._topics = topics
        self._isolation_level = IsolationLevel[settings.kafka.isolation_level.upper()]
        self._timeout = settings.kafka.request_timeout_ms / 1000

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> OffsetFetchAnswer:
        if self._coordinator.node is None:
            raise PeerError("the coordinator is being looked up")
        member_id, epoch = self._member.reader
        return await self._coordinator.fetch_offsets(
            partitions=partitions, require_stable=True, timeout=self._timeout, member_id=member_id, epoch=epoch
        )

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        searched = any(at >= 0 for at in queries.values())
        timeout = self._timeout if searched else min(self._timeout, _ENDS_TIMEOUT)
        answer = await list_offsets(self._cluster, queries, self._isolation_level, timeout)
        if any(found.error for found in answer.values()):
            self._topics.doubt()
        return answer

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        return await epoch_ends(self._cluster, queries, self._timeout)

    def created_anew(self, topic: str) -> bool:
        return self._topics.created_anew(topic)

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return self._topics.partitions_of(topics)
