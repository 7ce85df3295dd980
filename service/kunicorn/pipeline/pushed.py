"""Filters that Spark hands to the data source: which the source keeps itself, which partitions and offsets they leave,
and which rows. Pure.

1. A filter that is kept here decides exactly: Spark does not look at it again. So only comparisons of `topic`,
   `partition`, `offset` and `timestamp` with a value are kept, and every other one is given back.
2. A time narrows the plan from below alone. Behind the first record that is as young as a bound there may be older
   ones; before it there is none that is as young.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource

from kunicorn.positions import OffsetRange, Offsets, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_NEVER_NULL = ("topic", "partition", "offset")
_TYPES: Mapping[str, type] = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
_FILTERS: Mapping[str, str] = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
    "In": "in",
}  # fmt: skip
_WORDS = {getattr(datasource, name): word for name, word in _FILTERS.items() if hasattr(datasource, name)}
"""By Spark's class; Spark 4.0 hands over no filters, and has none of them."""
_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
    "in": lambda found, among: found in among,
}  # fmt: skip
_MASKS: Mapping[str, Callable[[pa.Array, Any], pa.Array]] = {
    "=": pc.equal, ">": pc.greater, ">=": pc.greater_equal, "<": pc.less, "<=": pc.less_equal,
    "in": lambda column, among: pc.is_in(column, pa.array(list(among), column.type)),
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparison of a column with a value; a time is in microseconds since 1970. Travels to the executors."""

    column: str
    word: str
    value: Any

    def holds(self, found: Any) -> bool:
        """Whether a value fulfils it."""
        return _HOLDS[self.word](found, self.value)

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Whether each row fulfils it; null for a null, as in SQL."""
        column = batch.column(self.column)
        return _MASKS[self.word](column.view(pa.int64()) if self.column == "timestamp" else column, self.value)


@dataclass(slots=True)
class Pushed:
    """The filters that are kept: rows have to fulfil all of them."""

    conditions: tuple[Condition, ...] = ()

    def keep(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Keep what can be kept; gives back the others, which Spark evaluates."""
        for each in filters:
            if isinstance(each, datasource.IsNotNull) and len(each.attribute) == 1 and each.attribute[0] in _NEVER_NULL:
                continue
            if (condition := _condition(each)) is None:
                yield each
            else:
                self.conditions = (*self.conditions, condition)

    def partitions(self, known: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Those partitions in which a row may fulfil the filters."""
        return [
            tp
            for tp in known
            if all(each.holds(tp.topic) for each in self._of("topic"))
            and all(each.holds(tp.partition) for each in self._of("partition"))
        ]

    def ranges(self, planned: Iterable[OffsetRange], first: Offsets) -> list[OffsetRange]:
        """The ranges without the offsets before and behind those that may fulfil the filters. `first`: of partitions
        of which that is known, the first offset that is as young as `since_ms`; a negative one where there is none.
        """
        return [found for each in planned if (found := self._narrowed(each, first)) is not None]

    def _narrowed(self, whole: OffsetRange, first: Offsets) -> OffsetRange | None:
        start, stop = whole.start, whole.stop
        for each in self._of("offset"):
            values = list(each.value) if each.word == "in" else [each.value]
            if not values:
                return None
            if each.word in ("=", "in", ">", ">="):
                start = max(start, min(values) + (each.word == ">"))
            if each.word in ("=", "in", "<", "<="):
                stop = min(stop, max(values) + (each.word != "<"))
        if (young := first.get(whole.tp)) is not None:
            start = max(start, young) if young >= 0 else stop
        return whole._replace(start=start, stop=stop) if start < stop else None

    @property
    def since_ms(self) -> int | None:
        """Milliseconds since 1970 that no row is older than; None where the filters say none."""
        least = [
            min(each.value, default=0) if each.word == "in" else each.value
            for each in self._of("timestamp")
            if each.word in ("=", "in", ">", ">=")
        ]
        return max(0, max(least) // 1000) if least else None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that fulfil all filters."""
        for each in self.conditions:
            batch = batch.filter(each.mask(batch))
        return batch

    def _of(self, column: str) -> list[Condition]:
        return [each for each in self.conditions if each.column == column]


def _condition(found: Filter) -> Condition | None:
    """The filter as a condition; None where it is none of those that are kept."""
    told: Any = found
    if (word := _WORDS.get(type(found))) is None or len(told.attribute) != 1:
        return None
    (column,) = told.attribute
    if (kind := _TYPES.get(column)) is None:
        return None
    values: tuple[Any, ...] = tuple(told.value) if word == "in" else (told.value,)
    # A time without a zone is none of the column's: a session compares it by its own zone.
    if not all(type(each) is kind for each in values):
        return None
    if kind is datetime and any(each.tzinfo is None for each in values):
        return None
    if kind is datetime:
        values = tuple((each - _EPOCH) // timedelta(microseconds=1) for each in values)
    return Condition(column, word, values if word == "in" else values[0])
