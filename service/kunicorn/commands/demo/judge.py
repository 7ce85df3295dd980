"""Judge of an audit: compares the handler calls with what was produced, and the result with what the demo promises.
Independent of the service that is judged.

1. Lost: produced, and no handler call with it ever ended.
2. Repeated: begun again although an earlier call began it, where that call never ended or was the last one of a process
   that was killed. This is what at-least-once allows.
3. Handled twice: begun again after a call that ended, and not excused by 2.
4. Out of order: begun for the first time after a record of the same partition with a higher offset.
5. Overlap: begun while a call of another process was inside the same partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from kunicorn.commands.demo.audit import WORDS, AuditFile, Kind, read_audit
from kunicorn.positions import TopicPartition

# Plain integers: comparing with a member of an IntEnum costs ten times as much, and there are millions.
BEGIN, END = int(Kind.BEGIN), int(Kind.END)


class RecordAt(NamedTuple):
    """Topic, partition and offset of one record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True)
class Report:
    """The judgement. Each tuple names the records concerned, once for every time it happened."""

    produced: int
    handled: int
    """Different records that some call ended."""
    lost: tuple[RecordAt, ...] = ()
    handled_twice: tuple[RecordAt, ...] = ()
    repeated: tuple[RecordAt, ...] = ()
    out_of_order: tuple[RecordAt, ...] = ()
    overlaps: tuple[RecordAt, ...] = ()
    unexpected: tuple[RecordAt, ...] = ()
    """Handled, but never produced."""
    handled_by: Mapping[str, int] = field(default_factory=dict)
    """Calls that ended, by member."""
    processes: int = 0
    """Processes that handled anything."""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled, misordered, overlapping or invented; repetitions are for the caller to
        bound.
        """
        return not self.faults()

    def faults(self) -> dict[str, tuple[RecordAt, ...]]:
        """Violations by name, without the empty ones."""
        found = {
            "lost": self.lost,
            "handled twice": self.handled_twice,
            "out of order": self.out_of_order,
            "overlaps": self.overlaps,
            "unexpected": self.unexpected,
        }
        return {name: records for name, records in found.items() if records}

    def __str__(self) -> str:
        counts = f"{self.produced} produced, {self.handled} handled, {len(self.repeated)} repeated"
        faults = (
            f"{len(records)} {name}: {', '.join(map(str, records[:5]))}{' …' if len(records) > 5 else ''}"
            for name, records in self.faults().items()
        )
        return "; ".join((counts, *faults))


class _Run(NamedTuple):
    """One record in one handler call; `end` is None where the call never ended. Sorts by time."""

    begin: int
    offset: int
    end: int | None
    process: int
    excused: bool
    """May be begun again: the call never ended, or its process was killed before it began another one."""


@dataclass
class _Partition:
    """Result for one partition; lists hold offsets."""

    finished: set[int] = field(default_factory=set)
    handled_twice: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    out_of_order: list[int] = field(default_factory=list)
    overlaps: list[int] = field(default_factory=list)


class Audit:
    """The audit in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def check(self, produced: Mapping[TopicPartition, Collection[int]], killed: Collection[int] = ()) -> Report:
        """Judge what was handled so far against the offsets produced: `range(end)` where there are no gaps.

        `killed` are the pids of workers that were killed. Reads files only; a million records take a few seconds.
        """
        files = read_audit(self._directory)
        runs = _runs_by_partition(files, killed)
        judged = {partition: _judge(runs.get(partition, [])) for partition in produced.keys() | runs.keys()}

        def collect(kind: str) -> tuple[RecordAt, ...]:
            return tuple(RecordAt(*p, offset) for p in sorted(judged) for offset in getattr(judged[p], kind))

        expected = {partition: set(offsets) for partition, offsets in produced.items()}
        done = {partition: judgement.finished for partition, judgement in judged.items()}
        return Report(
            produced=sum(map(len, expected.values())),
            handled=sum(map(len, done.values())),
            lost=_missing(expected, done),
            handled_twice=collect("handled_twice"),
            repeated=collect("repeated"),
            out_of_order=collect("out_of_order"),
            overlaps=collect("overlaps"),
            unexpected=_missing(done, expected),
            handled_by=_handled_by(files),
            processes=len({(file.member, file.pid) for file in files}),
        )


def _runs_by_partition(files: Sequence[AuditFile], killed: Collection[int]) -> dict[TopicPartition, list[_Run]]:
    """Handler calls of every partition, in the order in which they began."""
    runs: dict[TopicPartition, list[_Run]] = {}
    processes = sorted({(file.member, file.pid) for file in files})
    last_begins = _last_begins(files)
    for file in files:
        process = processes.index((file.member, file.pid))
        # The kill may have come after the handler's end and before its offset was stored.
        excused_begin = last_begins[file.pid] if file.pid in killed else None
        for partition, offset, begin, end in calls_in(file):
            run = _Run(begin, offset, end, process, end is None or begin == excused_begin)
            runs.setdefault(TopicPartition(file.topic, partition), []).append(run)
    for of_partition in runs.values():
        of_partition.sort(key=itemgetter(0, 1))
    return runs


def _last_begins(files: Sequence[AuditFile]) -> dict[int, int]:
    """Begin of each process's last call, by pid."""
    last: dict[int, int] = {}
    for file in files:
        heads_and_times = zip(file.words[0::WORDS], file.words[3::WORDS], strict=True)
        begins = (at for head, at in heads_and_times if head >> 32 == BEGIN)
        last[file.pid] = max(last.get(file.pid, 0), max(begins, default=0))
    return last


