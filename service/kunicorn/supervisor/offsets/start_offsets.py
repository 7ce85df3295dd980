"""Start offsets of partitions. None is guessed (invariant 9): the rules are those of `kunicorn.kafka.stored_positions`.

- committed: from there; but what is committed by the name alone, in a transaction, and says that it is of another
  topic, is the position of one that was deleted since: the one that has its name now starts at its beginning;
- never committed: by `auto_offset_reset`, and the choice is committed before anything is fetched. A partition of a
  retry topic, which nobody but this group writes to, starts at its beginning whatever the policy, and so does one whose
  topic was deleted and created anew. That others are committed proves nothing by itself: in a new group members choose
  at the same time, and one look-up may fail where the others do not;
- not in the log any more: by the policy or its leader epoch, logged and counted. A worker meets what lies outside of
  the log. What lies within it, and beyond the end of its own leader epoch, is found here, before it is fetched from;
- no position is taken whose leader cannot tell just now where its epoch ends, nor replaced: leaders answer so behind an
  election, which is when logs are cut. It is looked up again.

The brokers' answers about offsets, with the group's settings filled in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kunicorn.errors import FatalGroupError, PeerError
from kunicorn.group.protocol import Committed, EpochEnd, LogOffset, OffsetFetchAnswer, Offsets
from kunicorn.group.reactions import Api, Reaction, reaction
from kunicorn.ipc import bitmap
from kunicorn.kafka.admin import STALE_METADATA, IsolationLevel, epoch_ends, list_offsets
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.kafka.record_times import first_not_older
from kunicorn.kafka.stored_positions import began_with, done_within, edge_of_new, known_ends, resolve, unanswered
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.observe import logs
from kunicorn.positions import EARLIEST, LATEST, NO_EPOCH, NO_OFFSET, Edges, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.topics import Topics
from kunicorn.text import listed, topic_id_text

log = logs.get("kunicorn.starts")

T = TypeVar("T")

_AT_A_STRETCH = 250
"""So many partitions are told of in the log, each for itself, before the loop has another turn."""


_UNSURE = (
    "whether it was added after the group began is not known yet: wait until the metadata shows it, and the offsets of "
    "its topic's other partitions are stable"
)


@dataclass(slots=True)
class Starts:
    """The start offsets that one look-up found. Partitions in none of the fields have to be looked up again."""

    committed: dict[TopicPartition, Position] = field(default_factory=dict)
    chosen: dict[TopicPartition, Position] = field(default_factory=dict)
    """By policy: to be committed before they are fetched from."""
    given: dict[TopicPartition, Position] = field(default_factory=dict)
    """By the settings, or as the partition has it already: nothing is committed for them."""
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    """Why no start offset can be determined: an operator must act."""
    denied: dict[TopicPartition, str] = field(default_factory=dict)
    """Why the brokers deny us the committed offset; tried again later."""
    open: dict[TopicPartition, str] = field(default_factory=dict)
    """Nothing is committed and `auto_offset_reset` is "none": refused, unless the handler keeps its offsets itself."""
    truncated: set[TopicPartition] = field(default_factory=set)
    """Of those chosen and refused: there was a position, and the log was truncated before it."""
    waiting: dict[TopicPartition, str] = field(default_factory=dict)
    """What the brokers say instead of telling one, and the remedy if that lasts; looked up again."""


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
    of_others: list[TopicPartition] = []
    for tp in partitions:
        found = answer.partitions.get(tp)
        if found is None:
            starts.waiting[tp] = "the answer to OffsetFetch leaves it out: see the coordinator's log"
            continue
        match reaction(Api.OFFSET_FETCH, found.error):
            case Reaction.PROCEED if found.offset >= 0 and offsets.is_of_another_topic(tp.topic, found):
                of_others.append(tp)
            case Reaction.PROCEED if found.offset >= 0:
                starts.committed[tp] = Position(found.offset, found.leader_epoch, found.metadata)
            case Reaction.PROCEED:
                undecided.append(tp)
            case Reaction.GIVE_UP | Reaction.FAIL:
                remedy = fault(found.error).remedy(topic=f"topic {tp.topic!r}", rights="READ")
                starts.denied[tp] = f"OffsetFetch was answered with {describe(found.error)}: {remedy}"
            case _:
                starts.waiting[tp] = _said(tp, "OffsetFetch", found.error)
    await _check_epochs(offsets, starts, policy, from_earliest)
    await _begin_anew(offsets, of_others, starts)
    regular = [tp for tp in undecided if tp.topic not in from_earliest]
    counts: dict[str, int | None] = {}
    if policy == "latest":
        counts = {topic: began_with(topic, known, answer.partitions) for topic in topics}
        anew = {tp.topic for tp in of_others}
        counts |= {topic: 0 for topic in topics if topic in anew or offsets.created_anew(topic)}
    await _choose(offsets, {tp: counts.get(tp.topic) for tp in regular}, policy, known, starts)
    retried = [tp for tp in undecided if tp.topic in from_earliest]
    await _choose(offsets, dict.fromkeys(retried), "earliest", known, starts)
    return starts


async def check(
    offsets: Offsets, held: Mapping[TopicPartition, Position], policy: str, from_earliest: Collection[str] = ()
) -> Starts:
    """Positions of partitions that nobody has fetched for a while, as far as their logs have them still: by the rules
    for what is committed. Raises `PeerError`."""
    starts = Starts(committed=dict(held))
    await _check_epochs(offsets, starts, policy, from_earliest)
    starts.given, starts.committed = starts.committed, {}
    return starts


async def _check_epochs(offsets: Offsets, starts: Starts, policy: str, from_earliest: Collection[str]) -> None:
    """Replace what is committed beyond the end of its leader epoch; take back what nobody can check now."""
    committed = starts.committed
    ends, unchecked = await _ends_of_epochs(offsets, committed)
    cut = {tp: committed[tp] for tp, end in ends.items() if end < committed[tp].offset}
    starts.committed = {
        tp: _as_far_as(each, ends.get(tp)) for tp, each in committed.items() if tp not in cut and tp not in unchecked
    }
    starts.waiting |= unchecked
    if cut:
        again = await recover(offsets, cut, policy, from_earliest, ends)
        starts.chosen, starts.refused = again.chosen, again.refused
        starts.truncated = again.chosen.keys() | again.refused.keys()
        starts.waiting |= again.waiting


async def _ends_of_epochs(
    offsets: Offsets, stored: Mapping[TopicPartition, Position], known: Mapping[TopicPartition, int] | None = None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """Where the logs of the positions' leader epochs end, as far as their leaders know; and for which partitions the
    leader cannot tell just now, and why. `known`: what is known already, and not asked again.

    What is committed beyond that end was truncated while nobody fetched it, and the log may have grown since:
    librdkafka finds that only where the leader changes while it fetches; it would pass over what came instead.
    """
    known = known or {}
    epochs = {tp: at.leader_epoch for tp, at in stored.items() if at.leader_epoch != NO_EPOCH and tp not in known}
    told = await offsets.epoch_ends(epochs) if epochs else {}
    answers = {tp: told.get(tp) or EpochEnd(ErrorCode.UNKNOWN_SERVER_ERROR) for tp in epochs}
    unchecked = {tp: _said(tp, "OffsetForLeaderEpoch", error) for tp, error in unanswered(answers).items()}
    return known_ends(answers) | dict(known), unchecked


def _said(tp: TopicPartition, api: str, error: int) -> str:
    remedy = fault(error).remedy(topic=f"topic {tp.topic!r}", rights="DESCRIBE", setting="group.topics")
    return f"{api} was answered with {describe(error)}: {remedy}"


def _as_far_as(committed: Position, end: int | None) -> Position:
    """The committed position with what is done ahead of it within its leader epoch's log. `end`: None: not known."""
    return committed if end is None else committed._replace(done=done_within(committed, committed.offset, end))


