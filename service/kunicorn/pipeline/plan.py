"""Plan of a job: from the bounds in its options to ranges of offsets. Everything that can be wrong with them is
reported before a task starts. Pure, but for the questions to the brokers (`Asked`).

Names, precedence and JSON are those of spark-sql-kafka: `startingTimestamp` goes before `startingOffsetsByTimestamp`,
that before `startingOffsets`; the same for the end. In JSON -2 is the earliest offset and -1 the latest.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kunicorn.errors import ConfigError
from kunicorn.kafka.stored_positions import Loss, Lost, up_to_epochs
from kunicorn.positions import (
    EARLIEST,
    LATEST,
    NO_EPOCH,
    NO_OFFSET,
    Edges,
    OffsetRange,
    Offsets,
    TopicPartition,
    still_there,
)

if TYPE_CHECKING:
    from kunicorn.clients.session import ClusterSession


@dataclass(frozen=True, slots=True)
class Everywhere:
    """Bound: the same in every partition, `EARLIEST` or `LATEST`."""

    offset: int


@dataclass(frozen=True, slots=True)
class ByOffset:
    """Bound: an offset of each partition, or `EARLIEST` or `LATEST`."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class ByTime:
    """Bound: the first record at or after a time, milliseconds since 1970; for every partition, or for each its own."""

    default: int | None
    times: Offsets


Bound = Everywhere | ByOffset | ByTime

_WORDS: Mapping[str, Bound] = {"earliest": Everywhere(EARLIEST), "latest": Everywhere(LATEST)}
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_LARGEST = 2**63 - 1
"""Offset, or time, that a request has room for."""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
"""Of a partition: with another zero before it, it would be another name of the same one."""
_EXAMPLE = '{"orders": {"0": 23, "1": -2}}'


@dataclass(frozen=True, slots=True)
class Bounds:
    """Start and end of a job, and what happens where no record is as young as a start's time."""

    start: Bound
    stop: Bound
    unmatched_is_latest: bool = False
    """`startingOffsetsByTimestampStrategy = latest`; otherwise that is an error. A time without a record as the end is
    always the latest offset."""


def bounds_of(options: Mapping[str, str], *, batch: bool) -> Bounds:
    """Bounds in a source's options. Raises `ConfigError`.

    Options are looked up as they are spelled here: the caller passes a mapping that ignores case, as Spark's does.
    """
    if not batch and (named := next((name for name in _ENDS if options.get(name) is not None), None)) is not None:
        raise ConfigError(f"{named}: a stream has no end; leave it out, or read a batch with spark.read")
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
    if not text.lstrip().startswith("{"):
        raise ConfigError(f"{edge}Offsets = {text!r}: write earliest, latest, or offsets such as {_EXAMPLE}")
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
    if not 0 <= number <= _LARGEST:
        raise ConfigError(f"{name} = {text!r} is no time; write milliseconds since 1970")
    return number


def offsets_in(name: str, text: str, *, least: int = 0) -> dict[TopicPartition, int]:
    """Offsets (or times) by partition, in Spark's JSON; `name` is the option or argument, for messages. Raises
    `ConfigError`.
    """
    found: dict[TopicPartition, int] = {}
    for topic, number, offset in _named_in(name, text, _EXAMPLE):
        found[_partition(name, topic, number)] = _offset(name, topic, number, offset, least)
    return found


