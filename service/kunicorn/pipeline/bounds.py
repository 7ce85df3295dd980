"""Where to begin and where to end, as the options of Spark's own Kafka source say it. Pure.

Names, precedence and JSON are those of spark-sql-kafka: `startingTimestamp` goes before `startingOffsetsByTimestamp`,
that before `startingOffsets`; the same for the end. In JSON -2 is the earliest offset and -1 the latest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kunicorn.errors import ConfigError
from kunicorn.pipeline.ranges import Offsets
from kunicorn.topics import TopicPartition

EARLIEST, LATEST = -2, -1
"""As in Spark's JSON, and ListOffsets' special timestamps (`ListOffsetsRequest.java`)."""


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same place in every partition: `EARLIEST` or `LATEST`."""

    offset: int


@dataclass(frozen=True, slots=True)
class ByOffset:
    """An offset of each partition, or `EARLIEST` or `LATEST`."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class ByTime:
    """The first record at or after a time, milliseconds since 1970; for every partition, or for each its own."""

    default: int | None
    times: Offsets


Bound = Everywhere | ByOffset | ByTime

_WORDS: Mapping[str, Bound] = {"earliest": Everywhere(EARLIEST), "latest": Everywhere(LATEST)}
_EXAMPLE = '{"orders": {"0": 23, "1": -2}}'


@dataclass(frozen=True, slots=True)
class Bounds:
    """Start and end of what is to be read, and what happens where no record is as young as a start's time."""

    start: Bound
    stop: Bound
    unmatched_is_latest: bool = False
    """`startingOffsetsByTimestampStrategy = latest`; otherwise that is an error. A time without a record as the end is
    always the latest offset."""


def bounds_of(options: Mapping[str, str], *, batch: bool) -> Bounds:
    """The bounds that a source's options name. Raises `ConfigError`.

    Options are looked up as they are spelled here: the caller passes a mapping that ignores case, as Spark's does.
    """
    start = _bound(options, "starting") or Everywhere(EARLIEST if batch else LATEST)
    stop = _bound(options, "ending") or Everywhere(LATEST)
    if batch and start == Everywhere(LATEST):
        raise ConfigError("startingOffsets = latest: a batch from there has nothing to read; name another start")
    if stop == Everywhere(EARLIEST):
        raise ConfigError("endingOffsets = earliest: nothing lies before it; name another end")
    strategy = options.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in {"error", "latest"}:
        raise ConfigError(f"startingOffsetsByTimestampStrategy = {strategy!r} is neither error nor latest; choose one")
    return Bounds(start, stop, strategy == "latest")


def _bound(options: Mapping[str, str], edge: str) -> Bound | None:
    if (text := options.get(f"{edge}Timestamp")) is not None:
        return ByTime(_number(f"{edge}Timestamp", text), {})
    if (text := options.get(f"{edge}OffsetsByTimestamp")) is not None:
        return ByTime(None, offsets_in(f"{edge}OffsetsByTimestamp", text, least=0))
    if (text := options.get(f"{edge}Offsets")) is None:
        return None
    if (word := _WORDS.get(text.strip().lower())) is not None:
        return word
    refused = {"starting": LATEST, "ending": EARLIEST}[edge]
    offsets = offsets_in(f"{edge}Offsets", text, least=EARLIEST)
    if wrong := [tp for tp, offset in offsets.items() if offset == refused]:
        raise ConfigError(f"{edge}Offsets: {wrong[0]} = {refused} leaves nothing to read; name an offset")
    return ByOffset(offsets)


def _number(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigError(f"{name} = {text!r} is no time; write milliseconds since 1970")
    return number


def offsets_in(name: str, text: str, *, least: int = 0) -> dict[TopicPartition, int]:
    """Offsets (or times) by partition, in Spark's JSON; the option or argument `name` is told. Raises `ConfigError`."""
    try:
        topics = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON ({error}); write it such as {_EXAMPLE}") from error
    if not isinstance(topics, dict) or not topics:
        raise ConfigError(f"{name} is no object of topics; write it such as {_EXAMPLE}")
    found: dict[TopicPartition, int] = {}
    for topic, numbers in topics.items():
        if not isinstance(numbers, dict) or not numbers:
            raise ConfigError(f"{name}: topic {topic!r} has no object of partitions; write it such as {_EXAMPLE}")
        for number, offset in numbers.items():
            found[_partition(name, topic, number)] = _offset(name, topic, number, offset, least)
    return found


def pairs_in(name: str, text: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Starts and stops of `{"orders": {"0": [100, 200]}}`, the stop not included. Raises `ConfigError`."""
    example = '{"orders": {"0": [100, 200]}}'
    try:
        topics = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON ({error}); write it such as {example}") from error
    if not isinstance(topics, dict) or not topics or not all(isinstance(each, dict) for each in topics.values()):
        raise ConfigError(f"{name} is no object of topics and partitions; write it such as {example}")
    starts: dict[TopicPartition, int] = {}
    stops: dict[TopicPartition, int] = {}
    for topic, numbers in topics.items():
        for number, pair in numbers.items():
            tp = _partition(name, topic, number)
            if not isinstance(pair, list) or len(pair) != 2:
                raise ConfigError(f"{name}: {pair!r} is no range of {tp}; write [first, end], such as {example}")
            starts[tp] = _offset(name, topic, number, pair[0], EARLIEST)
            stops[tp] = _offset(name, topic, number, pair[1], EARLIEST)
    return starts, stops


def _partition(name: str, topic: str, number: str) -> TopicPartition:
    if not number.isascii() or not number.isdigit():
        raise ConfigError(f"{name}: {number!r} is no partition of {topic!r}; partitions are numbers, in quotes")
    return TopicPartition(topic, int(number))


def _offset(name: str, topic: str, number: str, offset: Any, least: int) -> int:
    if type(offset) is not int or offset < least:
        raise ConfigError(f"{name}: {offset!r} is no offset of {topic}-{number}; write a whole number from {least} on")
    return offset


def as_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """The offsets in the shape of Spark's JSON, which checkpoints hold, too."""
    found: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return found


def from_json(shape: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The reverse of `as_json`."""
    return {TopicPartition(topic, int(n)): at for topic, numbers in shape.items() for n, at in numbers.items()}
