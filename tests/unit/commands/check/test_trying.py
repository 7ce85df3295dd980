"""The handler tried on records: what is told of each of them. Fetching them has tests beside a real broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.clients.config import handler_configs
from kunicorn.commands.check import trial, trying
from kunicorn.commands.check.cluster import Finding
from kunicorn.errors import ExitCode
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.registry import HandlerRegistry
from kunicorn.positions import OffsetRange
from tests.fakes.complete_settings import settings_of
from tests.fakes.handler_module import importable

HANDLERS = """
import sqlite3
from kunicorn import BatchError, DeadLetter, Skip, Wait

SEEN = []

def handle(record):
    SEEN.append(record.value)

def until_bad(batch, failure):
    for number, record in enumerate(batch):
        if record.value == b"bad":
            raise BatchError(done=number) from failure
        SEEN.append(record.value)

def to_letters(batch):
    until_bad(batch, DeadLetter("bad"))

def to_wait(batch):
    until_bad(batch, Wait(5))

def fails(batch):
    until_bad(batch, ValueError("bad"))

def fails_whole(batch):
    raise ValueError("the database is away")

def skips(batch):
    SEEN.extend(batch.values())
    return Skip("odd") if batch[0].value == b"a" else None

def quotes(record):
    raise ValueError(f"no order: {record.value.decode()}")

def counts(batch):
    SEEN.append(len(batch))

def names_an_offset(batch):
    raise BatchError(failed=batch.column("offset")[1].as_py())

class ByPartition:
    async def on_assigned(self, partitions):
        self.counts = dict.fromkeys(partitions, 0)
        SEEN.append(dict(partitions))

    def handle(self, record):
        self.counts[record.topic, record.partition] += 1

    def on_revoked(self, partitions):
        SEEN.append((dict(partitions), self.counts))

class Connected:
    def setup(self, options):
        self.db = sqlite3.connect(":memory:")

    def handle(self, record):
        self.db.execute("SELECT 1")

class Lazy(Connected):
    def handle(self, record):
        if record.value == b"first":
            self.db = sqlite3.connect(":memory:")
        super().handle(record)

class Unready(ByPartition):
    def on_assigned(self, partitions):
        raise ConnectionError("no cache")

def decoded(value):
    if value == b"bad":
        raise ValueError("bad")
    return value
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(tmp_path, monkeypatch, "tried_shop", HANDLERS)


def seen() -> list[Any]:
    """What the handler has noted of what it has got, in order."""
    found: list[Any] = sys.modules["tried_shop"].SEEN
    return found


def tried(values: Sequence[bytes], entrypoint: str = "handle", **handler: Any) -> Finding:
    own = settings_of(handler={"entrypoint": f"tried_shop:{entrypoint}", **handler}, dead_letters={"topic": "dead"})
    tally = trying.Tally()
    worker = Worker(0, os.getpid(), "g", "kunicorn-check")
    handlings = HandlerRegistry.set_up(handler_configs(own), worker, trying.called, on_filtered=lambda _: tally.dropped)
    messages = [message(offset, value) for offset, value in enumerate(values)]
    trying.handle(handlings, messages, tally, trial.limits_ms(own))
    for handling in handlings.every:
        handling.tear_down()
    return trial.found(tally.result(outputs=0))


def message(offset: int, value: bytes) -> Message:
    return Message(topic="orders", partition=0, offset=offset, key=b"k", value=value, timestamp=(1, 1_700_000_000_000))


@pytest.mark.parametrize(("entrypoint", "said"), [("to_letters", "DeadLetter"), ("to_wait", "Wait")])
def test_an_outcome_of_one_record_of_a_batch_fails_neither_it_nor_those_behind_it(entrypoint: str, said: str) -> None:
    finding = tried([b"a", b"bad", b"b", b"c"], entrypoint, mode="batch")
    assert finding.failure is None, finding.text
    assert finding.text.startswith("4 records handled")
    assert f"1 said {said}" in finding.text
    assert seen() == [b"a", b"b", b"c"]


def test_a_record_of_a_batch_that_fails_does_so_alone() -> None:
    finding = tried([b"a", b"bad", b"b", b"bad", b"c"], "fails", mode="batch")
    assert finding.failure is ExitCode.HANDLER
    assert finding.text.startswith("2 of 5 records failed")
    assert "orders-0@1: ValueError: bad" in finding.text
    assert seen() == [b"a", b"b", b"c"]


def test_a_batch_that_fails_fails_whole() -> None:
    finding = tried([b"a", b"b", b"c"], "fails_whole", mode="batch")
    assert finding.text.startswith("3 of 3 records failed")


def test_a_terminal_does_not_obey_what_an_exception_quotes_of_a_record() -> None:
    shown = str(tried([b"\x1b[2J\x07"], "quotes"))
    first, *frames = shown.split("\n")
    assert first.endswith("orders-0@0: ValueError: no order: \\x1b[2J\\x07")
    assert any("tried_shop.py" in frame for frame in frames)


def test_a_batch_has_no_more_bytes_than_the_settings_say() -> None:
    values = [b"12", b"34", b"5", b"678901", b"2"]
    assert tried(values, "counts", mode="batch", batch_max_bytes=4).failure is None
    assert seen() == [2, 1, 1, 1]