async def begin(offsets: Offsets, partitions: Collection[TopicPartition]) -> Starts:
    """The first offsets of partitions whose topic was created anew since the group consumed the old one.

    What is committed under its name may be of the old one. Raises `PeerError`.
    """
    starts = Starts()
    none_before = bitmap.with_partitions(0, "")
    for tp, found in (await offsets.list_offsets(dict.fromkeys(partitions, EARLIEST))).items():
        if found.error:
            starts.waiting[tp] = _said(tp, "ListOffsets", found.error)
        elif found.offset != NO_OFFSET:
            starts.chosen[tp] = Position(found.offset, found.leader_epoch, none_before)
    return starts


async def _begin_anew(offsets: Offsets, of_others: Collection[TopicPartition], starts: Starts) -> None:
    if not of_others:
        return
    begun = await begin(offsets, of_others)
    starts.chosen |= begun.chosen
    starts.waiting |= begun.waiting
    log.warning(
        f"what is committed of {len(of_others)} partitions is of a topic that had their name before: the new one is "
        f"consumed from its beginning",
        partitions=listed(of_others),
    )


async def _choose(
    offsets: Offsets,
    undecided: Mapping[TopicPartition, int | None],
    policy: str,
    known: Collection[TopicPartition],
    starts: Starts,
) -> None:
    """`undecided`: for each partition, how many its topic had when the group began (`began_with`).

    `known`: under `latest` the partitions there are, as far as our metadata says. One that was assigned and is not
    among them has its leader asked for all the same, which brings the metadata up to date, and is chosen for in the
    next look-up: to the others it would look as if it had been added after the group began.
    """
    edges = {tp: edge_of_new(tp, policy, count) for tp, count in undecided.items()}
    starts.open |= {
        tp: 'nothing is committed for it and auto_offset_reset is "none": commit a start offset'
        for tp, edge in edges.items()
        if edge is None
    }
    queries = {tp: edge for tp, edge in edges.items() if edge is not None}
    chosen = {}
    for tp, found in (await offsets.list_offsets(queries) if queries else {}).items():
        sure = policy != "latest" or (tp in known and undecided[tp] is not None)
        if found.error:
            starts.waiting[tp] = _said(tp, "ListOffsets", found.error)
        elif not sure:
            starts.waiting[tp] = _UNSURE
        elif found.offset != NO_OFFSET:
            chosen[tp] = Position(found.offset, found.leader_epoch, bitmap.with_partitions(undecided[tp], ""))
    if chosen:
        starts.chosen.update(chosen)
        # One line: a new group on a wide topic would write thousands.
        shown = listed(f"{tp}@{start.offset}" for tp, start in chosen.items())
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
    for tp, each in (await first_not_older(offsets.list_offsets, queries)).items():
        if each.error:
            starts.waiting[tp] = _said(tp, "ListOffsets", each.error)
        elif each.offset != NO_OFFSET:
            starts.given[tp] = Position(each.offset, each.leader_epoch)
            log.info(f"{tp} starts at offset {each.offset}")
    return starts