def calls_in(file: AuditFile) -> Iterator[tuple[int, int, int, int | None]]:
    """Partition, offset, begin and end of every call in the file; the end is None where there is none."""
    open_calls: dict[tuple[int, int], int] = {}
    words = file.words
    for head, offset, at in zip(words[0::WORDS], words[1::WORDS], words[3::WORDS], strict=True):
        record = (head & 0xFFFFFFFF, offset)
        if head >> 32 == BEGIN:
            if record in open_calls:
                yield *record, open_calls[record], None
            open_calls[record] = at
        else:
            yield *record, open_calls.pop(record), at
    for record, begin in open_calls.items():
        yield *record, begin, None


def _judge(runs: Sequence[_Run]) -> _Partition:
    judged = _Partition(overlaps=list(_overlaps(runs)))
    latest: dict[int, _Run] = {}
    highest = -1
    for run in runs:
        offset = run.offset
        before = latest.get(offset)
        if before is not None:
            (judged.repeated if before.excused else judged.handled_twice).append(offset)
        elif offset < highest:
            judged.out_of_order.append(offset)
        highest = max(highest, offset)
        latest[offset] = run
        if run.end is not None:
            judged.finished.add(offset)
    return judged


def _overlaps(runs: Sequence[_Run]) -> Iterator[int]:
    """Offsets begun while another process was inside. A call that never ended counts as its first instant only.

    Two ends are enough to remember: the latest of all, and the latest of the processes that do not hold that one.
    """
    owner, owner_end, others_end = -1, -1, -1
    for run in runs:
        if run.begin < (others_end if run.process == owner else owner_end):
            yield run.offset
        end = run.begin if run.end is None else run.end
        if run.process == owner:
            owner_end = max(owner_end, end)
        elif end > owner_end:
            owner, owner_end, others_end = run.process, end, owner_end
        else:
            others_end = max(others_end, end)


def _missing(
    these: Mapping[TopicPartition, Collection[int]], those: Mapping[TopicPartition, Collection[int]]
) -> tuple[RecordAt, ...]:
    """Offsets of `these` that are not in `those`."""
    return tuple(
        RecordAt(*partition, offset)
        for partition in sorted(these)
        for offset in sorted(set(these[partition]).difference(those.get(partition, ())))
    )


def _handled_by(files: Sequence[AuditFile]) -> dict[str, int]:
    handled: Counter[str] = Counter()
    for file in files:
        handled[file.member] += sum(head >> 32 == END for head in file.words[0::WORDS])
    return dict(handled)


@dataclass(frozen=True)
class Outcome:
    """All facts that the verdict rests on."""

    report: Report
    exit_codes: Mapping[str, int | None]
    """By member."""
    rebalances: int
    """Number of rebalances that the first member went through."""
    worker_restarts: int
    uncommitted: Sequence[str]
    """Partitions whose committed offset, asked of the broker at the end, is not behind the last record."""
    in_hand: int = 1
    """Most records that a killed worker has in hand."""


@dataclass(frozen=True)
class Line:
    """One line of the result. `kept` is None for a number that nothing was promised of."""

    name: str
    value: str
    kept: bool | None = None


def of_report(report: Report, in_hand: int = 1) -> list[Line]:
    """Promises about records, each with its measured value. `in_hand`: most records that a killed worker has."""
    return [
        Line("records produced", str(report.produced), report.produced > 0),
        Line("records handled", str(report.handled), report.handled == report.produced),
        Line("lost", _records(report.lost), not report.lost),
        Line("handled twice", _records(report.handled_twice), not report.handled_twice),
        Line(f"repeated after the kill (≤ {in_hand})", _records(report.repeated), len(report.repeated) <= in_hand),
        Line("out of order", _records(report.out_of_order), not report.out_of_order),
        Line("two processes in one partition", _records(report.overlaps), not report.overlaps),
        Line("never produced, yet handled", _records(report.unexpected), not report.unexpected),
    ]


def uncommitted(partitions: Sequence[str]) -> Line:
    """Promise that what is handled is committed; `partitions`: where it is not."""
    return Line("not committed at the end", ", ".join(partitions) or "0", not partitions)


def verdict(outcome: Outcome) -> list[Line]:
    """Every promise with its measured value."""
    report = outcome.report
    handled_by = ", ".join(f"{member} {count}" for member, count in sorted(report.handled_by.items()))
    exits = ", ".join(f"{member} {code}" for member, code in outcome.exit_codes.items())
    return [
        *of_report(report, outcome.in_hand),
        uncommitted(outcome.uncommitted),
        Line("handled by", handled_by, len(report.handled_by) == len(outcome.exit_codes)),
        Line("worker restarts", str(outcome.worker_restarts), outcome.worker_restarts >= 1),
        Line("rebalances", str(outcome.rebalances)),
        Line("exit codes", exits, all(code == 0 for code in outcome.exit_codes.values())),
    ]


def kept(lines: Sequence[Line]) -> bool:
    """Whether every promise was kept."""
    return all(line.kept is not False for line in lines)


def _records(records: Sequence[RecordAt]) -> str:
    """Number of the records, and names of the first ones."""
    names = ", ".join(map(str, records[:5])) + (" …" if len(records) > 5 else "")
    return f"{len(records)} ({names})" if records else "0"