def test_across_partitions_offsets_do_not_say_which_row_it_was_as_in_a_worker() -> None:
    pytest.importorskip("pyarrow")
    finding = tried([b"a", b"b", b"c"], "names_an_offset", mode="arrow", batch_across_partitions=True)
    assert finding.text.startswith("3 of 3 records failed")
    assert "BatchError names offsets, and with batch_across_partitions = true" in finding.text


def test_a_record_that_cannot_be_decoded_fails_alone_and_is_told_with_its_place() -> None:
    finding = tried([b"a", b"b", b"bad", b"c"], "skips", mode="batch", value="tried_shop:decoded")
    assert finding.text.startswith("1 of 4 records failed")
    assert "2 said Skip: orders-0@2: Undecodable: " in finding.text, "of the record behind it nothing is said"
    assert seen() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("handler", "name"),
    [
        ({"filters": [{"on": "key", "none_of": ["k"]}]}, "key"),
        ({"max_age_ms": 1000}, "max_age_ms"),
        ({"max_age_ms": 1000, "on_expired": "dead_letter"}, "max_age_ms"),
        ({"entrypoint": "skips", "mode": "batch", "max_age_ms": 1000, "on_expired": "dead_letter"}, "max_age_ms"),
    ],
    ids=["a filter", "too old", "too old, to letters", "a batch too old"],
)  # fmt: skip
def test_records_that_do_not_come_to_the_handler_are_told_and_are_no_failure(
    handler: dict[str, Any], name: str
) -> None:
    finding = tried([b"a", b"b"], **handler)
    assert finding.failure is None, finding.text
    assert finding.warning, "it has not been tried"
    assert f"2 filtered by {name}" in finding.text
    assert seen() == []


def test_a_handler_takes_its_partitions_on_before_their_first_record_and_is_told_of_their_end() -> None:
    finding = tried([b"a", b"b"], "ByPartition")
    assert finding.failure is None, finding.text
    orders = ("orders", 0)
    assert seen() == [{orders: 0}, ({orders: 2}, {orders: 2})]


def test_a_handler_that_does_not_take_its_partitions_on_fails_the_trial_by_what_it_raised() -> None:
    with pytest.raises(ConnectionError, match="no cache"):
        tried([b"a"], "Unready")


@pytest.mark.parametrize(("entrypoint", "failed"), [("Connected", 3), ("Lazy", 1)], ids=["of setup", "of a call"])
def test_what_belongs_to_one_thread_fails_in_another_where_the_service_calls_the_handler_in_threads(
    entrypoint: str, failed: int
) -> None:
    finding = tried([b"first", b"b", b"c"], entrypoint, concurrency=4)
    assert finding.text.startswith(f"{failed} of 3 records failed")
    assert "ProgrammingError: SQLite objects created in a thread can only be used in that same thread" in finding.text
    assert "concurrent" not in finding.text, "the traceback is the user's"
    assert tried([b"first", b"b", b"c"], entrypoint).failure is None, "in the worker's main thread"


def test_calls_that_the_service_would_interrupt_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "time", SimpleNamespace(perf_counter=count().__next__))  # A second a call.
    finding = tried([b"a", b"b"], handler_timeout_ms=999)
    assert (finding.failure, finding.warning) == (None, True)
    assert "2 calls took longer than handler_timeout_ms, at which the service interrupts them" in finding.text
    assert not tried([b"a", b"b"], handler_timeout_ms=1000).warning


class Logs:
    """Partitions in memory: offsets that have a record."""

    def __init__(self, **offsets: Sequence[int]) -> None:
        self._offsets = offsets
        self.looks = 0

    def read(self, ranges: Sequence[OffsetRange]) -> list[Message]:
        self.looks += 1
        return [
            Message(topic=each.topic, partition=each.partition, offset=at, value=b"", timestamp=(1, at))
            for each in ranges
            for at in self._offsets[each.topic]
            if each.start <= at < each.stop
        ]

    def latest(self, count: int, **ends: int) -> list[tuple[str | None, int | None]]:
        logs = [OffsetRange(topic, 0, 0, end) for topic, end in ends.items()]
        return [(each.topic(), each.offset()) for each in trying.latest(logs, count, self.read)]


def test_records_are_the_latest_ones_also_where_the_last_offsets_are_markers() -> None:
    transactions = Logs(a=range(0, 100, 2))
    assert transactions.latest(1, a=100) == [("a", 98)]
    assert transactions.latest(5, a=100) == [("a", at) for at in (90, 92, 94, 96, 98)]
    assert transactions.looks == 4


def test_a_log_with_few_records_leaves_room_for_those_of_others() -> None:
    assert Logs(a=range(1000), b=[3]).latest(6, a=1000, b=4) == [("a", at) for at in range(994, 1000)]
    assert Logs(a=[7], b=[3]).latest(6, a=900, b=4) == [("a", 7), ("b", 3)], "there are no more"


def test_of_logs_without_a_record_nothing_is_tried() -> None:
    logs = Logs(a=[])
    assert logs.latest(5, a=100) == []
    finding = trial.found(trying.Tally().result(outputs=0))
    assert (finding.warning, finding.text) == (True, "the topics hold no records to try the handler on")
