"""The topics of the subscription (`Topics`), what a leader's plan is based on (`PlanGround`), and which topics are gone
for good (`Departed`).

`TopicIds` decides which of the ids that brokers name for a topic is its own now. Pure. A topic that is deleted and
created again has another id, and is consumed from its beginning: a wrong decision repeats a whole log. Brokers learn of
it at different times, and one that is cut off from the controller never does. Ids say nothing of their order, so that
nobody can tell a new one from an old one by itself:

- one that was never seen counts when two answers in a row name it, of two brokers if two are well (`Topics` sees to
  that), or at once if the topic was gone before;
- one that was replaced is most likely a stale broker's. But the one that replaced it may have been that, so it counts
  again when answers in a row name it, twice as many as the last time that such a one did: between two brokers that
  disagree for ever decisions get ever rarer, and where all agree the truth is found in the end;
- one under which a coordinator has assigned partitions counts at once.

Which topics there are, and how many partitions, is told in the same answers, and as little true where the broker lags:
a leader that believed it would take them from the whole group. That a topic is gone, or has fewer partitions than were
known, counts when another broker says so, too, if another is well (`Topics._look`). Should both lag, they are looked
for again soon, then ever more rarely, and are joined for as they come back. Where nothing was known, one answer counts.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kunicorn.errors import PeerError
from kunicorn.group.assignors.racks import PartitionRacks
from kunicorn.ipc import clock
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka_errors import ErrorCode
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.notifier import Notifier

_AGREEMENT = 2


@dataclass(slots=True)
class _Known:
    first: UUID
    now: UUID
    replaced: set[UUID] = field(default_factory=set)
    candidate: UUID | None = None
    answers: int = 0
    """So many in a row have named the candidate."""
    agreement: int = _AGREEMENT
    """So many it took the last time that an id which was replaced came back."""
    gone: bool = False

    def replace(self, topic_id: UUID) -> None:
        self.replaced.add(self.now)
        self.now = topic_id
        self.drop_candidate()

    def drop_candidate(self) -> None:
        self.candidate, self.answers, self.gone = None, 0, False


class TopicIds:
    """The id of each topic, decided from the answers of brokers."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def now(self, topic: str) -> UUID | None:
        """The id that counts; None where none was ever heard of."""
        known = self._known.get(topic)
        return known.now if known is not None else None

    def changed_since_first(self, topic: str) -> bool:
        """Whether another topic had this name when it was first heard of."""
        known = self._known.get(topic)
        return known is not None and known.first != known.now

    def is_unsure(self, topic: str) -> bool:
        """Whether the last answer named another id, and more answers decide."""
        known = self._known.get(topic)
        return known is not None and known.candidate is not None

    def hear(self, topic: str, topic_id: UUID | None) -> bool:
        """Note the id in a broker's answer, None where it knows no such topic; returns whether another id counts
        now."""
        known = self._known.get(topic)
        if known is None:
            if topic_id is not None:
                self._known[topic] = _Known(topic_id, topic_id)
            return False
        if topic_id is None:
            known.gone = True
            return False
        if topic_id == known.now:
            known.drop_candidate()
            return False
        known.answers = known.answers + 1 if topic_id == known.candidate else 1
        known.candidate = topic_id
        returns = topic_id in known.replaced
        if known.answers < (2 * known.agreement if returns else 1 if known.gone else _AGREEMENT):
            return False
        known.agreement *= 2 if returns else 1
        known.replace(topic_id)
        return True

    def adopt(self, topic: str, topic_id: UUID) -> bool:
        """Note an id under which the coordinator has assigned partitions; returns whether another one counted
        before."""
        known = self._known.setdefault(topic, _Known(topic_id, topic_id))
        changed = known.now != topic_id
        if changed:
            known.replace(topic_id)
        return changed

    def forget(self, topic: str) -> None:
        """Drop the ids of a topic that is gone for good."""
        self._known.pop(topic, None)


log = logs.get("kunicorn.topics")

_CONFIRMATIONS = 5
"""Answers, more than two brokers that disagree for a moment need."""
_CONFIRM_PAUSE = 0.1
"""Seconds."""
_HURRY = 1.0
"""Seconds between refreshes when somebody has reason to doubt the metadata."""


class PlanGround(NamedTuple):
    """The topics and racks that a plan is based on."""

    counts: Mapping[str, int]
    """Partitions by topic, of those topics that exist."""
    racks: PartitionRacks


