"""What members of other clients say they consumed, read while they write it: pauses, and records that came again.

Each member writes a line of JSON for each poll that gave records, as Kafka's `VerifiableConsumer` does (the tool that
Kafka's own system tests are made of): when, and of each partition the first and last offset. Nothing else is read.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kunicorn.ipc.clock import now_ns

CONSUMED = "records_consumed"
"""The name of such a line."""
_MILLISECOND = 1_000_000


class Poll(NamedTuple):
    """What one poll gave of one partition; nanoseconds of `kunicorn.ipc.clock`."""

    at: int
    partition: int
    first: int
    last: int


@dataclass
class Polled:
    """What happened since it was asked for last."""

    waits: dict[int, int] = field(default_factory=dict)
    """Each partition's longest pause, nanoseconds: how long its next record lay in the log, and nobody polled it."""
    again: int = 0
    """Records that had been consumed before."""


class Consumption:
    """Of one group. Not thread-safe; `read` blocks on files only."""

    def __init__(self, directory: Path, appended: Mapping[int, Sequence[int]]) -> None:
        """`directory`: of files `*.jsonl`, one for each process; `appended`: by partition and offset, when the brokers
        had confirmed it."""
        self._directory = directory
        self._appended = appended
        self._read: dict[Path, int] = {}
        self._last: dict[int, int] = {}
        self._polled = Polled()
        self.polled: defaultdict[Path, int] = defaultdict(int)
        """By file: when its process last consumed something."""
        self.ends: defaultdict[int, int] = defaultdict(int)
        """By partition: behind the highest offset that was consumed."""

    def read(self) -> None:
        """Everything that is written by now."""
        # Members write the time of the wall, as Java has no other that processes share.
        booted = time.time_ns() - now_ns()
        found = []
        for path in self._directory.glob("*.jsonl"):
            given = list(polls(self._more(path), booted))
            self.polled[path] = max([self.polled[path], *(poll.at for poll in given)])
            found += given
        for poll in sorted(found):
            self._go_on(poll)

    def take(self) -> Polled:
        """What happened since the last time, as far as it was read."""
        polled, self._polled = self._polled, Polled()
        return polled

    def behind(self, ends: Mapping[int, int]) -> int:
        """How many records below `ends`, by partition, nobody has consumed."""
        return sum(max(0, end - self.ends[partition]) for partition, end in ends.items())

    def _more(self, path: Path) -> list[bytes]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            body = file.read()
        # A member may be in the middle of a line.
        whole = body[: body.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return whole.splitlines()

    def _go_on(self, poll: Poll) -> None:
        end, appended = self.ends[poll.partition], self._appended.get(poll.partition, ())
        self._polled.again += max(0, min(end, poll.last + 1) - poll.first)
        if poll.last < end:
            return
        new = max(poll.first, end)
        # Consumed before its producer heard of it: it cannot have waited.
        there = appended[new] if new < len(appended) else poll.at
        last = self._last.get(poll.partition)
        if last is not None and (wait := poll.at - max(last, there)) > self._polled.waits.get(poll.partition, 0):
            self._polled.waits[poll.partition] = wait
        self._last[poll.partition] = max(last or 0, poll.at)
        self.ends[poll.partition] = poll.last + 1


def polls(lines: Iterable[bytes], booted: int) -> Iterator[Poll]:
    """Of lines that a client wrote, among whatever else it did; `booted`: nanoseconds of the wall's clock when that of
    `kunicorn.ipc.clock` began."""
    for line in lines:
        if not line.startswith(b"{") or CONSUMED.encode() not in line:
            continue
        said = json.loads(line)
        at = said["timestamp"] * _MILLISECOND - booted
        for each in said["partitions"]:
            yield Poll(at, each["partition"], each["minOffset"], each["maxOffset"])
