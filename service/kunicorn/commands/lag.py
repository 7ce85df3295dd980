"""`kunicorn lag`: lag of the group in records and in time, as the brokers know it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from kunicorn.clients.session import cluster_session
from kunicorn.commands.group_lag import GroupStanding, Standing, look
from kunicorn.handler.config import delay_in_words
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.text import duration, table

Ages = Mapping[TopicPartition, float]
"""Seconds since the oldest unhandled record was written (in a retry topic, and with `delay_ms`: since its time came), 0
without lag; where it is not known there is no entry."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Sums over one topic's partitions."""

    topic: str
    partitions: int
    lag: int
    worst: int
    oldest_seconds: float | None
    unknown: int
    """Partitions whose lag is not known: nothing is committed, or their leader does not answer."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind a group is, and for how long."""

    group: GroupStanding
    ages: Ages
    delays_ms: Mapping[str, int]
    """Of the topics whose records wait for their time."""
    most: int
    """So many partitions are shown to a person, those with the greatest lag."""

    def lines(self) -> Iterator[str]:
        yield from _shown(self.group, self.ages, self.most)
        for topic, delay_ms in self.delays_ms.items():
            yield f"records of {topic} wait {delay_in_words(delay_ms)} for their time, which counts as lag, not as age"

    def as_json(self) -> dict[str, object]:
        group, ages = self.group, self.ages
        return {
            "group": group.group_id,
            "state": group.state,
            "members": group.count,
            "lag": sum(each.lag or 0 for each in group.partitions),
            "topics": [asdict(each) for each in by_topic(group.partitions, ages)],
            "partitions": [{**each.as_json(), "oldest_seconds": ages.get(each.tp)} for each in group.partitions],
            "delays_ms": dict(self.delays_ms),
        }


def lag(settings: Settings, most: int) -> Lag:
    """Ask the brokers. Blocks. Raises `ConfigError`, `FatalGroupError`."""
    with cluster_session(settings) as session:
        group = look(session)
        behind = {each.tp: each.start for each in group.partitions if each.lag and each.start is not None}
        told = session.record_times(behind)
    waits = {topic: settings.delay_ms_of(topic) for topic in {each.tp.topic for each in group.partitions}}
    due = {tp: timestamp_ms + waits[tp.topic] for tp, timestamp_ms in told.items()}
    delays = {topic: waits_ms for topic, waits_ms in sorted(waits.items()) if waits_ms}
    return Lag(group, _ages(group.partitions, due, time.time()), delays, most)


def by_topic(partitions: Sequence[Standing], ages: Ages) -> list[TopicLag]:
    """Sums, worst topic first. Pure."""
    topics = []
    for name in {each.tp.topic for each in partitions}:
        own = [each for each in partitions if each.tp.topic == name]
        lags = [each.lag for each in own if each.lag is not None]
        oldest = [ages[each.tp] for each in own if each.tp in ages]
        unknown = len(own) - len(lags)
        topics.append(TopicLag(name, len(own), sum(lags), max(lags, default=0), max(oldest, default=None), unknown))
    return sorted(topics, key=lambda topic: (-topic.lag, topic.topic))


def _ages(partitions: Sequence[Standing], told: Mapping[TopicPartition, int], now: float) -> Ages:
    none_waits = {each.tp: 0.0 for each in partitions if each.lag == 0}
    return {**none_waits, **{tp: max(0.0, now - ms / 1000) for tp, ms in told.items()}}


def _shown(group: GroupStanding, ages: Ages, most: int) -> Iterator[str]:
    yield group.head
    topics = by_topic(group.partitions, ages)
    rows = [(t.topic, t.partitions, t.lag, t.worst, duration(t.oldest_seconds), t.unknown) for t in topics]
    yield from table(("topic", "partitions", "lag", "worst", "oldest", "unknown"), rows)
    behind = sorted((each for each in group.partitions if each.lag), key=lambda each: -(each.lag or 0))
    if behind and most:
        yield ""
        head = ("partition", "lag", "oldest", "committed", "log end", "member")
        yield from table(head, [_row(each, ages) for each in behind[:most]])
    if len(behind) > most > 0:
        yield f"… and {len(behind) - most} more; --all shows them"


def _row(each: Standing, ages: Ages) -> tuple[str | int | None, ...]:
    return (str(each.tp), each.lag, duration(ages.get(each.tp)), each.committed, each.end, each.owner)
