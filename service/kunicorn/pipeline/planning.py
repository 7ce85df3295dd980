"""From bounds to ranges: everything that can be wrong about them is told before a task starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from kunicorn.errors import ConfigError
from kunicorn.pipeline.bounds import EARLIEST, LATEST, Bound, Bounds, ByOffset, ByTime, Everywhere
from kunicorn.pipeline.log import Edges
from kunicorn.pipeline.ranges import OffsetRange, Offsets, between
from kunicorn.topics import NO_OFFSET, TopicPartition

_SHOWN = 5


class Asked(Protocol):
    """What planning asks the brokers; see `Log`."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]: ...
    def edges(self, partitions: Iterable[TopicPartition]) -> Edges: ...
    def at(self, times: Offsets) -> dict[TopicPartition, int]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be read, and what cannot be any more."""

    ranges: Sequence[OffsetRange]
    edges: Edges
    gone: Sequence[OffsetRange] = ()
    """Asked for, but deleted by retention (or by DeleteRecords) before."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Ids of the topics that the offsets are of; see `Log.topic_ids`."""


def plan(partitions: Sequence[TopicPartition], bounds: Bounds, log: Asked, *, fail_on_data_loss: bool) -> Plan:
    """Resolve the bounds of these partitions, those that exist. Blocks on the brokers.

    Raises `ConfigError` for partitions that are not there or are left out, ends before starts, ends behind the log's,
    and, with `fail_on_data_loss`, for offsets that are gone.
    """
    chosen = _chosen(partitions, bounds)
    ids = log.topic_ids(tp.topic for tp in chosen)
    edges = log.edges(chosen)
    starts = _resolved(chosen, bounds.start, edges, log)
    stops = _resolved(chosen, bounds.stop, edges, log)
    _check_unmatched(bounds, starts)
    starts = {tp: edges.end[tp] if at == NO_OFFSET else at for tp, at in starts.items()}
    stops = {tp: edges.end[tp] if at == NO_OFFSET else at for tp, at in stops.items()}
    _check_order(starts, stops)
    return replace(_within(starts, stops, edges, fail_on_data_loss=fail_on_data_loss), topics=ids)


def _within(starts: Offsets, stops: Offsets, edges: Edges, *, fail_on_data_loss: bool) -> Plan:
    """The ranges, as far as the log has them."""
    beyond = {tp: stop for tp, stop in stops.items() if stop > edges.end[tp]}
    if beyond:
        told = (f"{tp} ends at {edges.end[tp]}, not at {stop}" for tp, stop in beyond.items())
        raise ConfigError(f"the range reaches beyond the log's end: {_listed(told)}; lower the end, or leave it out")
    gone = between(starts, {tp: min(stops[tp], edges.first[tp]) for tp in starts})
    if gone and fail_on_data_loss:
        raise ConfigError(f"{gone_text(gone, edges)}; start there, or set pipeline.fail_on_data_loss = false")
    return Plan(between({tp: max(start, edges.first[tp]) for tp, start in starts.items()}, stops), edges, gone)


def created_anew(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Topics that have another id now. Pure."""
    return frozenset(topic for topic, known in now.items() if before.get(topic, known) != known)


def check_same_topics(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises `ConfigError` if a topic was created anew, for a run that has no business with the new one."""
    if anew := created_anew(before, now):
        raise ConfigError(
            f"{_listed(sorted(anew))} was created anew since the run began: its offsets are other records now, and the "
            f"former ones are gone. What was handled since the last round does not count; begin another run"
        )


class Resumed(NamedTuple):
    """Where to go on, and what is lost before that, for people."""

    positions: dict[TopicPartition, int]
    lost: list[str]


def resumed(positions: Offsets, edges: Edges, anew: Collection[str], *, fail_on_data_loss: bool) -> Resumed:
    """Known positions in the log of now, which has these partitions. Pure.

    A topic of `anew` begins at its beginning. Raises `ConfigError`, with `fail_on_data_loss`, for what is lost.
    """
    found, lost = dict(positions), list[str]()
    for tp, at in positions.items():
        first, end = edges.first[tp], edges.end[tp]
        if tp.topic in anew:
            found[tp] = first
            lost.append(f"{tp} was created anew: what the former one had from offset {at} on is gone")
        elif at < first:
            found[tp] = first
            lost.append(f"{tp} from {at} to {first} is deleted already")
        elif at > end:
            found[tp] = end
            lost.append(f"{tp} ends at {end} now, before {at}: it was truncated, and what came instead is unknown")
    if lost and fail_on_data_loss:
        raise ConfigError(f"records are lost: {_listed(lost)}; to go on behind that, set fail_on_data_loss = false")
    return Resumed(found, lost)


def gone_text(gone: Sequence[OffsetRange], edges: Edges) -> str:
    """What is lost, for people."""
    told = (f"{each.tp} from {each.start} to {each.stop}, it begins at {edges.first[each.tp]} now" for each in gone)
    return f"records that were to be read are deleted already: {_listed(told)}"


def _chosen(partitions: Sequence[TopicPartition], bounds: Bounds) -> list[TopicPartition]:
    """The partitions that the bounds are about. Offsets in JSON name them all: of the same topics, none is left out."""
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


def _resolved(
    partitions: Sequence[TopicPartition], bound: Bound, edges: Edges, log: Asked
) -> dict[TopicPartition, int]:
    """An offset of each partition; `NO_OFFSET` where no record is so young."""
    match bound:
        case ByTime(default, times):
            return log.at({tp: times[tp] if default is None else default for tp in partitions})
        case ByOffset(offsets):
            return {tp: _placed(tp, offsets[tp], edges) for tp in partitions}
        case Everywhere(offset):
            return {tp: _placed(tp, offset, edges) for tp in partitions}


def _placed(tp: TopicPartition, offset: int, edges: Edges) -> int:
    special: Mapping[int, Offsets] = {EARLIEST: edges.first, LATEST: edges.end}
    return special[offset][tp] if offset in special else offset


def _check_unmatched(bounds: Bounds, starts: Offsets) -> None:
    unmatched = [tp for tp, at in starts.items() if at == NO_OFFSET]
    if unmatched and not bounds.unmatched_is_latest:
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
