"""Positions of a stream: where a new one begins, what becomes of topics that nobody asks for any more, and what it and
a batch say of records that are deleted already.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kunicorn.clients.session import ClusterSession
from kunicorn.errors import ConfigError
from kunicorn.pipeline.plan import bounds_of
from kunicorn.pipeline.source import KunicornReader, SourceOptions
from kunicorn.pipeline.stream_source import KunicornStreamReader
from kunicorn.positions import Edges, TopicPartition
from tests.unit.pipeline.played_log import PlayedLog

HUNDRED = '{"orders":{"0":100}}'


class Reader(KunicornStreamReader):
    """Reader of a stream whose brokers are played."""

    def __init__(self, log: PlayedLog, *topics: str, starting: str = "earliest", strict: bool = True) -> None:
        file: Any = None
        options = SourceOptions(file, "ranges", topics, strict, None, None)
        super().__init__(options, bounds_of({"startingOffsets": starting}, batch=False))
        self._log = log

    def cluster(self) -> AbstractContextManager[ClusterSession]:
        return self._log.session()

    def next(self, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        """End of the next micro-batch, and its ranges."""
        end = self.latestOffset(start, ReadAllAvailable())
        return end, self.ranges(start, end)

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
        return sorted(each.value[:4] for each in self.partitions(start, end))


def test_a_topic_that_is_not_asked_for_any_more_stays_where_it_is_and_goes_on_from_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = PlayedLog({"orders": 1, "payments": 1})
    both = Reader(log, "orders", "payments")
    handled, ranges = both.next(both.initialOffset())
    assert ranges == [("orders", 0, 0, 100), ("payments", 0, 0, 100)]

    log.log = Edges(0, 130, 1)
    one = Reader(log, "orders")
    with caplog.at_level(logging.WARNING, "kunicorn.pipeline"):
        end, ranges = one.next(handled)
        assert ranges == [("orders", 0, 100, 130)]
        assert one.next(end) == (end, []), "Spark would take another position for something to do"
    assert caplog.messages == ["payments-0 are in the checkpoint and not asked for any more: they stay where they are"]
    del log.there["payments"]
    assert one.next(end) == (end, []), "nor is it missed"

    log.there["payments"], log.log = 1, Edges(0, 150, 1)
    assert Reader(log, "orders", "payments").next(end)[1] == [("orders", 0, 130, 150), ("payments", 0, 100, 150)]


def test_until_everything_of_now_is_handled_no_other_topic_is_read_either() -> None:
    log = PlayedLog({"orders": 1, "payments": 1}, Edges(0, 10, 1))
    both = Reader(log, "orders", "payments")
    handled, _ = both.next(both.initialOffset())
    log.log = Edges(0, 100, 1)
    one = Reader(log, "orders")
    one.prepareForTriggerAvailableNow()
    assert one.next(handled)[1] == [("orders", 0, 10, 100)]


def test_what_a_broker_that_is_behind_leaves_out_of_everything_of_now_is_handled_too() -> None:
    log = PlayedLog({"orders": 1, "payments": 1})
    reader = Reader(log, "^.*s$")
    handled, _ = reader.next(reader.initialOffset())
    log.log = Edges(0, 130, 1)
    log.unknown.add("payments")
    reader.prepareForTriggerAvailableNow()
    end, ranges = reader.next(handled)
    assert ranges == [("orders", 0, 100, 130), ("payments", 0, 100, 130)]
    log.log = Edges(0, 160, 1)
    assert reader.next(end) == (end, []), "what comes now is for the next run"


def test_until_everything_of_now_is_handled_a_log_that_is_truncated_meanwhile_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = PlayedLog({"orders": 1}, Edges(0, 100, 1))
    reader = Reader(log, "orders", strict=False)
    handled, _ = reader.next(reader.initialOffset())
    log.log = Edges(0, 200, 1)
    reader.prepareForTriggerAvailableNow()
    # An unclean election, and records of the new leader's.
    log.log = Edges(0, 120, 2)
    monkeypatch.setattr(log, "ends_of_epochs", lambda epochs: {tp: 50 for tp, epoch in epochs.items() if epoch < 2})
    handled, ranges = reader.next(handled)
    assert ranges == [("orders", 0, 50, 120)]
    handled, ranges = reader.next(handled)
    assert ranges == []
    log.log = Edges(0, 260, 2)
    assert Reader(log, "orders").next(handled)[1] == [("orders", 0, 120, 260)]


def test_a_micro_batch_that_is_repeated_is_handled_as_it_was_planned() -> None:
    log = PlayedLog({"orders": 1, "payments": 1})
    both = Reader(log, "orders", "payments")
    start = both.initialOffset()
    end, ranges = both.next(start)
    assert Reader(log, "orders").ranges(start, end) == ranges


@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_that_one_broker_does_not_know_yet_and_another_does_is_not_left_out(strict: bool) -> None:
    log = PlayedLog({"orders": 1, "payments": 1})
    reader = Reader(log, "^.*s$", strict=strict)
    start = reader.initialOffset()
    end, ranges = reader.next(start)
    log.unknown.add("payments")
    assert reader.ranges(start, end) == ranges
    log.unknown.add("payments")
    assert reader.next(end) == (end, [])


def test_a_start_that_leaves_out_a_topic_of_the_stream_is_refused() -> None:
    log = PlayedLog({"orders": 1, "payments": 1, "refunds": 1})
    reader = Reader(log, "orders", "payments", "refunds", starting='{"orders": {"0": 90}}')
    with pytest.raises(ConfigError, match="leaves out topics that the stream reads: payments refunds; name every"):
        reader.initialOffset()
    one = Reader(log, "orders", starting='{"orders": {"0": 90}}')
    assert one.next(one.initialOffset())[1] == [("orders", 0, 90, 100)]


def test_a_stream_reads_the_partitions_that_assign_names_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceOptions, "_numbered", lambda options: {TopicPartition("payments", 1)})
    log = PlayedLog({"orders": 2, "payments": 2})
    reader = Reader(log, "orders", "payments")
    end, ranges = reader.next(reader.initialOffset())
    assert ranges == [("orders", 0, 0, 100), ("orders", 1, 0, 100), ("payments", 1, 0, 100)]
    assert reader.next(end) == (end, [])


GONE = "records that were to be read are deleted already: orders-0 from 100 to 500, it begins at 500 now"
WARNED = [f"{GONE}; they are passed over"]


def test_where_a_new_stream_passes_over_what_is_deleted_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(PlayedLog({"orders": 1}, Edges(500, 600, 1)), "orders", starting=HUNDRED, strict=False)
    assert reader.initialOffset()["orders"] == {"0": 500}
    assert caplog.messages == WARNED


def test_where_a_repeated_micro_batch_passes_over_what_is_deleted_it_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = PlayedLog({"orders": 1}, Edges(0, 600, 1))
    reader = Reader(log, "orders", starting=HUNDRED, strict=False)
    start = reader.initialOffset()
    end, _ = reader.next(start)
    log.log = Edges(500, 600, 1)
    assert reader.ranges(start, end) == [("orders", 0, 500, 600)]
    assert caplog.messages == WARNED


class BatchReader(KunicornReader):
    """Reader of a batch whose brokers are played."""

    def cluster(self) -> AbstractContextManager[ClusterSession]:
        return PlayedLog({"orders": 1}, Edges(500, 600, 1)).session()


def test_where_a_batch_passes_over_what_is_deleted_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    file: Any = None
    options = SourceOptions(file, "records", ("orders",), False, None, None)
    bounds = bounds_of({"startingOffsets": HUNDRED}, batch=True)
    assert [each.value[:4] for each in BatchReader(options, bounds).partitions()] == [("orders", 0, 500, 600)]
    assert caplog.messages == WARNED
