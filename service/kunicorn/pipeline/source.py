"""The Spark data source `kunicorn`: Kafka's records as rows, or ranges that a job's tasks fetch and handle themselves.

    spark.dataSource.register(KunicornDataSource)
    spark.read.format("kunicorn").option("config", "config.toml").option("startingOffsets", "earliest").load()

What each version of Spark has: data sources since 4.0, filters since 4.1, streams that are told where they begin since
4.2 (`stream_source`).

Options carry the names of Spark's own Kafka source where it has them. Every method but `read` runs in a Python process
that Spark starts beside the driver; `read` runs in the executors. Objects travel between them by Spark's own pickle:
none holds a secret, as each process reads the settings itself.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from kunicorn.clients.config import decoding_of
from kunicorn.clients.session import JOB_PATIENCE, ClusterSession, cluster_session, narrowed
from kunicorn.errors import ConfigError
from kunicorn.handler.columns import RECORD_COLUMNS, SCHEMA, in_batches, records_batch
from kunicorn.handler.config import takes
from kunicorn.handler.decode.forms import BYTES
from kunicorn.pipeline.lake.columns import Form, LakeColumns, NotExportable
from kunicorn.pipeline.plan import (
    Bounds,
    bounds_of,
    gone_text,
    plan,
)
from kunicorn.pipeline.spark import check_filters, check_source, check_streams
from kunicorn.pipeline.tasks.executor_process import SettingsFile, settings_file
from kunicorn.pipeline.tasks.ranges import RANGES, in_sparks_words
from kunicorn.positions import NO_EPOCH, Edges, OffsetRange, TopicPartition, cut, largest_first
from kunicorn.settings import Settings, load

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    from kunicorn.pipeline.pushed import Pushed
except ImportError:
    check_source("the data source kunicorn")
    raise

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

logger = logging.getLogger("kunicorn.pipeline")

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
    by_settings: bool = False
    """Whether the topics are those of the settings, of some of which [assign] may name single partitions."""

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
            by_settings=all(options.get(name) is None for name in ("subscribe", "subscribePattern")),
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

    def partitions(self, log: ClusterSession) -> list[TopicPartition]:
        """Partitions that are asked for, as of now. Raises `ConfigError` for those that do not exist."""
        return log.partitions(self.topics, numbered=self._numbered())

    def asked_for(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of the partitions that are asked for, whether or not they exist."""
        wanted = {topic for topic in {tp.topic for tp in partitions} if takes(self.topics, topic)}
        return frozenset(narrowed((tp for tp in partitions if tp.topic in wanted), self._numbered()))

    def _numbered(self) -> Collection[TopicPartition]:
        return self.settings().assign.wanted.numbered if self.by_settings else ()

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
    pattern, names = options.get("subscribePattern"), options.get("subscribe")
    if pattern is not None:
        if names is not None:
            raise ConfigError("subscribe and subscribePattern both say what is read; leave one out")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"subscribePattern = {pattern!r} is no regular expression: {error}; correct it"
            ) from error
        # Whole names, as Spark's own source matches them: `orders` is not to read the dead letters of orders-dlq.
        return [f"^(?:{pattern})$"]
    if names is not None:
        if not (topics := [name.strip() for name in names.split(",") if name.strip()]):
            raise ConfigError(f"subscribe = {names!r} names no topic; name some, or leave it out for group.topics")
        return topics
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


def _as_sparks(schema: pa.Schema) -> pa.Schema:
    """The schema as Spark takes it: with its own precision of times, and nowhere a word on what may be null."""
    spark = to_arrow_schema(from_arrow_schema(schema), timezone="UTC")
    return pa.schema([each.with_type(_nullable(each.type)) for each in spark])


def _in_sparks_types(batch: pa.RecordBatch, columns: list[str]) -> pa.RecordBatch:
    """These columns of the records, as Spark takes them. Raises `NotExportable` for a value that Spark has no room for,
    as for a time's nanoseconds, naming the record.
    """
    found = batch.select(columns)
    schema = _as_sparks(found.schema)
    try:
        return found.cast(schema)
    except pa.ArrowInvalid:
        for at in range(batch.num_rows):
            try:
                found[at : at + 1].cast(schema)
            except pa.ArrowInvalid as error:
                topic, partition, offset = (batch.column(name)[at] for name in ("topic", "partition", "offset"))
                raise NotExportable(
                    f"{topic}-{partition}@{offset}: its value does not fit Spark's types, which have times of "
                    f"microseconds: {error}; name such a type in valueSchema"
                ) from error
        raise


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type with all within it nullable, as Spark reads a type that is told as text; keys of maps never are."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_nullable(each.type)).with_nullable(True) for each in kind])
    if pa.types.is_list(kind):
        field = kind.value_field
        return pa.list_(field.with_type(_nullable(field.type)).with_nullable(True))
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(kind.key_field, item.with_type(_nullable(item.type)).with_nullable(True))
    return kind


def _types(columns: str) -> dict[str, str]:
    """Spark's types by name, of columns as the source tells them."""
    return dict(each.split(" ", 1) for each in columns.split(", "))


_RECORD_TYPES, _RANGE_TYPES = _types(RECORD_COLUMNS), _types(in_sparks_words(RANGES))


