"""`kunicorn pipeline reconcile`: compares a table of outcomes with the topics: was every record handled, and how often?

The table is a run's, or any with the columns `topic`, `partition` and `offset`, such as one that a live handler fills:
a row is then one record. With `until` a row covers the offsets up to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from kunicorn.clients.session import JOB_PATIENCE, cluster_session
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.handler.retry import End
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import Edges, OffsetRange, TopicPartition, ends_of, still_there, total
from kunicorn.settings import Settings

_COLUMNS = ("topic", "partition", "offset")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranges of offsets that the table lacks, and those that it has more than once."""

    covered: int
    missing: Sequence[OffsetRange]
    """Offsets that no row covers; compaction and transactions may have left no record there."""
    repeated: Sequence[OffsetRange] = field(default=())
    """Offsets that more than one row covers."""
    beyond: Sequence[OffsetRange] = field(default=())
    """Offsets that rows cover behind the log's end, or in a topic that does not exist: it was truncated, deleted, or
    created anew, so that what the other rows cover may be other records, too."""

    @property
    def code(self) -> ExitCode:
        """Exit code of the command."""
        return ExitCode.NOT_ALL_COMMITTED if self.missing or self.repeated or self.beyond else ExitCode.CLEAN

    def as_json(self) -> dict[str, object]:
        """All ranges."""
        ranges = {"missing": self.missing, "repeated": self.repeated, "beyond": self.beyond}
        return {"covered": self.covered, **{what: _plain(found) for what, found in ranges.items()}}

    def lines(self) -> Iterator[str]:
        """The first ranges."""
        yield f"covered   {self.covered:,} offsets"
        for what, ranges in self._named():
            yield f"{what:<9} {total(ranges):,} offsets in {len(ranges)} ranges"
            for each in ranges[:_SHOWN]:
                yield f"          {each.tp} {each.start:,} to {each.stop:,}"
            if len(ranges) > _SHOWN:
                yield f"          and {len(ranges) - _SHOWN} more"

    def _named(self) -> Iterator[tuple[str, Sequence[OffsetRange]]]:
        yield from (("missing", self.missing), ("repeated", self.repeated))
        if self.beyond:
            yield "beyond", self.beyond


def _plain(ranges: Sequence[OffsetRange]) -> list[dict[str, str | int]]:
    return [{"topic": r.topic, "partition": r.partition, "start": r.start, "stop": r.stop} for r in ranges]


def difference(wanted: Iterable[OffsetRange], rows: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> Difference:
    """Compare the wanted ranges with the table's. `rows`: by partition, ranges of offsets in any order. Pure."""
    covered, missing, repeated = 0, list[OffsetRange](), list[OffsetRange]()
    for whole in wanted:
        found = [part for part in _within(whole, sorted(rows.get(whole.tp, ()))) if part.size > 0]
        at, doubled = whole.start, list[OffsetRange]()
        for part in found:
            if part.start > at:
                missing.append(whole._replace(start=at, stop=part.start))
            elif part.start < at:
                doubled.append(part._replace(stop=min(at, part.stop)))
            at = max(at, part.stop)
        if at < whole.stop:
            missing.append(whole._replace(start=at))
        repeated += _joined(doubled)
        covered += whole.size
    return Difference(covered - total(missing), missing, repeated)


def _within(whole: OffsetRange, parts: Iterable[tuple[int, int]]) -> Iterator[OffsetRange]:
    for start, stop in parts:
        yield whole._replace(start=max(start, whole.start), stop=min(stop, whole.stop))


def _joined(parts: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Ranges with neighbours and overlapping ones joined."""
    joined: list[OffsetRange] = []
    for part in sorted(parts):
        if joined and part.start <= joined[-1].stop:
            joined[-1] = joined[-1]._replace(stop=max(part.stop, joined[-1].stop))
        else:
            joined.append(part)
    return joined


def rows_of(table: Directory) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Rows of the table as ranges. Raises `ConfigError` where it is none."""
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    names = table.names(".parquet")
    if not names:
        raise ConfigError(f"{table.url} has no Parquet files; name the table's directory")
    for name in names:
        part = table.table(name)
        if missing := [column for column in _COLUMNS if column not in part.column_names]:
            raise ConfigError(f"{table.url}/{name} has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}")
        for topic, number, start, stop in _ranges(part):
            found.setdefault(TopicPartition(topic, number), []).append((start, stop))
    return found


def _ranges(part: pa.Table) -> Iterator[tuple[str, int, int, int]]:
    if "status" in part.column_names:
        part = part.filter(pc.not_equal(part["status"], End.HALT.value))
    starts = part["offset"].to_pylist()
    stops = part["until"].to_pylist() if "until" in part.column_names else [start + 1 for start in starts]
    yield from zip(part["topic"].to_pylist(), part["partition"].to_pylist(), starts, stops, strict=True)


def reconcile(settings: Settings, table: Directory) -> Difference:
    """Compare the table with the topics between its first row and now. Blocks. Raises `ConfigError`."""
    rows = rows_of(table)
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        there = {tp.topic for tp in session.existing(list(rows))}
        partitions = session.partitions(sorted(there), "the table's name") if there else []
        edges = session.edges(partitions)
    starts = {tp: min((at for at, _ in rows.get(tp, ())), default=0) for tp in partitions}
    wanted, _ = still_there(starts, ends_of(edges), {tp: log.first for tp, log in edges.items()})
    return replace(difference(wanted, rows), beyond=beyond(rows, edges))


def beyond(
    rows: Mapping[TopicPartition, Sequence[tuple[int, int]]], logs: Mapping[TopicPartition, Edges]
) -> list[OffsetRange]:
    """What rows cover behind the logs' ends. Pure."""
    ends = {tp: logs[tp].end if tp in logs else 0 for tp in rows}
    return [
        each
        for tp, parts in sorted(rows.items())
        for each in _joined(OffsetRange(*tp, max(start, ends[tp]), stop) for start, stop in parts if stop > ends[tp])
    ]
