"""Handler calls as the audit tells them, and what they say about one another. Pure but for reading the files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from kunicorn.commands.demo.audit import read_audit
from kunicorn.commands.demo.judge import calls_in


class Call(NamedTuple):
    """One handler call with one record; nanoseconds of `kunicorn.ipc.clock`. Sorts by its begin."""

    begin: int
    partition: int
    offset: int
    end: int | None
    """None: the process died in it."""
    member: str
    pid: int
    load: int = 0
    """Number of the load that wrote the record, where a log was cut and there were several."""


class Repeat(NamedTuple):
    """A record that was begun again."""

    before: Call
    again: Call


class Overlap(NamedTuple):
    """A call that began while another process was inside the same partition."""

    inside: Call
    begun: Call


Partitions = Mapping[int, Sequence[Call]]


def read_calls(audit: Path) -> dict[int, list[Call]]:
    """Every call so far by partition, in the order in which they began; the topic is the only one of the directory."""
    found: defaultdict[int, list[Call]] = defaultdict(list)
    for file in read_audit(audit):
        for partition, offset, begin, end in calls_in(file):
            found[partition].append(Call(begin, partition, offset, end, file.member, file.pid))
    return {partition: sorted(calls, key=lambda c: c.begin) for partition, calls in found.items()}


def repeats(partitions: Partitions) -> list[Repeat]:
    """Every time a record was begun again, beside the call before it."""
    found = []
    for calls in partitions.values():
        latest: dict[int, Call] = {}
        for call in calls:
            if call.offset in latest:
                found.append(Repeat(latest[call.offset], call))
            latest[call.offset] = call
    return found


def overlaps(partitions: Partitions) -> list[Overlap]:
    """Every begin inside another process's call. A call that never ended counts as its first instant only."""
    found = []
    for calls in partitions.values():
        inside: list[Call] = []
        for call in calls:
            inside = [each for each in inside if each.end is not None and each.end > call.begin]
            found += [Overlap(each, call) for each in inside if each.pid != call.pid]
            inside.append(call)
    return found


def longest_waits(
    partitions: Partitions, appended: Mapping[int, Sequence[int]], start: int, end: int, served: int = 0
) -> list[int]:
    """Each partition's longest pause between `start` and `end`, nanoseconds.

    A pause is the time for which the next record of a partition lay in the log and nobody had any record of the
    partition in hand. `appended` has the time of every offset's confirmation. Nothing counts before `served`: until
    then nobody could have had it.
    """
    return [
        max(_waits(calls, appended[partition], start, end, served), default=0)
        for partition, calls in sorted(partitions.items())
    ]


def _waits(calls: Sequence[Call], appended: Sequence[int], start: int, end: int, served: int) -> Iterator[int]:
    begins = {call.begin: call for call in calls}
    for before, at in pairwise(sorted({*begins, *_ends(calls)})):
        if at in begins and start <= at <= end:
            yield max(0, at - max(before, appended[begins[at].offset], served))


def _ends(calls: Iterable[Call]) -> Iterator[int]:
    return (call.end for call in calls if call.end is not None)
