"""Reader of a stream of the data source `kunicorn`: its position in Spark's checkpoint, and the next micro-batch.

It needs Spark 4.2, whose interface tells where the next micro-batch begins and how large it may be.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from kunicorn.clients.session import ClusterSession
from kunicorn.errors import ConfigError
from kunicorn.kafka.stored_positions import Loss, Lost, resolve_all
from kunicorn.pipeline.plan import (
    Bounds,
    Everywhere,
    as_json,
    check_nothing_lost,
    created_anew,
    epochs_of,
    from_json,
    gone_text,
    not_deleted,
    plan,
    within_epochs,
)
from kunicorn.pipeline.source import RowsReader, SourceOptions, tasks_of_ranges, tell_gone
from kunicorn.positions import LATEST, Offsets, TopicPartition, between, ends_of, first_of_each, still_there
from kunicorn.text import listed

logger = logging.getLogger("kunicorn.pipeline")

_IDS, _PIECES, _EPOCHS, _RESUMED = "@topic_ids", "@min_partitions", "@leader_epochs", "@resumed"
"""Beside topics' names, none of which can have an @."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a stream, as Spark's checkpoint has it."""

    offsets: Offsets
    topics: Mapping[str, str]
    """Ids of the topics that the offsets are of; see `ClusterSession.topic_ids`."""
    pieces: int | None
    """What the micro-batch that ends here is cut into: when it is repeated, the setting may be another."""
    epochs: Mapping[TopicPartition, int]
    """Leader epochs that had these offsets, as far as brokers tell (KIP-320)."""
    resumed: Offsets
    """Where the micro-batch that ends here begins in logs that were truncated before its start: Spark remembers its
    former end."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> _Place:
        offsets = {key: value for key, value in told.items() if not key.startswith("@")}
        epochs, begins = (from_json(told.get(each, {})) for each in (_EPOCHS, _RESUMED))
        return cls(from_json(offsets), told.get(_IDS, {}), told.get(_PIECES), epochs, begins)

    def as_json(self) -> dict[str, Any]:
        # Spark compares the text: what is the same must be written the same.
        told = {_EPOCHS: as_json(self.epochs), _RESUMED: as_json(self.resumed)}
        topics = dict(sorted(self.topics.items()))
        some = {name: each for name, each in told.items() if each}
        return {**as_json(self.offsets), _IDS: topics, _PIECES: self.pieces, **some}


