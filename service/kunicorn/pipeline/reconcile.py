"""`kunicorn pipeline reconcile`: compares a table of outcomes with the topics: was every record handled, and how often?

The table is a run's, or any with the columns `topic`, `partition` and `offset`, such as one that a live handler fills:
a row is then one record. With `until` a row covers the offsets up to that; where that is null, it is one record, too.

A job on Spark: tasks read the files, rows that continue one another are joined where they are read, the others are
brought together by partition, in order, and each partition is gone through once. The driver gets sums, and of the
ranges as many as a person or a program looks at: its memory follows from the number of partitions, not of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from kunicorn.clients.session import JOB_PATIENCE, cluster_session, narrowed
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.handler.retry import End
from kunicorn.pipeline.lake.tables import delta_table
from kunicorn.pipeline.spark import collected, cores_of, open_session, rows_frame, stopped_behind
from kunicorn.pipeline.storage import Directory, passed_over
from kunicorn.pipeline.tasks.ranges import RANGES, in_sparks_words
from kunicorn.positions import Edges, OffsetRange, TopicPartition, total
from kunicorn.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("topic", "partition", "offset")
_SHOWN = 20
_NAMED = 100_000
"""Ranges of each kind that are named, shared out over the partitions; the others are counted."""
_LEAST_NAMED = 20
"""Of each partition, however many there are."""
_READ_ROWS = 64 * 1024
_FILES = 1000
"""Of one task at most, as their names are in its closure."""
_TASKS_A_CORE = 4
KINDS = ("missing", "repeated", "beyond")


@dataclass(frozen=True, slots=True)
class Found:
    """Ranges of one kind."""

    named: Sequence[OffsetRange] = ()
    ranges: int = 0
    """Of all, also those that are not named."""
    offsets: int = 0

    @classmethod
    def of(cls, ranges: Sequence[OffsetRange]) -> Found:
        """All of them named."""
        return cls(tuple(ranges), len(ranges), total(ranges))

    def plus(self, other: Found) -> Found:
        """Both."""
        return Found((*self.named, *other.named), self.ranges + other.ranges, self.offsets + other.offsets)


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranges of offsets that the table lacks, and those that it has more than once."""

    covered: int
    missing: Found = Found()
    """Offsets that no row covers; compaction and transactions may have left no record there."""
    repeated: Found = Found()
    """Offsets that more than one row covers."""
    beyond: Found = Found()
    """Offsets that rows cover behind the log's end, or in a topic that does not exist: it was truncated, deleted, or
    created anew, so that what the other rows cover may be other records, too."""

    @property
    def code(self) -> ExitCode:
        """Exit code of the command."""
        return ExitCode.NOT_ALL_COMMITTED if any(found.ranges for _, found in self._every()) else ExitCode.CLEAN

    def as_json(self) -> dict[str, object]:
        """All ranges that are named, how many are not, and of each kind the offsets of both."""
        told: dict[str, object] = {
            "covered": self.covered,
            **{what: [part._asdict() for part in each.named] for what, each in self._every()},
            "offsets": {what: each.offsets for what, each in self._every()},
        }
        unnamed = {what: each.ranges - len(each.named) for what, each in self._every()}
        return told | ({"unnamed": unnamed} if any(unnamed.values()) else {})

    def lines(self) -> Iterator[str]:
        """The first ranges."""
        yield f"covered   {self.covered:,} offsets"
        for what, found in self._every():
            if what == "beyond" and not found.ranges:
                continue
            yield f"{what:<9} {found.offsets:,} offsets in {found.ranges} ranges"
            for each in found.named[:_SHOWN]:
                yield f"          {each.tp} {each.start:,} to {each.stop:,}"
            if found.ranges > _SHOWN:
                yield f"          and {found.ranges - _SHOWN} more"

    def _every(self) -> Iterator[tuple[str, Found]]:
        yield from zip(KINDS, (self.missing, self.repeated, self.beyond), strict=True)


class _Joined:
    """Ranges of one kind and partition that come in the order of their starts; neighbours become one."""

    def __init__(self, tp: TopicPartition, named: int) -> None:
        self._tp, self._most = tp, named
        self._open: tuple[int, int] | None = None
        self._named: list[OffsetRange] = []
        self._ranges = self._offsets = 0

    def add(self, start: int, stop: int) -> None:
        if self._open is not None and start <= self._open[1]:
            self._open = (self._open[0], max(stop, self._open[1]))
            return
        self._close()
        self._open = (start, stop)

    def found(self) -> Found:
        self._close()
        return Found(tuple(self._named), self._ranges, self._offsets)

    def _close(self) -> None:
        if self._open is not None:
            self._ranges += 1
            self._offsets += self._open[1] - self._open[0]
            if len(self._named) < self._most:
                self._named.append(OffsetRange(*self._tp, *self._open))
        self._open = None


