"""The Spark data source `kunicorn`: Kafka's records as rows, or ranges that a job's tasks fetch and handle themselves.

    spark.dataSource.register(KunicornDataSource)
    spark.read.format("kunicorn").option("config", "config.toml").option("startingOffsets", "earliest").load()

Options carry the names of Spark's own Kafka source where it has them. Every method but `read` runs in a Python process
that Spark starts beside the driver; `read` runs in the executors. Objects travel between them by Spark's own pickle:
none holds a secret, as each process reads the settings itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from kunicorn.clients.config import decoding_of
from kunicorn.clients.session import JOB_PATIENCE, ClusterSession, cluster_session
from kunicorn.errors import ConfigError
from kunicorn.handler.columns import RECORD_COLUMNS, SCHEMA, in_batches, records_batch
from kunicorn.handler.decode.forms import BYTES
from kunicorn.pipeline.executors import SettingsFile, settings_file
from kunicorn.pipeline.lake_columns import Form, LakeColumns
from kunicorn.pipeline.plan import (
    Bounds,
    Everywhere,
    as_json,
    bounds_of,
    created_anew,
    from_json,
    gone_text,
    plan,
    resumed,
)
from kunicorn.pipeline.spark import check_source
from kunicorn.positions import (
    LATEST,
    OffsetRange,
    Offsets,
    TopicPartition,
    between,
    cut,
    ends_of,
    first_of_each,
    largest_first,
    still_there,
)
from kunicorn.settings import Settings, load
from kunicorn.text import listed

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    from kunicorn.pipeline.pushed import Pushed
except ImportError:
    check_source("the data source kunicorn")
    raise

KNOWN = (
    "config", "rows", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "pushFilters",
    "valueSchema",
)  # fmt: skip
_REFUSED = "security and all else about the cluster is in the settings' file, out of Spark's sight: option config"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options of the source; travel to the executors."""

    file: SettingsFile
    rows: str
    """"records" or "ranges"."""
    topics: Sequence[str]
    fail_on_data_loss: bool
    min_partitions: int | None
    max_offsets_per_trigger: int | None
    push_filters: bool = False
    """Whether Spark is to hand over filters: it refuses a source that takes some where its session does not."""
    columns: tuple[str, ...] = ()
    """Of the records; all where there are none."""
    value_schema: str | None = None
    """Where the schema is, package.module:NAME, by which values become structs; None: they are bytes."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Options in a mapping that ignores the case of names, as Spark's does. Raises `ConfigError`."""
        _check_names(options)
        if (path := options.get("config")) is None:
            raise ConfigError("the option config is missing: name the settings' file, the same path on every executor")
        file = settings_file(Path(path), load(Path(path), os.environ))
        pipeline = file.settings().pipeline
        rows = options.get("rows", "records")
        if rows not in {"records", "ranges"}:
            raise ConfigError(f"rows = {rows!r} is neither records nor ranges; choose one")
        return cls(
            file,
            rows,
            _topics(options, file.settings()),
            _flag(options, "failOnDataLoss", pipeline.fail_on_data_loss),
            _count(options, "minPartitions", pipeline.min_partitions),
            _count(options, "maxOffsetsPerTrigger", pipeline.max_offsets_per_trigger),
            _flag(options, "pushFilters", False),
            value_schema=options.get("valueSchema"),
        )

    def pruned(self, schema: StructType) -> SourceOptions:
        """The options with the columns of this schema: as it is, or as `DataFrameReader.schema` has named them. Raises
        `ConfigError` for others.
        """
        known = _RANGE_TYPES if self.rows == "ranges" else {**_RECORD_TYPES, "value": self.value_type}
        for each in schema:
            found = each.dataType.simpleString()
            if (there := known.get(each.name)) != found:
                told = "there is none of that name" if there is None else f"it is {there}"
                raise ConfigError(
                    f"the schema's column {each.name!r} is {found}, and {told}: the source has {', '.join(known)}"
                )
        return replace(self, columns=tuple(schema.names))

    @property
    def value_type(self) -> str:
        """Spark's type of the column `value`. Raises `HandlerLoadError` for a schema that gives no columns."""
        if self.value_schema is None:
            return _RECORD_TYPES["value"]
        kind = from_arrow_type(self.lake_columns(None).schema.field("value").type)
        return kind.simpleString()

    def lake_columns(self, topic: str | None) -> LakeColumns:
        """Maker of the columns, as an export has it. `topic` chooses the handler whose settings say how values are
        written; None: the first one's.
        """
        settings = self.settings()
        handler = settings.every_handler[0] if topic is None else settings.handler_of(topic)
        value = BYTES if self.value_schema is None else handler.value
        return Form(value=value, columns_of=self.value_schema).columns(decoding_of(settings, handler))

    def settings(self) -> Settings:
        """Settings as this process reads them."""
        return self.file.settings()


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in KNOWN}
    for name in options:
        if name.lower() in known or name.lower() == "path":
            continue
        raise ConfigError(f"the source knows no option {name!r}: {_REFUSED if '.' in name else 'see docs/pipeline.md'}")


