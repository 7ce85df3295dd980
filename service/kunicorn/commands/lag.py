"""`kunicorn lag`: lag of the group in records and in time, as the brokers know it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kunicorn.clients.session import visiting
from kunicorn.commands.group_lag import GroupStanding, Standing, look, timestamps
from kunicorn.commands.offsets import standing_json
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.text import as_json_text, duration, table

_READING_SECONDS = 10.0

Ages = Mapping[TopicPartition, float]
"""Seconds since the oldest unhandled record was written (in a retry topic: since its time came), 0 without lag; where
it is not known there is no entry."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Sums over one topic's partitions."""

    topic: str
    partitions: int
    lag: int
    worst: int
    oldest: float | None
    unknown: int
    """Partitions whose lag is not known: nothing is committed, or their leader does not answer."""


def say_lag(settings: Settings, say: Callable[[str], None], most: int, *, as_json: bool) -> None:
    """Print the lag: `most` of the partitions by lag, every one as JSON. Blocks. Raises `ConfigError`,
    `FatalGroupError`.
    """
    with visiting(settings) as visit:
        group = look(visit)
        behind = {each.tp: _start(each) for each in group.partitions if each.lag}
        told = timestamps(settings, visit.token, behind, _READING_SECONDS)
    waits = {name: topic.delay_ms for name, topic in settings.retry_topics.items()}
    due = {tp: timestamp_ms + waits.get(tp.topic, 0) for tp, timestamp_ms in told.items()}
    ages = _ages(group.partitions, due, time.time())
    if as_json:
        say(as_json_text(_json(group, ages)))
        return
    for line in _shown(group, ages, most):
        say(line)
    for topic in settings.retry_topics.values():
        say(f"{topic.name} is a retry topic: its records wait {topic.delay} each, which counts as lag, not as age")


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


def _start(each: Standing) -> int:
    return max(each.committed or 0, each.first or 0)


def _ages(partitions: Sequence[Standing], told: Mapping[TopicPartition, int], now: float) -> Ages:
    none_waits = {each.tp: 0.0 for each in partitions if each.lag == 0}
    return {**none_waits, **{tp: max(0.0, now - ms / 1000) for tp, ms in told.items()}}


def _shown(group: GroupStanding, ages: Ages, most: int) -> Iterator[str]:
    yield f"group {group.group_id}: {group.state}, {len(group.members)} members"
    topics = by_topic(group.partitions, ages)
    rows = [(t.topic, t.partitions, t.lag, t.worst, duration(t.oldest), t.unknown) for t in topics]
    yield from table(("topic", "partitions", "lag", "worst", "oldest", "unknown"), rows)
    behind = sorted((each for each in group.partitions if each.lag), key=lambda each: -(each.lag or 0))
    if behind and most:
        yield ""
        head = ("partition", "lag", "oldest", "committed", "log end", "member")
        yield from table(head, [_row(each, ages) for each in behind[:most]])
    if len(behind) > most > 0:
        yield f"… and {len(behind) - most} more; --all shows them"


def _row(each: Standing, ages: Ages) -> tuple[str | int | None, ...]:
    owner = each.member.instance_id or each.member.client_id if each.member is not None else None
    return (str(each.tp), each.lag, duration(ages.get(each.tp)), each.committed, each.end, owner)


def _json(group: GroupStanding, ages: Ages) -> dict[str, object]:
    topics = [
        {"topic": t.topic, "partitions": t.partitions, "lag": t.lag, "worst": t.worst, "oldest_seconds": t.oldest,
         "unknown": t.unknown}
        for t in by_topic(group.partitions, ages)
    ]  # fmt: skip
    return {
        "group": group.group_id,
        "state": group.state,
        "members": len(group.members),
        "lag": sum(each.lag or 0 for each in group.partitions),
        "topics": topics,
        "partitions": [{**standing_json(each), "oldest_seconds": ages.get(each.tp)} for each in group.partitions],
    }
