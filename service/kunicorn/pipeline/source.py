"""The data source `kunicorn`: Kafka's records as rows, or the ranges that a job's tasks fetch and handle themselves.

    spark.dataSource.register(KunicornDataSource)
    spark.read.format("kunicorn").option("config", "config.toml").option("startingOffsets", "earliest").load()

Options carry the names of Spark's own Kafka source. Every method but `read` runs in a Python process that Spark starts
beside the driver; `read` runs in the executors. Objects travel between them by Spark's own pickle: none holds a secret,
as each process reads the settings itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kunicorn.errors import ConfigError
from kunicorn.pipeline.access import Access
from kunicorn.pipeline.bounds import Bounds, Everywhere, as_json, bounds_of, from_json
from kunicorn.pipeline.log import Log
from kunicorn.pipeline.options import SourceOptions
from kunicorn.pipeline.planning import gone_text, plan
from kunicorn.pipeline.ranges import OffsetRange, Offsets, between, cut, first_of_each, largest_first
from kunicorn.record_columns import RECORD_COLUMNS, records_batch
from kunicorn.topics import TopicPartition

RANGE_COLUMNS = "topic string, partition int, start bigint, stop bigint"
_RANGE_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("start", pa.int64()), ("stop", pa.int64())]
)


class KunicornDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """`format("kunicorn")`."""
        return "kunicorn"

    def schema(self) -> str:
        """A row a record, with the columns of Spark's own Kafka source; or with `rows` = `ranges` a row a range."""
        return RANGE_COLUMNS if SourceOptions.of(self.options).rows == "ranges" else RECORD_COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. Raises `ConfigError`."""
        return KunicornReader(SourceOptions.of(self.options), bounds_of(self.options, batch=True))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. Raises `ConfigError`."""
        return KunicornStreamReader(SourceOptions.of(self.options), bounds_of(self.options, batch=False))


class RangePartition(InputPartition):
    """One range, for one task."""

    def __init__(self, value: OffsetRange) -> None:
        super().__init__(tuple(value))


class _Rows:
    """Reading, the same for batch and stream. Caller: an executor's Python process."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records, or the range itself. Raises `RangeUnreadable`."""
        whole = OffsetRange(*partition.value)
        if self._options.rows == "ranges":
            yield pa.RecordBatch.from_pylist([whole._asdict()], schema=_RANGE_SCHEMA)
            return
        for messages in self._options.file.reader().read(whole):
            yield records_batch(messages)

    def _tasks(self, ranges: Sequence[OffsetRange]) -> list[RangePartition]:
        return [RangePartition(each) for each in largest_first(cut(ranges, self._options.min_partitions))]

    def _log(self) -> Log:
        settings = self._options.settings()
        return Log(Access(settings).admin(), settings.kafka.isolation_level)


class KunicornReader(_Rows, DataSourceReader):
    """A batch: from one bound to another."""

    def __init__(self, options: SourceOptions, bounds: Bounds) -> None:
        super().__init__(options)
        self._bounds = bounds

    def partitions(self) -> Sequence[InputPartition]:
        """One range a task. Raises `ConfigError`."""
        log = self._log()
        options = self._options
        found = plan(log.partitions(options.topics), self._bounds, log, fail_on_data_loss=options.fail_on_data_loss)
        return self._tasks(found.ranges)


class KunicornStreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: offsets by topic and partition, kept in Spark's checkpoint in the shape of its own Kafka source.

    `commit` and `stop` do nothing: Spark calls the one late and never for the last batch, the other not at all.
    """

    def __init__(self, options: SourceOptions, bounds: Bounds) -> None:
        super().__init__(options)
        self._bounds = bounds
        self._target: dict[TopicPartition, int] | None = None
        """Where `availableNow` ends."""
        self._open: Log | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; one with a checkpoint goes on from there. Raises `ConfigError`."""
        log = self._known()
        partitions = log.partitions(self._options.topics)
        bounds = Bounds(self._bounds.start, Everywhere(-1), self._bounds.unmatched_is_latest)
        found = plan(partitions, bounds, log, fail_on_data_loss=self._options.fail_on_data_loss)
        starts = {**found.edges.end, **{each.tp: each.start for each in found.ranges}}
        return as_json(starts)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends: the logs' ends, or so many offsets in proportion."""
        begin = self._with_new_partitions(from_json(start))
        ends = self._target or self._ends(begin)
        ranges = between(begin, {tp: max(begin[tp], ends.get(tp, begin[tp])) for tp in begin})
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return as_json({**begin, **{each.tp: each.stop for each in first_of_each(ranges, most)}})

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The logs' ends, so that the query's progress tells its lag."""
        return as_json(self._ends(self._with_new_partitions({})))

    def prepareForTriggerAvailableNow(self) -> None:
        """Records that arrive from now on are for the next run."""
        self._target = self._ends(self._with_new_partitions({}))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The micro-batch's ranges. Raises `ConfigError` where some of it is gone."""
        stops = from_json(end)
        begun = from_json(start)
        edges = self._known().edges(stops)
        begin = {tp: begun.get(tp, edges.first[tp]) for tp in stops}
        gone = between(begin, {tp: min(stop, max(begin[tp], edges.first[tp])) for tp, stop in stops.items()})
        if gone and self._options.fail_on_data_loss:
            raise ConfigError(f"{gone_text(gone, edges)}; set failOnDataLoss = false to go on behind them")
        lost = {each.tp: each.stop for each in gone}
        return self._tasks(between({**begin, **lost}, stops))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: see the class."""

    def stop(self) -> None:
        """Nothing: see the class."""

    def _known(self) -> Log:
        if self._open is None:
            self._open = self._log()
        return self._open

    def _ends(self, offsets: Offsets) -> dict[TopicPartition, int]:
        return dict(self._known().edges(offsets).end)

    def _with_new_partitions(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Partitions that have come since begin at their beginning, whatever a new query would do."""
        log = self._known()
        new = [tp for tp in log.partitions(self._options.topics) if tp not in offsets]
        return {**offsets, **log.edges(new).first} if new else dict(offsets)

    def __getstate__(self) -> dict[str, Any]:
        # It is pickled for the executors; clients stay where they are.
        return {**self.__dict__, "_open": None}