class KunicornStreamReader(RowsReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream: offsets by topic and partition, kept in Spark's checkpoint in the shape of its own Kafka
    source, and beside them the topics' ids, so that a topic created anew is noticed.

    It has neither `commit` nor `stop`: Spark calls the one late and never for the last batch, the other not at all.
    """

    def __init__(self, options: SourceOptions, bounds: Bounds) -> None:
        super().__init__(options, bounds)
        self._target: dict[TopicPartition, int] | None = None
        """Where `availableNow` ends."""
        self._left: frozenset[TopicPartition] = frozenset()
        """Partitions of the checkpoint that nobody asks for any more, as far as that was told."""

    def initialOffset(self) -> dict[str, Any]:
        """Start of a new query; one with a checkpoint goes on from there. Raises `ConfigError`."""
        bounds = Bounds(self._bounds.start, Everywhere(LATEST), self._bounds.unmatched_is_latest)
        with self.cluster() as log:
            partitions = self._options.partitions(log)
            found = plan(partitions, bounds, log, fail_on_data_loss=self._options.fail_on_data_loss)
        tell_gone(found.gone, found.edges)
        if silent := sorted({tp.topic for tp in partitions}.difference(tp.topic for tp in found.edges)):
            # A partition that is not in the checkpoint passes for a new one, and begins at its beginning.
            raise ConfigError(
                f"the start leaves out topics that the stream reads: {listed(silent)}; name every partition of theirs, "
                f"with -2 for its earliest offset and -1 for its latest"
            )
        starts = {**ends_of(found.edges), **{each.tp: each.start for each in found.ranges}}
        return _Place(starts, found.topics, self._options.min_partitions, found.epochs, {}).as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End of the next micro-batch: the logs' ends, or so many offsets in proportion. Partitions that are not asked
        for any more stay where they are.

        Raises `ConfigError` where records are lost, as when a topic was created anew.
        """
        before = _Place.of(start)
        with self.cluster() as log:
            partitions = self._options.partitions(log)
            topics = {**before.topics, **log.topic_ids(tp.topic for tp in partitions)}
            anew = created_anew(before.topics, topics)
            left = self._left_behind(before.offsets)
            asked_for = before.offsets.keys() - left.keys()
            there = self._there(log, [tp for tp in asked_for if tp.topic not in anew or tp in partitions])
            known = {tp: before.offsets[tp] for tp in there}
            edges = log.edges({*known, *partitions})
            epochs = {tp: epoch for tp, epoch in before.epochs.items() if tp.topic not in anew}
            logs = within_epochs(edges, epochs, log.ends_of_epochs)
        resume, lost = resolve_all(known, logs, anew)
        self._tell(lost)
        cut = {each.tp: resume[each.tp] for each in lost if each.why is Lost.TRUNCATED}
        # Partitions that have come since begin at their beginning, whatever a new query would do.
        begin = {**{tp: log.first for tp, log in edges.items()}, **resume}
        now = ends_of(edges)
        target = now
        if self._target is not None:
            # What it lacks a broker that was behind did not know, or it has come since.
            lacked = {tp: now[tp] if tp in known else at for tp, at in begin.items()}
            target = self._target = {**lacked, **self._target}
        # Not beyond a log that was truncated since the target was fixed: what comes there is nobody's yet.
        ends = {tp: now[tp] if tp.topic in anew else min(target[tp], now[tp]) for tp in begin}
        ranges = between(begin, {tp: max(at, ends[tp]) for tp, at in begin.items()})
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        stops = {**left, **begin, **{each.tp: each.stop for each in first_of_each(ranges, most)}}
        # Of a partition that stays where it is, the epoch stays, too: Spark would take another for something to do.
        stays = {
            tp: at for tp, at in before.epochs.items() if stops.get(tp) == before.offsets.get(tp) and tp not in cut
        }
        epochs = {**epochs_of(edges), **stays}
        return _Place(stops, topics, self._options.min_partitions, epochs, cut).as_json()

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
        asked_for = self._options.asked_for(planned.offsets)
        # A micro-batch that is repeated is handled as it was planned, whatever is asked for by now.
        stops = {tp: at for tp, at in planned.offsets.items() if tp in asked_for or at != begun.offsets.get(tp)}
        # Created anew before the micro-batch was planned: its offsets are the new topic's; since then: none are.
        before = created_anew(begun.topics, planned.topics)
        with self.cluster() as log:
            stops = {tp: stops[tp] for tp in self._there(log, stops)}
            since = created_anew(planned.topics, log.topic_ids(tp.topic for tp in stops))
            edges = log.edges(stops)
            epochs = {tp: epoch for tp, epoch in planned.epochs.items() if tp.topic not in since}
            logs = within_epochs(edges, epochs, log.ends_of_epochs)
        short = {tp: logs[tp].end for tp, stop in stops.items() if tp.topic not in since and logs[tp].end < stop}
        self._tell([Loss(tp, Lost.TRUNCATED, stops[tp], end) for tp, end in short.items()])
        known = {tp: at for tp, at in begun.offsets.items() if tp.topic not in before} | dict(planned.resumed)
        begin = {tp: known.get(tp, edges[tp].first) for tp in stops}
        stops = {tp: max(begin[tp], short[tp]) if tp in short else stop for tp, stop in stops.items()}
        there = {tp: stop if tp.topic in since else edges[tp].first for tp, stop in stops.items()}
        ranges, gone = still_there(begin, stops, there)
        if gone and self._options.fail_on_data_loss:
            raise ConfigError(f"{gone_text(gone, edges)}; set failOnDataLoss = false to go on behind them")
        tell_gone(gone, edges)
        return tasks_of_ranges(ranges, planned.pieces, planned.epochs)

    def _tell(self, lost: Collection[Loss]) -> None:
        """Log what is lost. Raises `ConfigError` where that is not accepted."""
        if self._options.fail_on_data_loss:
            check_nothing_lost(lost)
        for each in lost:
            logger.warning(each)

    def _left_behind(self, offsets: Offsets) -> Offsets:
        """Those of a checkpoint's partitions that are not asked for any more, which is logged once. They keep their
        offsets there: asked for again, they go on from there."""
        asked_for = self._options.asked_for(offsets)
        left = {tp: at for tp, at in offsets.items() if tp not in asked_for}
        if new := sorted(left.keys() - self._left):
            logger.warning(f"{listed(new)} are in the checkpoint and not asked for any more: they stay where they are")
        self._left = frozenset(left)
        return left

    def _there(self, log: ClusterSession, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of a checkpoint's partitions that exist. Raises `ConfigError` for others, unless records may be
        lost."""
        there = not_deleted(partitions, log)
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
        with self.cluster() as log:
            return ends_of(log.edges(self._options.partitions(log)))
