"""The section [assign]: partitions by name instead of by membership, for a replay or for a fixed share of a topic.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, Strict, model_validator

from kunicorn.errors import ConfigError
from kunicorn.positions import TopicPartition
from kunicorn.settings.checks import Section, is_kafka_name
from kunicorn.settings.problems import NO_VALUE, Contradictions, Problem
from kunicorn.settings.rules import Rule, check
from kunicorn.text import listed, milliseconds

CLIENTS_GROUP = "kunicorn-assign"
"""`group.id` where [assign] is used and none is given. librdkafka's clients must carry one; nobody joins it."""

_MOST_PARTITIONS = 1_000_000
_ITEM = re.compile(r"(?P<topic>[^:]*)(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?)?")
_START = (
    'neither "earliest" nor "latest", nor a time with its zone such as "2026-01-31T00:00:00Z", '
    'nor a table of offsets such as {"orders:0" = 1234}'
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Partitions that `assign.partitions` names."""

    whole: frozenset[str] = frozenset()
    """Topics of which all partitions are meant, those that they gain later, too."""
    numbered: frozenset[TopicPartition] = frozenset()

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics named, sorted."""
        return tuple(sorted(self.whole.union(tp.topic for tp in self.numbered)))

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp.topic in self.whole or tp in self.numbered


def partitions_named(item: str) -> tuple[str, range | None]:
    """Topic and partition numbers of "orders", "orders:7" or "orders:0-3"; None for all numbers. Raises
    `ValueError`.
    """
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError("not a topic and its partitions; write orders, orders:7 or orders:0-3")
    topic = is_kafka_name(match["topic"])
    if match["first"] is None:
        return topic, None
    first = int(match["first"])
    last = first if match["last"] is None else int(match["last"])
    if last < first:
        raise ValueError(f"the range ends before it begins; write {topic}:{last}-{first}")
    if last >= _MOST_PARTITIONS:
        raise ValueError("no topic has so many partitions; correct the number")
    return topic, range(first, last + 1)


def _is_item(item: str) -> str:
    partitions_named(item)
    return item


def _check_start(start: Any) -> str | Mapping[str, int]:
    if isinstance(start, Mapping):
        return _check_offsets(start)
    # TOML has times of its own: written without quotes they arrive as such.
    text = start.isoformat() if isinstance(start, date) else start
    if not isinstance(text, str):
        raise ValueError(_START)
    if text not in _NAMED_STARTS:
        _milliseconds(text)
    return text


def _check_offsets(offsets: Mapping[str, Any]) -> Mapping[str, int]:
    for item, offset in offsets.items():
        _, numbers = partitions_named(item)
        if numbers is None or len(numbers) != 1:
            raise ValueError(f'{item!r} is not one partition; write "orders:0" = 1234')
        if type(offset) is not int or not 0 <= offset < 2**63:
            raise ValueError(f"{offset!r} is not an offset of {item}; write a whole number from 0 on, below 2^63")
    return offsets


def _milliseconds(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_START) from None
    if when.tzinfo is None:
        raise ValueError(f"a time without a zone is another time on another machine; write {when.isoformat()}Z for UTC")
    if (ms := milliseconds(when)) < 0:
        raise ValueError("before 1970, where Kafka's timestamps begin")
    return ms


_NAMED_STARTS: Mapping[str, int] = {"earliest": -2, "latest": -1}
"""ListOffsets' special timestamps (`ListOffsetsRequest.java`)."""

_RULES = (
    Rule(
        "partitions",
        lambda s: bool(s.partitions) or (s.start == "earliest" and s.stop == "never"),
        "empty; name at least one, such as orders:0-3, or remove the section [assign]",
    ),
    Rule(
        "stop",
        lambda s: not (s.start == "latest" and s.stop == "end"),
        'nothing lies between start = "latest" and the end; choose another start, or stop = "never"',
    ),
)


class AssignSettings(Section):
    """Partitions to consume without being a member of a group: a replay, a part of a topic. Nothing is committed."""

    partitions: Annotated[tuple[Annotated[str, AfterValidator(_is_item)], ...], Strict(False)] = Field(
        (),
        description='Partitions, instead of group.topics, such as ["orders:0-3", "orders:7", "refunds"]; a topic alone '
        "means all its partitions, those it gains later, too.",
        json_schema_extra={"default": "not set: the group assigns"},
    )
    start: Annotated[str | Mapping[str, int], PlainValidator(_check_start)] = Field(
        "earliest",
        description="Where to begin: earliest, latest, a time with its zone such as 2026-01-31T00:00:00Z, or a table "
        'of offsets such as {"orders:0" = 1234} that names every partition.',
    )
    stop: Literal["never", "end"] = Field(
        "never",
        description="With end, what the partitions hold at the start is handled; then the service exits with code 0, "
        "or with 6 where something of it is left.",
    )

    @property
    def wanted(self) -> Wanted:
        """Parsed `partitions`; "orders" and "orders:1" together mean all of orders."""
        named = [partitions_named(item) for item in self.partitions]
        whole = frozenset(topic for topic, numbers in named if numbers is None)
        numbered = {TopicPartition(t, n) for t, numbers in named if t not in whole for n in numbers or ()}
        return Wanted(whole, frozenset(numbered))

    @property
    def timestamp(self) -> int:
        """`start` as ListOffsets takes it: milliseconds since 1970, or one of its special timestamps. Not for a `start`
        by offset.
        """
        assert isinstance(self.start, str)
        return _NAMED_STARTS[self.start] if self.start in _NAMED_STARTS else _milliseconds(self.start)

    @property
    def offsets(self) -> Mapping[TopicPartition, int] | None:
        """Offsets of `start` where it is a table; else None."""
        if isinstance(self.start, str):
            return None
        named = ((partitions_named(item), offset) for item, offset in self.start.items())
        return {TopicPartition(topic, numbers[0]): offset for (topic, numbers), offset in named if numbers}

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        _check_agreement(self.wanted, self.offsets)
        return check(self, "assign", _RULES)


def _check_agreement(wanted: Wanted, offsets: Mapping[TopicPartition, int] | None) -> None:
    if offsets is None:
        return
    strangers = [tp for tp in offsets if tp not in wanted.numbered and tp.topic not in wanted.whole]
    if strangers:
        raise _contradiction(
            f"names {shown(strangers)}, which assign.partitions does not; leave it out there, or add it"
        )
    startless = wanted.numbered.difference(offsets)
    if startless:
        raise _contradiction(f"has no offset for {shown(startless)}; add it: no start offset is guessed")


def _contradiction(text: str) -> Contradictions:
    return Contradictions([Problem("assign.start", NO_VALUE, text)])


def existing(assign: AssignSettings, there: Collection[TopicPartition]) -> frozenset[TopicPartition]:
    """Those of the cluster's partitions, `there`, that [assign] names. Raises `ConfigError` where one that it names
    does not exist, or has no start offset.
    """
    wanted, starts = assign.wanted, assign.offsets
    refuse_absent(wanted.numbered, there)
    known = frozenset(tp for tp in there if tp in wanted)
    if starts is None:
        return known
    if absent := frozenset(starts).difference(known):
        raise ConfigError(f"assign.start: {shown(absent)} do not exist: correct the numbers")
    if startless := known.difference(starts):
        raise ConfigError(f"assign.start has no offset for {shown(startless)}: add it, no start offset is guessed")
    return known


def refuse_absent(numbered: Collection[TopicPartition], there: Collection[TopicPartition]) -> None:
    """Raises `ConfigError` for those of `assign.partitions` with a number that are not `there`."""
    if absent := frozenset(numbered).difference(there):
        topic = min(absent).topic
        count = sum(tp.topic == topic for tp in there)
        has = f"0-{count - 1}" if count else "no partition"
        raise ConfigError(f"assign.partitions: {shown(absent)} do not exist: correct the numbers; {topic} has {has}")


def shown(partitions: Sequence[TopicPartition] | frozenset[TopicPartition]) -> str:
    """The first ten partitions, written as `assign.partitions` would name them."""
    return listed((f"{tp.topic}:{tp.partition}" for tp in sorted(partitions)), 10, ", ")
