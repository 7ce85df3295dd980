"""The checker finds every kind of fault in an audit made up for it."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kunicorn.commands.demo.audit import SUFFIX, AuditFile, AuditLog, Kind, read_audit
from kunicorn.commands.demo.judge import Audit, RecordAt, Report
from kunicorn.positions import TopicPartition

P0 = TopicPartition("orders", 0)


@dataclass
class Writer:
    """One process's audit of partition 0, at times of the test's choosing."""

    directory: Path
    pid: int
    member: str = "one"

    def call(self, offsets: int | Iterable[int], begin: int, end: int | None) -> None:
        offsets = [offsets] if isinstance(offsets, int) else list(offsets)
        self._write(Kind.BEGIN, offsets, begin)
        if end is not None:
            self._write(Kind.END, offsets, end)

    def _write(self, kind: Kind, offsets: list[int], at: int) -> None:
        path = self.directory / P0.topic / f"{self.member}.{self.pid}.0{SUFFIX}"
        path.parent.mkdir(exist_ok=True)
        with open(path, "ab") as file:
            for offset in offsets:
                file.write(array("q", [kind << 32 | P0.partition, offset, 0, at]).tobytes())


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: bytes | None = None


@pytest.fixture
def first(tmp_path: Path) -> Writer:
    return Writer(tmp_path, pid=11)


@pytest.fixture
def second(tmp_path: Path) -> Writer:
    return Writer(tmp_path, pid=22, member="two")


def check(directory: Path, produced: int, killed: Iterable[int] = ()) -> Report:
    return Audit(directory).check({P0: range(produced)}, set(killed))


def at(*offsets: int) -> tuple[RecordAt, ...]:
    return tuple(RecordAt(*P0, offset) for offset in offsets)


def test_an_orderly_hand_over_holds(tmp_path: Path, first: Writer, second: Writer) -> None:
    first.call(0, 10, 20)
    first.call(1, 20, 30)
    second.call(2, 30, 40)
    report = check(tmp_path, 3)
    assert report == Report(produced=3, handled=3, handled_by={"one": 2, "two": 1}, processes=2)
    assert report.holds


def test_a_record_nobody_handled_is_lost(tmp_path: Path, first: Writer) -> None:
    first.call(0, 10, 20)
    first.call(2, 20, 30)
    assert check(tmp_path, 4).lost == at(1, 3)


def test_a_record_begun_but_never_ended_is_lost(tmp_path: Path, first: Writer) -> None:
    first.call(0, 10, None)
    assert check(tmp_path, 1).lost == at(0)


def test_a_topic_nobody_handled_is_lost_whole(tmp_path: Path) -> None:
    assert check(tmp_path, 2).lost == at(0, 1)


def test_a_record_handled_by_two_members_is_handled_twice(tmp_path: Path, first: Writer, second: Writer) -> None:
    first.call(0, 10, 20)
    second.call(0, 30, 40)
    report = check(tmp_path, 1)
    assert report.handled_twice == at(0)
    assert not report.holds
    assert "1 handled twice: orders-0@0" in str(report)


def test_a_record_in_hand_at_a_kill_is_repeated(tmp_path: Path, first: Writer, second: Writer) -> None:
    first.call(0, 10, 20)
    first.call(1, 20, None)
    second.call(1, 50, 60)
    report = check(tmp_path, 2, killed=[11])
    assert report.repeated == at(1)
    assert report.holds


def test_a_kill_excuses_the_call_that_had_just_ended_and_none_before(
    tmp_path: Path, first: Writer, second: Writer
) -> None:
    first.call(0, 10, 20)
    first.call(1, 20, 30)
    second.call(0, 50, 60)
    second.call(1, 60, 70)
    report = check(tmp_path, 2, killed=[11])
    assert report.repeated == at(1)
    assert report.handled_twice == at(0)


def test_a_kill_of_another_process_excuses_nothing(tmp_path: Path, first: Writer, second: Writer) -> None:
    first.call(0, 10, 20)
    second.call(0, 30, 40)
    assert check(tmp_path, 1, killed=[22]).handled_twice == at(0)


def test_a_whole_batch_in_hand_at_a_kill_is_repeated(tmp_path: Path, first: Writer, second: Writer) -> None:
    first.call(range(5), 10, None)
    second.call(range(5), 50, 60)
    assert check(tmp_path, 5, killed=[11]).repeated == at(0, 1, 2, 3, 4)


def test_a_retry_in_the_same_process_is_repeated(tmp_path: Path, first: Writer) -> None:
    first.call(0, 10, None)
    first.call(0, 20, 30)
    report = check(tmp_path, 1)
    assert (report.repeated, report.lost) == (at(0), ())


def test_a_record_begun_after_its_successor_is_out_of_order(tmp_path: Path, first: Writer, second: Writer) -> None:
    first.call(1, 10, 20)
    second.call(0, 30, 40)
    assert check(tmp_path, 2).out_of_order == at(0)


def test_two_processes_inside_one_partition_overlap(tmp_path: Path, first: Writer, second: Writer) -> None:
    first.call(0, 10, 100)
    second.call(1, 50, 60)
    assert check(tmp_path, 2).overlaps == at(1)


def test_an_overlap_behind_a_short_call_of_the_same_process_is_seen(
    tmp_path: Path, first: Writer, second: Writer
) -> None:
    first.call(0, 10, 100)
    second.call(1, 20, 30)
    second.call(2, 40, 200)
    second.call(3, 90, 95)
    assert check(tmp_path, 4).overlaps == at(1, 2, 3)


def test_calls_of_one_process_may_run_side_by_side(tmp_path: Path, first: Writer) -> None:
    first.call(0, 10, 100)
    first.call(1, 50, 60)
    assert check(tmp_path, 2).holds


def test_a_record_that_was_never_produced_is_unexpected(tmp_path: Path, first: Writer) -> None:
    first.call(0, 10, 20)
    first.call(7, 20, 30)
    assert check(tmp_path, 1).unexpected == at(7)


def test_offsets_taken_by_transaction_markers_are_not_missed(tmp_path: Path, first: Writer) -> None:
    first.call(0, 10, 20)
    first.call(2, 20, 30)
    assert Audit(tmp_path).check({P0: {0, 2}}).holds


def test_what_a_process_writes_is_read_back(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "one")
    records = [Record("orders", 3, 41, b"key"), Record("refunds", 2**31 - 1, 2**40)]
    log.begin(records)
    log.end(records)
    orders, refunds = read_audit(tmp_path)
    assert (orders.topic, orders.member, orders.pid) == ("orders", "one", os.getpid())
    begin, end = orders.entries()
    assert (begin.kind, begin.partition, begin.offset) == (Kind.BEGIN, 3, 41)
    assert (end.kind, end.key) == (Kind.END, begin.key)
    assert end.time_ns >= begin.time_ns
    assert [(e.partition, e.offset) for e in refunds.entries()] == [(2**31 - 1, 2**40)] * 2


def test_a_forked_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "one")
    log.begin([Record("orders", 0, 0)])
    child = os.fork()
    if child == 0:
        log.end([Record("orders", 0, 0)])
        os._exit(0)
    os.waitpid(child, 0)
    assert {file.pid: [entry.kind for entry in file.entries()] for file in read_audit(tmp_path)} == {
        os.getpid(): [Kind.BEGIN],
        child: [Kind.END],
    }


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "orders" / f"one.1.0{SUFFIX}"
    path.parent.mkdir()
    path.write_bytes(b"x" * 33)
    with pytest.raises(ValueError, match=r"one\.1\.0\.audit ends within an entry"):
        AuditFile.read(path)


def test_a_member_tag_that_would_break_the_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a\.b'"):
        AuditLog(tmp_path, "a.b")