class Topics:
    """Names and patterns (a leading ^) resolved against the cluster, watched for changes."""

    def __init__(self, wanted: Sequence[str], cluster: Cluster, *, brokers_match: bool = False) -> None:
        """`brokers_match`: the patterns are the brokers' to match; topics become known as they are assigned."""
        self._brokers_match = brokers_match
        self._names = [topic for topic in wanted if not topic.startswith("^")]
        self._patterns = [re.compile(topic) for topic in wanted if topic.startswith("^")]
        self._assigned: set[str] = set()
        """Topics that brokers matched and gave us partitions of."""
        self._matched: set[str] = set()
        """Topics that our patterns have matched here, until they are gone for good."""
        self._cluster = cluster
        self._planned: frozenset[str] = frozenset()
        """All members' topics, while we lead: a change in any of them asks for a new plan."""
        self._doubted = False
        self._doubts = Notifier()
        self.recreated = asyncio.Event()
        """Set when a topic was seen to have another id than before. Read and cleared by the group driver."""
        self._ids = TopicIds()
        self._subscription: tuple[str, ...] = ()
        """What we joined with."""
        self._ground: dict[str, int] = {}
        """What our subscription and our plan stood on when they were made: topics, and partition counts of those that
        we planned for. Followers compare names alone: the leader finds new partitions, and one rebalance is enough."""
        self._by_rack = False
        self._racks: PartitionRacks = {}
        self._believed: Mapping[str, int] = {}
        """Partition counts by topic, as far as they were looked at and count."""
        self._pause = float("inf")
        """Seconds until changes are looked for again, where that is sooner than usual."""

    def subscribed(self) -> tuple[str, ...]:
        """The topics to subscribe to now, sorted."""
        if self._brokers_match:
            return tuple(sorted(self._assigned.union(self._names)))
        topics = self._cluster.metadata.topics
        known = [name for name, info in topics.items() if info.can_match]
        matching = {name for name in known for pattern in self._patterns if pattern.match(name)}
        return tuple(sorted(matching.union(self._names)))

    @property
    def remembered(self) -> set[str]:
        """The topics to subscribe to now, and those that were before and may be gone."""
        return self._matched.union(self.subscribed())

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that were wanted by name."""
        return tuple(sorted(self._names))

    @property
    def pattern(self) -> str:
        """All patterns as one for brokers, which match it against whole names by the rules of RE2; "" for none.

        Ours are matched from the beginning only, as librdkafka does.
        """
        return "|".join(f"(?:{each.pattern}).*" for each in self._patterns)

    async def name(self, topic_ids: Collection[UUID]) -> Mapping[UUID, str]:
        """The names of topic ids that were assigned to us, as far as brokers know. Raises `PeerError`."""
        names = await self._cluster.name_topics(topic_ids)
        self._assigned.update(names.values())
        changed = [topic for topic_id, topic in names.items() if self._ids.adopt(topic, topic_id)]
        if changed:
            self.recreated.set()
        return names

    def topic_id(self, topic: str) -> UUID | None:
        """The id of the topic that has this name now, as far as the brokers say and agree (`TopicIds`)."""
        told = self._told_id(topic)
        return told and (self._ids.now(topic) or told)

    @property
    def cluster_id(self) -> str:
        """Of the brokers; empty where they tell none."""
        return self._cluster.metadata.cluster_id or ""

    def _told_id(self, topic: str) -> UUID | None:
        info = self._cluster.metadata.topics.get(topic)
        return info.topic_id if info is not None and not info.error else None

    def _is_known_without_id(self, topic: str) -> bool:
        info = self._cluster.metadata.topics.get(topic)
        return info is not None and not info.error and info.topic_id is None

    def is_gone(self, topic: str) -> bool:
        """Whether the brokers said, when last asked, that there is no such topic."""
        info = self._cluster.metadata.topics.get(topic)
        return info is not None and info.gone

    def exists(self, topic: str) -> bool:
        """Whether the brokers named it when last asked."""
        info = self._cluster.metadata.topics.get(topic)
        return info is not None and not info.gone and info.error != ErrorCode.INVALID_TOPIC_EXCEPTION

    def forget(self, topics: Collection[str]) -> None:
        """Drop all that is known of topics that are gone for good, but for those that are wanted by name."""
        over = {topic for topic in topics if topic not in self._names}
        self._assigned -= over
        self._matched -= over
        for topic in over:
            self._ids.forget(topic)
        self._cluster.forget(over)

    def created_anew(self, topic: str) -> bool:
        """Whether another topic had this name when we first saw it."""
        return self.topic_id(topic) is not None and self._ids.changed_since_first(topic)

    def missing(self) -> list[tuple[str, int]]:
        """Subscribed names that the cluster does not show us, with the error code."""
        topics = self._cluster.metadata.topics
        return [
            (name, topics[name].error if name in topics else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            for name in self._names
            if name not in topics or topics[name].error
        ]

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        """All partitions of these topics, as known now."""
        known = self._cluster.metadata.topics
        return [TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions]

    def counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Partition counts of those topics that exist."""
        known = self._cluster.metadata.topics
        return {t: len(known[t].partitions) for t in topics if t in known and known[t].partitions}

    async def refresh(self, others: Collection[str] = ()) -> None:
        """Ask the cluster, for all topics only where a pattern needs them. Raises `PeerError`."""
        if self._patterns and not self._brokers_match:
            await self._refresh_all(others)
        else:
            await self._cluster.refresh({*self._names, *self._assigned, *self._planned, *others})
        self._note_ids(self.remembered.union(others))

    async def _refresh_all(self, others: Collection[str]) -> None:
        """Ask for all topics, and by name for those that the answer lacks: it leaves out without a word what is gone,
        and what this user may not see."""
        await self._cluster.refresh(None)
        self._matched.update(self.subscribed())
        if absent := self._matched.union(others) - self._cluster.metadata.topics.keys():
            await self._cluster.refresh(absent)

    async def look_for(self, topics: Collection[str]) -> None:
        """Ask which of these exist, which are not ours. Raises `PeerError`."""
        if topics:
            await self._cluster.refresh(topics)

    async def confirm_ids(self, topics: Collection[str]) -> None:
        """Ask which topics have these names now, again and again while one of them may have been created anew; after
        some answers what counts then has to do. Asks nothing where brokers know no ids (Kafka before 2.8). Raises
        `PeerError`.
        """
        if all(map(self._is_known_without_id, topics)):
            return
        for _ in range(_CONFIRMATIONS):
            await self.refresh(topics)
            if not any(self._ids.is_unsure(topic) for topic in topics):
                return
            await asyncio.sleep(_CONFIRM_PAUSE)

    async def plan_for(self, topics: Collection[str], *, by_rack: bool) -> PlanGround:
        """Fresh partition counts for a plan, and racks if members name theirs; watched from now on.

        Raises `PeerError`.
        """
        self._planned, self._by_rack = frozenset(topics), by_rack
        await self._look()
        return self._planned_ground()

    def plan_on_known(self, topics: Collection[str], *, by_rack: bool) -> PlanGround | None:
        """The same, of what is known already; None where one of the topics was never seen. What has changed since asks
        for another plan."""
        if not all(self.counts([topic]) for topic in topics):
            return None
        self._planned, self._by_rack = frozenset(topics), by_rack
        self.doubt()
        return self._planned_ground()

    def _planned_ground(self) -> PlanGround:
        # What we joined with, not what matches by now: a topic that was created between the two would never be asked
        # for.
        self._ground, self._racks = self._joined_with(), self._planned_racks()
        return PlanGround(self.counts(self._planned), self._racks)

    def plan_stands_on(self, assigned: Collection[TopicPartition]) -> None:
        """Note that the plan in force, which another leader has made or this one before its restart, deals out these:
        whatever there is besides asks for another plan."""
        dealt = Counter(tp.topic for tp in assigned)
        known = {topic: min(count, dealt[topic]) for topic, count in self.counts(self._planned).items()}
        self._ground = {**self._joined_with(), **known}
        self.doubt()

    def match_here(self) -> None:
        """Match patterns here from now on, against all topics there are: the brokers do not match them. The topics are
        asked for soon, as those that only patterns name are not known yet."""
        self._brokers_match = False
        self.doubt()

    def subscribe(self) -> tuple[str, ...]:
        """The topics to join with; what changes from here on asks for another join."""
        if self._fewer_than(self._believed):
            self._doubt_broker()  # An answer to somebody else's question left out what one of our patterns matches.
        self._subscription, self._ground = self.subscribed(), self._current()
        return self._subscription

    def watch_counts(self, topics: Collection[str]) -> None:
        """Take more partitions of these for a change, too. Caller: a manual assignment, which no leader watches."""
        self._planned = frozenset(topics)
        self._ground = self._current()

    def stop_leading(self) -> None:
        """Stop watching the plan's topics, as another member leads. Caller: `GroupDriver`."""
        if self._planned:
            self._planned, self._by_rack, self._racks = frozenset(), False, {}
            self._ground = self._joined_with()

    def doubt(self) -> None:
        """Refresh the metadata soon: an answer did not fit it."""
        self._doubted = True
        self._doubts.notify()

    def _doubt_broker(self) -> None:
        """Refresh the metadata soon, by another broker than the one that has answered, if another is well."""
        self._cluster.ask_another()
        self.doubt()

    def _doubt_answer(self) -> None:
        """Likewise, and again after one, two, four ... seconds: a broker that is behind may be asked alone while no
        other one is well, and be asked alone again."""
        self._pause = _HURRY
        self._doubt_broker()

    async def changes(self, max_age: float) -> str:
        """Wait until the subscription or the plan would be another one; return what changed, in words."""
        while True:
            soon, self._pause = self._pause, 2 * self._pause
            if await self._doubts.wait(lambda: self._doubted, clock.now() + min(soon, max_age)):
                await asyncio.sleep(_HURRY)
                self._cluster.doubt()
            elif soon < max_age:
                self._cluster.ask_another()
            self._doubted = False
            try:
                await self._look()
            except PeerError as error:
                log.info(f"metadata could not be refreshed: {error}")
                self.doubt()
                continue
            before, self._ground = self._ground, self._current()
            racks, self._racks = self._racks, self._planned_racks()
            if before != self._ground:
                return _difference(before, self._ground)
            if racks != self._racks:
                return "replicas are in other racks than were known"

    async def _look(self) -> None:
        """Refresh what the subscription and the plan stand on; ask another broker, too, before fewer topics or
        partitions than were known are believed. Raises `PeerError`."""
        # Others have asked meanwhile: a broker that lags may have answered, or one that knows more.
        known = Counter(self._believed) | Counter(self._watched())
        await self.refresh()
        if self._fewer_than(known):
            self._cluster.ask_another()
            await self.refresh()
            if self._fewer_than(known):
                self._doubt_answer()
        self._believed = self._watched()

    def _watched(self) -> Mapping[str, int]:
        return self.counts(self._planned.union(self.remembered))

    def _fewer_than(self, known: Mapping[str, int]) -> bool:
        now = self.counts(known)
        return any(now.get(topic, 0) < count for topic, count in known.items())

    def _planned_racks(self) -> PartitionRacks:
        return self._cluster.metadata.racks(self._planned) if self._by_rack else {}

    def _note_ids(self, asked: Collection[str]) -> None:
        changed = False
        for topic in asked:
            told = self._told_id(topic)
            if told is not None or self.is_gone(topic):
                changed |= self._ids.hear(topic, told)
            if self._ids.is_unsure(topic):
                self.doubt()
                self._cluster.ask_another()
        if changed:
            self.recreated.set()
            # For as long as the id of a topic that is gone is believed, nothing of the one that there is is committed.
            self._doubt_answer()

    def _current(self) -> dict[str, int]:
        return self._ground_of(self.subscribed())

    def _joined_with(self) -> dict[str, int]:
        return self._ground_of(self._subscription)

    def _ground_of(self, subscription: Collection[str]) -> dict[str, int]:
        return {**dict.fromkeys(subscription, 0), **self.counts(self._planned)}


