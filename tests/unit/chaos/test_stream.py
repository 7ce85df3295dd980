"""The audit as a stream says what the audit as a whole says, and is not kept."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from kunicorn.commands.demo.audit import Kind
from kunicorn.ipc.clock import NANOSECONDS
from tests.chaos import stream
from tests.chaos.calls import longest_waits, overlaps, read_calls, repeats
from tests.chaos.load import Times
from tests.chaos.stream import AuditStream, Written

MILLISECOND = 1_000_000


class Journal:
    """Writes the audit of processes that are played."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dead: set[int] = set()

    def note(self, pid: int, kind: Kind, partition: int, offset: int, at: int, key: int = 0, start: int = 1) -> None:
        path = self.directory / "topic" / f"member-{pid % 2}.{pid}.{start}.audit"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(array("q", (kind << 32 | partition, offset, key, at)).tobytes())

    def call(self, pid: int, offset: int, begin: int, end: int | None, key: int = 0) -> None:
        """Of partition 0, in milliseconds."""
        self.note(pid, Kind.BEGIN, 0, offset, begin * MILLISECOND, key)
        if end is not None:
            self.note(pid, Kind.END, 0, offset, end * MILLISECOND, key)

    def stream(self, appended: dict[int, list[int]] | None = None, **more: object) -> AuditStream:
        written = [Written(frozenset(), appended or {})]
        return AuditStream(self.directory, written, lives=lambda pid: pid not in self.dead, **more)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_what_is_found_in_the_whole_audit(tmp_path: Path, seed: int) -> None:
    dice, journal = random.Random(seed), Journal(tmp_path)
    appended = {partition: [0] * 200 for partition in range(2)}
    read = journal.stream(appended, ordering="none")
    at, position, hands = NANOSECONDS, [0, 0], dict[int, tuple[int, int]]()
    for _ in range(120):
        # No two entries at one moment: which is first is then anybody's guess.
        at += dice.choice((1, 2, 30, 700)) * MILLISECOND
        pid = dice.choice([each for each in range(1, 9) if each not in journal.dead])
        if pid in hands:
            if dice.random() < 0.2 and len(journal.dead) < 7:
                journal.dead.add(pid)
            else:
                journal.note(pid, Kind.END, *hands.pop(pid), at)
        else:
            partition = dice.randrange(2)
            if dice.random() < 0.15:
                position[partition] = max(0, position[partition] - dice.randrange(6))
            hands[pid] = partition, position[partition]
            journal.note(pid, Kind.BEGIN, *hands[pid], at)
            position[partition] += 1
        if dice.random() < 0.3:
            read.read()
    read.read()
    found, whole = read.take(), read_calls(journal.directory)
    assert [(each.before.pid, each.again) for each in found.repeats] == [
        (each.before.pid, each.again._replace(end=None))
        for each in sorted(repeats(whole), key=lambda each: each.again.begin)
    ]
    assert {each.inside for each in found.overlaps} == {each.inside for each in overlaps(whole)}
    for (number, calls), wait in zip(sorted(whole.items()), longest_waits(whole, appended, 0, 2**62), strict=True):
        assert found.waits.get(number, 0) == (wait if wait > 10 * MILLISECOND else 0)
        offsets = {call.offset for call in calls}
        assert {offset for offset in range(200) if offset in read.begun(number)} == offsets
        ended = {call.offset for call in calls if call.end is not None}
        missing = {offset for gap in read.ended(number).missing(200) for offset in gap}
        assert missing == set(range(200)) - ended


def test_what_no_call_ended_with_is_lost_and_nothing_else(journal: Journal) -> None:
    journal.call(1, 0, 10, 11)
    journal.call(1, 1, 12, None)
    journal.call(1, 3, 13, 14)
    read = journal.stream()
    read.read()
    assert list(read.ended(0).missing(5)) == [range(1, 3), range(4, 5)]