def pairs_in(name: str, text: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Starts and stops of `{"orders": {"0": [100, 200]}}`, the stop not included. Raises `ConfigError`."""
    example = '{"orders": {"0": [100, 200]}}'
    starts: dict[TopicPartition, int] = {}
    stops: dict[TopicPartition, int] = {}
    for topic, number, pair in _named_in(name, text, example):
        tp = _partition(name, topic, number)
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(f"{name}: {pair!r} is no range of {tp}; write [first, end], such as {example}")
        starts[tp] = _offset(name, topic, number, pair[0], EARLIEST)
        stops[tp] = _offset(name, topic, number, pair[1], EARLIEST)
    return starts, stops


def _named_in(name: str, text: str, example: str) -> Iterator[tuple[str, str, Any]]:
    """Topics and partitions of a JSON text, and what it says of each. Raises `ConfigError`."""
    try:
        topics = json.loads(text, object_pairs_hook=partial(_each_once, name))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON ({error}); write it such as {example}") from error
    if not isinstance(topics, dict) or not topics:
        raise ConfigError(f"{name} is no object of topics; write it such as {example}")
    for topic, numbers in topics.items():
        if not isinstance(numbers, dict) or not numbers:
            raise ConfigError(f"{name}: topic {topic!r} has no object of partitions; write it such as {example}")
        yield from ((topic, number, told) for number, told in numbers.items())


def _each_once(name: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises `ConfigError` for a name that comes twice: the last one alone would count."""
    found: dict[str, Any] = {}
    for key, told in pairs:
        if key in found:
            raise ConfigError(
                f"{name} has {key!r} twice in one object, and the last one alone would count: leave one out; two "
                f"ranges of a partition are two runs"
            )
        found[key] = told
    return found


def _partition(name: str, topic: str, number: str) -> TopicPartition:
    if not _NUMBER.fullmatch(number):
        raise ConfigError(f"{name}: {number!r} is no partition of {topic!r}; partitions are numbers, in quotes")
    return TopicPartition(topic, int(number))


def _offset(name: str, topic: str, number: str, offset: Any, least: int) -> int:
    if type(offset) is not int or not least <= offset <= _LARGEST:
        raise ConfigError(f"{name}: {offset!r} is no offset of {topic}-{number}; write a whole number from {least} on")
    return offset


def as_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets in the shape of Spark's JSON, which checkpoints hold, too."""
    found: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return found


def from_json(shape: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Offsets in the shape of `as_json`."""
    return {TopicPartition(topic, int(n)): at for topic, numbers in shape.items() for n, at in numbers.items()}


_SHOWN = 5


class Asked(Protocol):
    """Brokers' answers that planning needs; see `clients.session.ClusterSession`."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]: ...
    def edges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Edges]: ...
    def at(self, times: Offsets) -> dict[TopicPartition, int]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranges to read, and ranges that are lost."""

    ranges: Sequence[OffsetRange]
    edges: Mapping[TopicPartition, Edges]
    gone: Sequence[OffsetRange] = ()
    """Ranges asked for that retention (or DeleteRecords) has deleted."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Ids of the topics that the offsets are of; see `ClusterSession.topic_ids`."""

    @property
    def epochs(self) -> dict[TopicPartition, int]:
        """Leader epochs in which the ranges' ends were in the logs, as far as brokers tell."""
        return epochs_of(self.edges)


def epochs_of(edges: Mapping[TopicPartition, Edges]) -> dict[TopicPartition, int]:
    """Leader epochs in which the logs' ends were told, as far as brokers tell. Pure."""
    return {tp: log.epoch for tp, log in edges.items() if log.epoch != NO_EPOCH}


def plan(partitions: Sequence[TopicPartition], bounds: Bounds, log: Asked, *, fail_on_data_loss: bool) -> Plan:
    """Ranges of these partitions between the bounds. Blocks on the brokers.

    Raises `ConfigError` for partitions that are not there or are left out, ends before starts, ends behind the log's,
    and, with `fail_on_data_loss`, for offsets that are gone.
    """
    chosen = _chosen(partitions, bounds)
    ids = log.topic_ids(tp.topic for tp in chosen)
    before = log.edges(chosen)
    starts = _asked_for(chosen, bounds.start, log)
    _check_unmatched(bounds, starts)
    stops = _asked_for(chosen, bounds.stop, log)
    # A record may come while times are asked for. It begins where no record was as young as the start, and is not
    # behind the log's end where it is as young as the end.
    edges = log.edges(chosen) if isinstance(bounds.start, ByTime) or isinstance(bounds.stop, ByTime) else before
    starts = {tp: before[tp].placed(at) for tp, at in starts.items()}
    stops = {tp: edges[tp].placed(at) for tp, at in stops.items()}
    _check_order(starts, stops)
    if beyond := {tp: stop for tp, stop in stops.items() if stop > edges[tp].end}:
        told = (f"{tp} ends at {edges[tp].end}, not at {stop}" for tp, stop in beyond.items())
        raise ConfigError(f"the range reaches beyond the log's end: {_listed(told)}; lower the end, or leave it out")
    ranges, gone = still_there(starts, stops, {tp: log.first for tp, log in edges.items()})
    if gone and fail_on_data_loss:
        raise ConfigError(f"{gone_text(gone, edges)}; start there, or set pipeline.fail_on_data_loss = false")
    return Plan(ranges, edges, gone, ids)


_DOUBTS = (0.0, 1.0, 2.0, 4.0)
"""Seconds before another broker is asked, each time that the last one has not named what is looked for."""


def not_deleted(partitions: Collection[TopicPartition], log: ClusterSession) -> list[TopicPartition]:
    """Those of the partitions that were not deleted. Blocks on the brokers.

    Where one broker does not know them, others are asked: it may be behind, and what is left out here is left out for
    good.
    """
    there = _asked_again(partitions, lambda: log.existing(partitions), log)
    return [tp for tp in partitions if tp in there]


def listed(
    topics: Collection[str],
    numbered: Collection[TopicPartition],
    known: Collection[TopicPartition],
    log: ClusterSession,
) -> list[TopicPartition]:
    """All partitions of the topics (`ClusterSession.partitions`). Where a broker's list lacks some that are `known`,
    others are asked: it may be behind. Blocks on the brokers. Raises `ConfigError`.
    """
    return sorted(_asked_again(known, lambda: log.partitions(topics, numbered=numbered), log))


def _asked_again(
    wanted: Collection[TopicPartition], ask: Callable[[], Iterable[TopicPartition]], log: ClusterSession
) -> set[TopicPartition]:
    """What brokers name, one after the other, until they have named all that is wanted."""
    found = set(ask())
    for seconds in _DOUBTS:
        if found.issuperset(wanted):
            break
        time.sleep(seconds)
        log.cluster.ask_another()
        found.update(ask())
    return found


def created_anew(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Topics that have another id now. Pure."""
    return frozenset(topic for topic, known in now.items() if before.get(topic, known) != known)


_ENDED = (
    "What is underway does not count; begin another run, or with fail_on_data_loss = false go on with this one, "
    "without what is gone"
)


def check_same_topics(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a topic was created anew, for a run that must not read the new one."""
    if anew := created_anew(before, now):
        raise ConfigError(
            f"{_listed(sorted(anew))} was created anew since the run began: its offsets are other records now, and the "
            f"former ones are gone. {_ENDED}"
        )


def within_epochs(
    logs: Mapping[TopicPartition, Edges],
    epochs: Mapping[TopicPartition, int],
    ends_of_epochs: Callable[[Mapping[TopicPartition, int]], Offsets],
) -> dict[TopicPartition, Edges]:
    """The logs as far as they are those of the leader epochs that a run keeps. `ends_of_epochs`: the session's, which
    asks the leaders, and blocks."""
    return up_to_epochs(logs, ends_of_epochs({tp: epoch for tp, epoch in epochs.items() if tp in logs}))


def check_not_truncated(counted: Offsets, epoch_ends: Offsets) -> None:
    """Raise `ConfigError` if a log ends before what a run counts of it, for a run that must not take the records that
    came instead for those that are gone. `epoch_ends`: of the epochs in which the run's ends were told.
    """
    lost = [Loss(tp, Lost.TRUNCATED, at, epoch_ends[tp]) for tp, at in counted.items() if at > epoch_ends.get(tp, at)]
    if lost:
        raise ConfigError(f"records are lost: {_listed(map(str, lost))}. {_ENDED}")


def check_nothing_lost(lost: Collection[Loss]) -> None:
    """Raise `ConfigError` if anything is lost."""
    if lost:
        raise ConfigError(
            f"records are lost: {_listed(map(str, lost))}; to go on behind that, set fail_on_data_loss = false"
        )


def gone_text(gone: Sequence[OffsetRange], edges: Mapping[TopicPartition, Edges]) -> str:
    """Lost ranges, for people."""
    told = (f"{each.tp} from {each.start} to {each.stop}, it begins at {edges[each.tp].first} now" for each in gone)
    return f"records that were to be read are deleted already: {_listed(told)}"


def _chosen(partitions: Sequence[TopicPartition], bounds: Bounds) -> list[TopicPartition]:
    """Partitions of the bounds. Offsets in JSON must name all partitions of their topics."""
    named = [_named(bound) for bound in (bounds.start, bounds.stop)]
    known = set(partitions)
    for given in filter(None, named):
        if strangers := sorted(given - known):
            raise ConfigError(f"there is no partition {_listed(map(str, strangers))} in these topics; correct it")
        topics = {tp.topic for tp in given}
        if missing := sorted(tp for tp in known if tp.topic in topics and tp not in given):
            raise ConfigError(
                f"the offsets leave out {_listed(map(str, missing))}; name every partition of a topic, with -2 for its "
                f"earliest offset and -1 for its latest"
            )
    topics = set.intersection(*({tp.topic for tp in given} for given in [known, *filter(None, named)]))
    chosen = [tp for tp in partitions if tp.topic in topics]
    if not chosen:
        raise ConfigError("start and end name no topic in common; correct the offsets")
    return chosen


def _named(bound: Bound) -> set[TopicPartition]:
    match bound:
        case ByOffset(offsets):
            return set(offsets)
        case ByTime(None, times):
            return set(times)
        case _:
            return set()


def _asked_for(partitions: Sequence[TopicPartition], bound: Bound, log: Asked) -> dict[TopicPartition, int]:
    """Offset of the bound in each partition, `EARLIEST` or `LATEST`; `NO_OFFSET` where no record is so young."""
    match bound:
        case ByTime(default, times):
            return log.at({tp: times[tp] if default is None else default for tp in partitions})
        case ByOffset(offsets):
            return {tp: offsets[tp] for tp in partitions}
        case Everywhere(offset):
            return dict.fromkeys(partitions, offset)


def _check_unmatched(bounds: Bounds, starts: Offsets) -> None:
    unmatched = [tp for tp, at in starts.items() if at == NO_OFFSET]
    if unmatched and isinstance(bounds.start, ByTime) and not bounds.unmatched_is_latest:
        raise ConfigError(
            f"no record is as young as the start: {_listed(map(str, unmatched))}; name an earlier time, or let such "
            f"partitions be passed over with startingOffsetsByTimestampStrategy = latest"
        )


def _check_order(starts: Offsets, stops: Offsets) -> None:
    if inverted := [tp for tp in starts if starts[tp] > stops[tp]]:
        told = (f"{tp} from {starts[tp]} to {stops[tp]}" for tp in inverted)
        raise ConfigError(f"the range ends before it begins: {_listed(told)}; exchange the two")


def _listed(texts: Iterable[str]) -> str:
    every = list(texts)
    return ", ".join(every[:_SHOWN]) + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "")