_REMEMBERED = 900.0
"""Seconds: alerts look back for as long at what was counted of a topic."""
_LOOK = 300.0


class Departed:
    """Topics that we subscribed or that handlers sent to, and that are gone: with a pattern, or where records name
    them, topics may come and go for ever, each with series of its own in the metrics. Pure."""

    def __init__(self, exists: Callable[[str], bool]) -> None:
        self._exists = exists
        self._last_there: dict[str, float] = {}

    def look(self, ours: Collection[str], now: float, others: Collection[str] = ()) -> list[str]:
        """The topics to be forgotten: not among `ours`, and not there, for a quarter of an hour. `others`: those that
        something is known of, which may never have been ours, or there."""
        for topic in {*self._last_there, *ours, *others}:
            if topic not in self._last_there or topic in ours or self._exists(topic):
                self._last_there[topic] = now
        over = [topic for topic, last in self._last_there.items() if now - last >= _REMEMBERED]
        for topic in over:
            del self._last_there[topic]
        return over


async def forget_departed(
    topics: Topics, ours: Iterable[TopicPartition], metrics: Metrics, forget: Callable[[str], None]
) -> None:
    """Have what is known and counted of topics forgotten that are gone, for ever. `ours`: the partitions that are ours
    at each look. `forget` is called with each topic, for what others know of it. Caller: the service, as a task."""
    departed = Departed(topics.exists)
    while True:
        outputs = frozenset(metrics.outputs)
        try:
            await topics.look_for(outputs)
        except PeerError as error:
            log.info(f"which topics are gone is not known: {error}")
        else:
            over = departed.look({tp.topic for tp in ours}, clock.now(), topics.remembered | outputs)
            topics.forget(over)
            for topic in over:
                metrics.forget(topic)
                forget(topic)
        await asyncio.sleep(_LOOK)


def _difference(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    changes = [
        _change(topic, before.get(topic), now.get(topic))
        for topic in sorted({*before, *now})
        if before.get(topic) != now.get(topic)
    ]
    return "topics changed: " + ", ".join(changes)[:200]


def _change(topic: str, before: int | None, now: int | None) -> str:
    """In words; the counts are 0 where they were not looked at."""
    if before is None:
        return f"{topic} is new"
    if now is None:
        return f"{topic} is gone"
    return f"{topic}: {before} to {now} partitions"