def test_a_record_that_is_handled_twice_is_told_with_who_had_it_before(journal: Journal) -> None:
    for offset in range(4):
        journal.call(1, offset, 10 + offset, 11 + offset)
    journal.call(2, 2, 900, 901)
    read = journal.stream()
    read.read()
    (again,) = read.take().repeats
    assert (again.before.pid, again.again.pid, again.again.offset) == (1, 2, 2)
    assert not read.take().repeats, "told once"


def test_an_offset_that_two_loads_have_written_to_is_two_records_which_their_keys_tell_apart(journal: Journal) -> None:
    written = [Written({7}, {0: [0] * 4}), Written({8}, {0: [0, 0, 0, 1_000 * MILLISECOND]})]
    for offset in range(4):
        journal.call(1, offset, 10 + offset, 11 + offset, key=7)
    for offset in (2, 3):
        journal.call(1, offset, 3_000 + offset, 3_001 + offset, key=8)
    read = AuditStream(journal.directory, written)
    read.read()
    found = read.take()
    assert not found.repeats
    assert not found.disorder, "the second log goes on where the first was cut"
    assert found.waits == {0: 2_988 * MILLISECOND}, "the first behind the cut has waited since the last before it"
    assert [read.ended(0, load).lacking(0, 4) for load in (0, 1)] == [0, 2]
    journal.call(2, 3, 9_000, 9_001, key=8)
    read.read()
    assert [(each.again.offset, each.again.load) for each in read.take().repeats] == [(3, 1)]


def test_a_record_that_no_load_has_written_is_an_error(journal: Journal) -> None:
    journal.call(1, 0, 10, 11, key=9)
    read = AuditStream(journal.directory, [Written({7}, {}), Written({8}, {})])
    with pytest.raises(AssertionError, match="no load has written"):
        read.read()


def test_a_call_that_died_with_its_process_has_no_end(journal: Journal) -> None:
    journal.call(1, 0, 10, None)
    journal.dead.add(1)
    read = journal.stream()
    read.read()
    journal.call(2, 0, 20, 21)
    read.read()
    found = read.take()
    assert [each.before.end for each in found.repeats] == [None]
    assert not found.overlaps


def test_a_call_of_a_frozen_process_is_beside_its_heirs_once_it_ends(journal: Journal) -> None:
    journal.call(1, 0, 10, None)
    journal.call(2, 1, 5_000, 5_001)
    journal.call(2, 2, 5_002, 5_003)
    read = journal.stream()
    read.read()
    assert not read.take().overlaps
    journal.note(1, Kind.END, 0, 0, 9_000 * MILLISECOND)
    read.read()
    (overlap,) = read.take().overlaps
    assert (overlap.inside.offset, overlap.inside.pid, overlap.begun.offset) == (0, 1, 1)


def test_threads_of_one_process_are_one_process_whatever_files_they_have(journal: Journal) -> None:
    read = journal.stream(ordering="none")
    journal.note(2, Kind.BEGIN, 0, 0, 1 * MILLISECOND)
    journal.note(2, Kind.BEGIN, 0, 1, 2 * MILLISECOND, start=2)
    read.read()
    journal.note(2, Kind.END, 0, 0, 3 * MILLISECOND)
    journal.note(2, Kind.END, 0, 1, 4 * MILLISECOND, start=2)
    # A file that comes last thing is read, too.
    journal.call(2, 2, 5, 6)
    journal.note(2, Kind.BEGIN, 0, 3, 7 * MILLISECOND, start=3)
    journal.note(2, Kind.END, 0, 3, 8 * MILLISECOND, start=3)
    journal.dead.add(2)
    read.read()
    assert not read.take().overlaps
    assert read.ended(0).end == 4
    assert not list(read.ended(0).missing(4))


def test_another_process_with_the_number_of_one_that_has_died_is_another_one(journal: Journal) -> None:
    read = journal.stream(ordering="none")
    journal.call(2, 0, 1, 2)
    journal.dead.add(2)
    read.read()
    journal.note(2, Kind.BEGIN, 0, 1, 3 * MILLISECOND, start=2)
    journal.note(2, Kind.END, 0, 1, 4 * MILLISECOND, start=2)
    read.read()
    assert read.ended(0).end == 2