async def recover(
    offsets: Offsets,
    lost: Mapping[TopicPartition, Position],
    policy: str,
    from_earliest: Collection[str] = (),
    epoch_ends: Mapping[TopicPartition, int] | None = None,
) -> Starts:
    """New start offsets for positions that the log does not hold; `from_earliest` as in `look_up`. `epoch_ends`: where
    leaders have just said that the positions' epochs end. Raises `PeerError`."""
    starts = Starts()
    policies = {tp: "earliest" if tp.topic in from_earliest else policy for tp in lost}
    earliest, latest = await asyncio.gather(
        offsets.list_offsets(dict.fromkeys(lost, EARLIEST)), offsets.list_offsets(dict.fromkeys(lost, LATEST))
    )
    ends, starts.waiting = await _ends_of_epochs(offsets, lost, epoch_ends)
    async for tp, position in in_stretches(lost.items()):
        first, last = earliest.get(tp), latest.get(tp)
        if first is None or last is None or tp in starts.waiting:
            continue
        if error := first.error or last.error:
            starts.waiting[tp] = _said(tp, "ListOffsets", error)
            continue
        edges, policy = Edges(first.offset, last.offset), policies[tp]
        target = resolve(tp, position, edges, policy, epoch_end=ends.get(tp)).offset
        where = f"position {position.offset} is not in the log ({edges.first}-{edges.end})"
        if target is None:
            starts.refused[tp] = f'{where} and auto_offset_reset is "none"'
            continue
        # Of an unknown epoch the log may have been cut: what is done ahead would be other records.
        starts.chosen[tp] = Position(target, done=done_within(position, target, ends.get(tp, target)))
        log.warning(f"{tp}: {where}, going on at {target}", skipped=max(0, target - position.offset), policy=policy)
    return starts


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
        if any(found.error in STALE_METADATA for found in answer.values()):
            self._topics.doubt()
        return answer

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        return await epoch_ends(self._cluster, queries, min(self._timeout, _ENDS_TIMEOUT))

    async def confirm_ids(self, topics: Collection[str]) -> None:
        await self._topics.confirm_ids(topics)

    def is_of_another_topic(self, topic: str, committed: Committed) -> bool:
        now = topic_id_text(self._topics.topic_id(topic))
        return bitmap.is_of_another_topic(committed.offset, committed.metadata, self._topics.cluster_id, now)

    def created_anew(self, topic: str) -> bool:
        return self._topics.created_anew(topic)

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return self._topics.partitions_of(topics)