def _topics(options: Mapping[str, str], settings: Settings) -> Sequence[str]:
    if (pattern := options.get("subscribePattern")) is not None:
        return [f"^{pattern.removeprefix('^')}"]
    if (names := options.get("subscribe")) is not None:
        return [name.strip() for name in names.split(",") if name.strip()]
    return settings.group.topics or settings.assign.wanted.topics


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise ConfigError(f"{name} = {text!r} is neither true nor false; choose one")
    return text == "true"


def _count(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name} = {text!r} is no number from 1 on; correct it")
    return int(text)


logger = logging.getLogger("kunicorn.pipeline")

_IDS, _PIECES = "@topic_ids", "@min_partitions"
"""Beside topics' names, none of which can have an @."""
RANGE_COLUMNS = "topic string, partition int, start bigint, stop bigint"
_RANGE_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("start", pa.int64()), ("stop", pa.int64())]
)


def _as_sparks(schema: pa.Schema) -> pa.Schema:
    """The schema as Spark takes it: with its own precision of times, and nowhere a word on what may be null."""
    return to_arrow_schema(from_arrow_schema(schema), timezone="UTC")


def _types(columns: str) -> dict[str, str]:
    """Spark's types by name, of columns as the source tells them."""
    return dict(each.split(" ", 1) for each in columns.split(", "))


_RECORD_TYPES, _RANGE_TYPES = _types(RECORD_COLUMNS), _types(RANGE_COLUMNS)


class KunicornDataSource(DataSource):
    """The data source `kunicorn`, as PySpark's Python data source API wants it."""

    @classmethod
    def name(cls) -> str:
        """`format("kunicorn")`."""
        return "kunicorn"

    def schema(self) -> str:
        """A row a record, with the columns of Spark's own Kafka source; or with `rows` = `ranges` a row a range.

        With `valueSchema`, `value` is a struct of that schema's fields.
        """
        options = SourceOptions.of(self.options)
        if options.rows == "ranges":
            return RANGE_COLUMNS
        return RECORD_COLUMNS.replace("value binary", f"value {options.value_type}", 1)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. Raises `ConfigError`."""
        options = SourceOptions.of(self.options).pruned(schema)
        kind = FilteringReader if options.push_filters else KunicornReader
        return kind(options, bounds_of(self.options, batch=True))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. Raises `ConfigError`."""
        return KunicornStreamReader(SourceOptions.of(self.options).pruned(schema), bounds_of(self.options, batch=False))


class RangePartition(InputPartition):
    """One range, for one task."""

    def __init__(self, value: OffsetRange) -> None:
        super().__init__(tuple(value))


class _Rows:
    """Reading of ranges, for batch and stream alike. Caller: an executor's Python process."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records, or the range itself. Raises `RangeUnreadable`."""
        if partition.value is None:
            return  # Where nothing is planned, Spark reads a partition of its own making.
        whole = OffsetRange(*partition.value)
        if self._options.rows == "ranges":
            batch = pa.RecordBatch.from_pylist([whole._asdict()], schema=_RANGE_SCHEMA)
            yield batch.select(list(self._options.columns or _RANGE_SCHEMA.names))
            return
        columns = list(self._options.columns or SCHEMA.names)
        typed = self._options.value_schema is not None and "value" in columns
        made = self._options.lake_columns(whole.topic) if typed else None
        for run in in_batches(self._options.file.records(timestamp_types=True).read(whole)):
            batch = self._pushed.rows(records_batch(run) if made is None else made.batch(run))
            if batch.num_rows:
                batch = batch.select(columns)
                yield batch if made is None else batch.cast(_as_sparks(batch.schema))

    def _cluster(self) -> AbstractContextManager[ClusterSession]:
        return cluster_session(self._options.settings(), patience=JOB_PATIENCE)