def test_a_call_that_is_told_late_is_the_one_before(journal: Journal) -> None:
    read = journal.stream()
    journal.call(2, 0, 5_000, 5_001)
    read.read()
    journal.call(1, 0, 10, None)
    read.read()
    (again,) = read.take().repeats
    assert (again.before.pid, again.again.pid) == (1, 2)


@pytest.mark.parametrize(
    ("ordering", "together", "expected"),
    [("partition", False, 2), ("partition", True, 1), ("key", False, 1), ("none", False, 0)],
)
def test_order_is_looked_at_as_it_was_asked_for(journal: Journal, ordering: str, together: bool, expected: int) -> None:
    journal.call(1, 5, 1, 2, key=7)
    journal.call(1, 3, 3, 4, key=7)  # behind a later one of its key
    journal.note(1, Kind.BEGIN, 0, 6, 5 * MILLISECOND, 7)
    journal.note(1, Kind.BEGIN, 0, 7, 6 * MILLISECOND, 8)  # beside one of its partition
    read = journal.stream(ordering=ordering, together=together)
    read.read()
    assert len(read.take().disorder) == expected


def test_a_pause_counts_from_when_the_record_was_there(journal: Journal) -> None:
    journal.call(1, 0, 100, 101)
    journal.call(1, 1, 3_101, 3_102)
    for appended, expected in ((0, 3_000), (2_101, 1_000)):
        read = journal.stream({0: [0, appended * MILLISECOND]})
        read.read()
        assert read.take().waits == {0: expected * MILLISECOND}


def test_what_comes_while_it_reads_waits_for_the_next_time(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    read = journal.stream()
    journal.call(2, 1, 20, 21)  # read before what another process is about to write
    monkeypatch.setattr(stream, "now_ns", lambda: 15 * MILLISECOND)
    read.read()
    assert not read.entries
    journal.call(1, 0, 10, 11)
    monkeypatch.setattr(stream, "now_ns", lambda: 30 * MILLISECOND)
    read.read()
    assert (read.entries, read.take().disorder) == (4, [])


def test_a_call_that_is_told_late_is_not_out_of_order(journal: Journal) -> None:
    read = journal.stream()
    journal.call(2, 1, 20, 21)
    read.read()
    journal.call(1, 0, 10, 11)
    read.read()
    assert not read.take().disorder
    journal.call(3, 3, 30, 31)
    journal.call(3, 2, 32, 33)
    read.read()
    assert len(read.take().disorder) == 1


def test_files_of_unequal_length_are_gone_through_in_the_order_of_time(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_AT_ONCE", 4 * 32)
    for offset in range(50):
        journal.call(1, offset, 10 + 2 * offset, 11 + 2 * offset)
    journal.call(2, 49, 1_000, 1_001)
    read = journal.stream()
    read.read()
    found = read.take()
    assert not found.disorder
    (again,) = found.repeats
    assert (again.before.pid, again.again.pid) == (1, 2)


def test_what_it_keeps_does_not_grow_with_records(journal: Journal) -> None:
    read = journal.stream()
    for offset in range(20_000):
        journal.call(1, offset, 10 + offset // 100, 10 + offset // 100)
    read.read()
    assert len(read.ended(0)) == 20_000
    assert len(list(read.ended(0).missing(20_000))) == 0
    partition = read._of(0, 0)
    assert len(partition.history) == 1
    assert not partition.open


def test_times_of_confirmations_are_kept_by_milliseconds() -> None:
    times = Times()
    for offset in range(10_000):
        times.confirm(offset, offset // 1_000 * 50 * MILLISECOND)
    assert len(times) == 10_000
    assert [times[0], times[999], times[1_000], times[9_999], times[-1]] == [
        each * MILLISECOND for each in (0, 0, 50, 450, 450)
    ]
    assert len(times._at) == 10
    with pytest.raises(IndexError):
        times[10_000]