class KunicornDataSource(DataSource):
    """The data source `kunicorn`, as PySpark's Python data source API wants it."""

    _planned = False
    """Whether there is a reader: Spark sends what it pickles from then on to every task."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the options, once there is a reader: those that name each partition's offset grow with a topic."""
        return {name: each for name, each in self.__dict__.items() if not (self._planned and name == "options")}

    @classmethod
    def name(cls) -> str:
        """`format("kunicorn")`."""
        return "kunicorn"

    def schema(self) -> StructType | str:
        """A row a record, with the columns of Spark's own Kafka source; or with `rows` = `ranges` a row a range.

        With `valueSchema`, `value` is a struct of that schema's fields.
        """
        options = SourceOptions.of(self.options)
        if options.rows == "ranges":
            return in_sparks_words(RANGES)
        if options.value_schema is None:
            return RECORD_COLUMNS
        # As text, Spark would take no field whose name is no plain identifier, as `order-id` of JSON.
        return from_arrow_schema(_as_sparks(options.lake_columns(None).schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. Raises `ConfigError`."""
        options = SourceOptions.of(self.options).pruned(schema)
        if options.push_filters:
            check_filters("pushFilters")
        kind = FilteringReader if options.push_filters else KunicornReader
        self._planned = True
        return kind(options, bounds_of(self.options, batch=True))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. Raises `ConfigError`, also where Spark is too old."""
        check_streams("a stream of the data source kunicorn")
        from kunicorn.pipeline.stream_source import KunicornStreamReader

        options = SourceOptions.of(self.options).pruned(schema)
        self._planned = True
        return KunicornStreamReader(options, bounds_of(self.options, batch=False))


class RangePartition(InputPartition):
    """One range, for one task, and the leader epoch in which the log had it."""

    def __init__(self, value: OffsetRange, epoch: int = NO_EPOCH) -> None:
        super().__init__((*value, epoch))


class RowsReader:
    """Reading of ranges, for batch and stream alike. Caller: an executor's Python process."""

    def __init__(self, options: SourceOptions, bounds: Bounds) -> None:
        """`bounds`: for planning, which the process does that makes the reader."""
        self._options = options
        self._bounds = bounds
        self._pushed = Pushed()

    def __getstate__(self) -> dict[str, Any]:
        """What every task is sent. A task has its own range, and the bounds may name each partition."""
        return {name: each for name, each in self.__dict__.items() if name != "_bounds"}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records, or the range itself. Raises `RangeUnreadable`."""
        if partition.value is None:
            return  # Where nothing is planned, Spark reads a partition of its own making.
        *place, epoch = partition.value
        whole = OffsetRange(*place)
        if self._options.rows == "ranges":
            batch = pa.RecordBatch.from_pylist([whole._asdict()], schema=RANGES)
            yield batch.select(list(self._options.columns or RANGES.names))
            return
        columns = list(self._options.columns or SCHEMA.names)
        typed = self._options.value_schema is not None and "value" in columns
        made = self._options.lake_columns(whole.topic) if typed else None
        strict = self._options.fail_on_data_loss
        reader = self._options.file.records(timestamp_types=True, fail_on_data_loss=strict)
        for run in in_batches(reader.read(whole, epochs={whole.tp: epoch})):
            batch = self._pushed.rows(records_batch(run) if made is None else made.batch(run))
            if batch.num_rows:
                yield batch.select(columns) if made is None else _in_sparks_types(batch, columns)

    def cluster(self) -> AbstractContextManager[ClusterSession]:
        return cluster_session(self._options.settings(), patience=JOB_PATIENCE)


def tasks_of_ranges(
    ranges: Sequence[OffsetRange], pieces: int | None, epochs: Mapping[TopicPartition, int]
) -> list[RangePartition]:
    return [RangePartition(each, epochs.get(each.tp, NO_EPOCH)) for each in largest_first(cut(ranges, pieces))]


def tell_gone(gone: Sequence[OffsetRange], edges: Mapping[TopicPartition, Edges]) -> None:
    """Log what was deleted before it was read, where that is accepted. Caller: whoever plans."""
    if gone:
        logger.warning(f"{gone_text(gone, edges)}; they are passed over")


class KunicornReader(RowsReader, DataSourceReader):
    """Reader of a batch: from one bound to another."""

    def partitions(self) -> Sequence[InputPartition]:
        """One range a task. Raises `ConfigError`."""
        options, pushed = self._options, self._pushed
        with self.cluster() as log:
            known = options.partitions(log)
            found = plan(known, self._bounds, log, fail_on_data_loss=options.fail_on_data_loss)
            tell_gone(found.gone, found.edges)
            left = set(pushed.partitions(known))
            ranges = [each for each in found.ranges if each.tp in left]
            young = {} if pushed.since_ms is None else log.at({each.tp: pushed.since_ms for each in ranges})
        return tasks_of_ranges(pushed.ranges(ranges, young), options.min_partitions, found.epochs)


class FilteringReader(KunicornReader):
    """Reader of a batch to which Spark hands filters: a class of its own, as Spark goes by whether there is the
    method.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that can be kept, and give back the others."""
        return list(self._pushed.keep(filters))