def _tasks(ranges: Sequence[OffsetRange], pieces: int | None) -> list[RangePartition]:
    return [RangePartition(each) for each in largest_first(cut(ranges, pieces))]


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a stream, as Spark's checkpoint has it."""

    offsets: Offsets
    topics: Mapping[str, str]
    """Ids of the topics that the offsets are of; see `ClusterSession.topic_ids`."""
    pieces: int | None
    """What the micro-batch that ends here is cut into: when it is repeated, the setting may be another."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> _Place:
        offsets = {key: value for key, value in told.items() if not key.startswith("@")}
        return cls(from_json(offsets), told.get(_IDS, {}), told.get(_PIECES))

    def as_json(self) -> dict[str, Any]:
        # Spark compares the text: what is the same must be written the same.
        return {**as_json(self.offsets), _IDS: dict(sorted(self.topics.items())), _PIECES: self.pieces}


class KunicornReader(_Rows, DataSourceReader):
    """Reader of a batch: from one bound to another."""

    def __init__(self, options: SourceOptions, bounds: Bounds) -> None:
        super().__init__(options)
        self._bounds = bounds

    def partitions(self) -> Sequence[InputPartition]:
        """One range a task. Raises `ConfigError`."""
        options, pushed = self._options, self._pushed
        with self._cluster() as log:
            known = log.partitions(options.topics)
            found = plan(known, self._bounds, log, fail_on_data_loss=options.fail_on_data_loss)
            left = set(pushed.partitions(known))
            ranges = [each for each in found.ranges if each.tp in left]
            young = {} if pushed.since_ms is None else log.at({each.tp: pushed.since_ms for each in ranges})
        return _tasks(pushed.ranges(ranges, young), options.min_partitions)


class FilteringReader(KunicornReader):
    """Reader of a batch to which Spark hands filters: a class of its own, as Spark goes by whether there is the
    method.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that can be kept, and give back the others."""
        return list(self._pushed.keep(filters))


class KunicornStreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream: offsets by topic and partition, kept in Spark's checkpoint in the shape of its own Kafka
    source, and beside them the topics' ids, so that a topic created anew is noticed.

    `commit` and `stop` do nothing: Spark calls the one late and never for the last batch, the other not at all.
    """

    def __init__(self, options: SourceOptions, bounds: Bounds) -> None:
        super().__init__(options)
        self._bounds = bounds
        self._target: dict[TopicPartition, int] | None = None
        """Where `availableNow` ends."""

    def initialOffset(self) -> dict[str, Any]:
        """Start of a new query; one with a checkpoint goes on from there. Raises `ConfigError`."""
        bounds = Bounds(self._bounds.start, Everywhere(LATEST), self._bounds.unmatched_is_latest)
        with self._cluster() as log:
            partitions = log.partitions(self._options.topics)
            found = plan(partitions, bounds, log, fail_on_data_loss=self._options.fail_on_data_loss)
        starts = {**ends_of(found.edges), **{each.tp: each.start for each in found.ranges}}
        return _Place(starts, found.topics, self._options.min_partitions).as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End of the next micro-batch: the logs' ends, or so many offsets in proportion.

        Raises `ConfigError` where records are lost, as when a topic was created anew.
        """
        before = _Place.of(start)
        with self._cluster() as log:
            partitions = log.partitions(self._options.topics)
            topics = {**before.topics, **log.topic_ids(tp.topic for tp in partitions)}
            anew = created_anew(before.topics, topics)
            known = {tp: at for tp, at in before.offsets.items() if tp.topic not in anew or tp in partitions}
            known = {tp: known[tp] for tp in self._there(log, known)}
            edges = log.edges({*known, *partitions})
        resume, lost = resumed(known, edges, anew, fail_on_data_loss=self._options.fail_on_data_loss)
        for each in lost:
            logger.warning(each)
        # Partitions that have come since begin at their beginning, whatever a new query would do.
        begin = {**{tp: log.first for tp, log in edges.items()}, **resume}
        now = ends_of(edges)
        target = self._target or now
        ends = {tp: (now if tp.topic in anew else target).get(tp, at) for tp, at in begin.items()}
        ranges = between(begin, {tp: max(at, ends[tp]) for tp, at in begin.items()})
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        stops = {**begin, **{each.tp: each.stop for each in first_of_each(ranges, most)}}
        return _Place(stops, topics, self._options.min_partitions).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Limit by `maxOffsetsPerTrigger`."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The logs' ends, so that the query's progress shows its lag."""
        return as_json(self._ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end at the logs' ends of now: records that arrive later are for the next run."""
        self._target = self._ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Ranges of the micro-batch. Raises `ConfigError` where some of it is gone."""
        begun, planned = _Place.of(start), _Place.of(end)
        stops = planned.offsets
        # Created anew before the micro-batch was planned: its offsets are the new topic's; since then: none are.
        before = created_anew(begun.topics, planned.topics)
        with self._cluster() as log:
            since = created_anew(planned.topics, log.topic_ids(planned.topics))
            stops = {tp: stops[tp] for tp in self._there(log, stops)}
            edges = log.edges(stops)
        known = {tp: at for tp, at in begun.offsets.items() if tp.topic not in before}
        begin = {tp: known.get(tp, edges[tp].first) for tp in stops}
        there = {tp: stop if tp.topic in since else edges[tp].first for tp, stop in stops.items()}
        ranges, gone = still_there(begin, stops, there)
        if gone and self._options.fail_on_data_loss:
            raise ConfigError(f"{gone_text(gone, edges)}; set failOnDataLoss = false to go on behind them")
        return _tasks(ranges, planned.pieces)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: see the class."""

    def stop(self) -> None:
        """Does nothing: see the class."""

    def _there(self, log: ClusterSession, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of a checkpoint's partitions that exist. Raises `ConfigError` for others, unless records may be
        lost."""
        there = log.existing(partitions)
        deleted = sorted(set(partitions).difference(there))
        if deleted and self._options.fail_on_data_loss:
            raise ConfigError(
                f"the topic of {listed(deleted)} was deleted, and the checkpoint goes on in it; set failOnDataLoss = "
                f"false to go on without it"
            )
        for topic in sorted({tp.topic for tp in deleted}):
            logger.warning(f"topic {topic} was deleted: the stream goes on without what was left to read of it")
        return there

    def _ends(self) -> dict[TopicPartition, int]:
        with self._cluster() as log:
            return ends_of(log.edges(log.partitions(self._options.topics)))