def of_partition(
    tp: TopicPartition, rows: Iterable[tuple[int, int]], log: Edges | None, named: int = _NAMED
) -> Difference:
    """What the rows of one partition, in the order of their starts, lack and have too often, from the first row to the
    log's end. `log`: None where the topic does not exist. Pure; goes through the rows once.
    """
    first, end = (0, 0) if log is None else (log.first, log.end)
    missing, repeated, beyond = (_Joined(tp, named) for _ in KINDS)
    begin = at = -1
    for start, stop in rows:
        if begin < 0:
            begin = at = min(max(start, first), max(start, end))
        if stop > end and max(start, end) < stop:
            beyond.add(max(start, end), stop)
        low, high = max(start, begin), min(stop, end)
        if low >= high:
            continue
        if low > at:
            missing.add(at, low)
        elif low < at:
            repeated.add(low, min(at, high))
        at = max(at, high)
    if at < end:
        missing.add(at, end)
    lacks = missing.found()
    return Difference(max(0, end - begin) - lacks.offsets, lacks, repeated.found(), beyond.found())


Batches = Iterator[pa.RecordBatch]


def ranges_in(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a table as ranges; those that continue the one before are joined with it. Pure."""
    if {"status", "until"} <= set(batch.schema.names):
        # In an outcome table: a row of its own kind of status, as another's table may have it, is a row.
        halted = pc.equal(batch.column("status").cast(pa.string()), End.HALT.value)
        batch = batch.filter(pc.invert(pc.fill_null(halted, False)))
    starts = batch.column("offset").cast(pa.int64())
    stops = pc.add(starts, 1)
    if "until" in batch.schema.names:
        stops = pc.coalesce(batch.column("until").cast(pa.int64()), stops)
    topics, numbers = batch.column("topic").cast(pa.string()), batch.column("partition").cast(pa.int32())
    rows = pa.RecordBatch.from_arrays([topics, numbers, starts, stops], schema=RANGES)
    if not len(rows):
        return rows
    same = [pc.equal(each.slice(1), each.slice(0, len(each) - 1)) for each in (topics, numbers)]
    goes_on = pc.and_(pc.and_(*same), pc.equal(starts.slice(1), stops.slice(0, len(stops) - 1)))
    heads = pa.concat_arrays([pa.array([True]), pc.invert(goes_on)])
    tails = pa.concat_arrays([pc.invert(goes_on), pa.array([True])])
    joined = rows.filter(heads)
    return joined.set_column(3, "stop", rows.column("stop").filter(tails))


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Task that reads files of the table, whose names are its rows, as JSON. Called by Spark."""

    table: Directory
    read: Callable[[pa.RecordBatch], pa.RecordBatch]
    columns: Sequence[str]

    def __call__(self, batches: Batches) -> Batches:
        """Function for `mapInArrow`."""
        for batch in batches:
            for name in (name for text in batch.column(0).to_pylist() for name in json.loads(text)):
                there = columns_of(self.table, name)
                for found in self.table.batches(name, _READ_ROWS, [each for each in self.columns if each in there]):
                    if any(found.column(each).null_count for each in self.columns if each in _COLUMNS):
                        raise ConfigError(f"{self.table.url}/{name} has rows without {', '.join(_COLUMNS)}")
                    yield self.read(found)


def columns_of(table: Directory, name: str) -> Sequence[str]:
    """Columns of a file of the table. Raises `ConfigError` where it has not those that a table needs."""
    there = table.footer(name).schema.to_arrow_schema().names
    if missing := [column for column in _COLUMNS if column not in there]:
        raise ConfigError(f"{table.url}/{name} has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}")
    return list(there)


def _topics_in(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.unique(batch.column("topic").cast(pa.string()))], names=["topic"])


class _Told(NamedTuple):
    """Row of what a task has found: a sum (`start` is null), or one range."""

    kind: str
    topic: str
    partition: int
    start: int | None
    stop: int | None
    ranges: int
    offsets: int


_TOLD = pa.schema([("kind", pa.string()), *RANGES, ("ranges", pa.int64()), ("offsets", pa.int64())])
_COVERED = "covered"


@dataclass(frozen=True, slots=True)
class ComparePartitions:
    """Task over the ranges of whole partitions, in order. Called by Spark."""

    logs: Mapping[TopicPartition, Edges]
    named: int

    def __call__(self, batches: Batches) -> Batches:
        """Function for `mapInArrow`."""
        every = (row for batch in batches for row in zip(*(each.to_pylist() for each in batch.columns), strict=True))
        for tp, rows in groupby(every, key=lambda row: TopicPartition(row[0], row[1])):
            found = of_partition(tp, ((start, stop) for _, _, start, stop in rows), self.logs.get(tp), self.named)
            yield pa.RecordBatch.from_pylist([each._asdict() for each in _told(tp, found)], schema=_TOLD)


def _told(tp: TopicPartition, found: Difference) -> Iterator[_Told]:
    yield _Told(_COVERED, *tp, None, None, 0, found.covered)
    for kind, each in found._every():
        if each.ranges:
            yield _Told(kind, *tp, None, None, each.ranges, each.offsets)
        yield from (_Told(kind, *tp, part.start, part.stop, 0, 0) for part in each.named)


def summed(told: Iterable[Sequence[Any]], logs: Mapping[TopicPartition, Edges]) -> Difference:
    """What tasks have told of partitions, and of those of `logs` that the table has no row of. Pure."""
    covered, seen = 0, set[TopicPartition]()
    named: dict[str, list[OffsetRange]] = {kind: [] for kind in KINDS}
    sums = dict.fromkeys(KINDS, Found())
    for each in map(_Told._make, told):
        tp = TopicPartition(each.topic, each.partition)
        if each.kind == _COVERED:
            seen.add(tp)
            covered += each.offsets
        elif each.start is None or each.stop is None:
            sums[each.kind] = sums[each.kind].plus(Found((), each.ranges, each.offsets))
        else:
            named[each.kind].append(OffsetRange(*tp, each.start, each.stop))
    unseen = [
        OffsetRange(*tp, log.first, log.end) for tp, log in logs.items() if tp not in seen and log.first < log.end
    ]
    sums["missing"] = sums["missing"].plus(Found.of(unseen))
    named["missing"] += unseen
    return Difference(
        covered, *(Found(tuple(sorted(named[kind])), sums[kind].ranges, sums[kind].offsets) for kind in KINDS)
    )


def reconcile(settings: Settings, table: Directory, master: str) -> Difference:
    """Compare the table with the topics between its first row and now, on Spark. Blocks. Raises `ConfigError`, and
    `JobFailed` where a file cannot be read.
    """
    names = files_of(table)
    if not names:
        raise ConfigError(f"{table.url} has no Parquet files; name the table's directory")
    columns_of(table, names[0])
    spark = open_session(settings, master, "reconcile")
    with stopped_behind(spark):
        cores = cores_of(spark)
        files = _files(spark, names, cores)
        topics = collected(files.mapInArrow(ReadTable(table, _topics_in, ["topic"]), "topic string"))
        logs = _logs(settings, {row[0] for row in topics})
        named = max(_LEAST_NAMED, _NAMED // max(1, len(logs)))
        reading = ReadTable(table, ranges_in, [*_COLUMNS, "until", "status"])
        ranges = files.mapInArrow(reading, in_sparks_words(RANGES))
        by_partition = ranges.repartition(_TASKS_A_CORE * cores, "topic", "partition")
        in_order = by_partition.sortWithinPartitions("topic", "partition", "start", "stop")
        told = collected(in_order.mapInArrow(ComparePartitions(logs, named), in_sparks_words(_TOLD)))
        return summed(told, asked_for(settings, logs))


def files_of(table: Directory) -> list[str]:
    """The table's Parquet files; of a Delta table those that count by its log. Raises `ConfigError`."""
    if (table / "metadata").names(".metadata.json", below=False):
        # Tries that failed, and what an engine has merged, lie beside those that count.
        raise ConfigError(
            f"{table.url} is an Iceberg table, and its catalog alone knows which of its files count: compare what an "
            f"engine reads of it, written as Parquet with the columns {', '.join(_COLUMNS)}"
        )
    if (table / "_delta_log").names(".json", below=False):
        # What was compacted or deleted stays beside it until VACUUM.
        log = delta_table(table)
        if next(iter(log.deletion_vectors()), None) is not None:
            # They stay in its files: what was deleted would pass for handled, and what was updated for repeated.
            raise ConfigError(
                f"the Delta table {table.url} has rows that deletion vectors take out of its files: have an engine "
                f"write those anew, as Spark does by REORG TABLE … APPLY (PURGE)"
            )
        return sorted(map(unquote, pa.table(log.get_add_actions())["path"].to_pylist()))
    return [path for path in table.names(".parquet") if not passed_over(path)]


def asked_for(settings: Settings, logs: Mapping[TopicPartition, Edges]) -> dict[TopicPartition, Edges]:
    """Those of the logs that the settings ask for: of a topic of which [assign] names some partitions, no others are
    missed. Pure.
    """
    return {tp: logs[tp] for tp in narrowed(logs, settings.assign.wanted.numbered)}


def _files(spark: SparkSession, names: Sequence[str], cores: int) -> DataFrame:
    """A row for each task: the files that it reads."""
    size = max(1, min(_FILES, -(-len(names) // (_TASKS_A_CORE * cores))))
    return rows_frame(spark, [json.dumps(names[at : at + size]) for at in range(0, len(names), size)], "files")


def _logs(settings: Settings, topics: Iterable[str]) -> dict[TopicPartition, Edges]:
    """Edges of all partitions of those topics that exist."""
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        there = {tp.topic for tp in session.existing([TopicPartition(topic, 0) for topic in topics])}
        partitions = session.partitions(sorted(there), "the table's name") if there else []
        return dict(session.edges(partitions))
