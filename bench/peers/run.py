"""One run of one contender: started, watched from outside, stopped, audited. The same rule for all.

Records per second count from when 5 % of the records (or the records of two seconds, whichever is earlier) are handled
until the last one is, or until time is up: joining the group, imports and first connections are not what is measured.
CPU time is the whole process tree's in the same window; memory its highest PSS.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.peers import tree
from bench.peers.contenders import CLIENTS, Contender, Setting, importable
from bench.peers.tallies import Tallies, findings
from kunicorn.commands.child import start_child

FIRST_RECORD_SECONDS = 60.0
STOP_SECONDS = 15.0
WARM_SHARE, WARM_SECONDS = 0.05, 2.0
_LOOK_SECONDS, _SAMPLE_SECONDS = 0.005, 0.3
COMPILED = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(__file__).parents[2] / "reports" / "compiled"),
}
"""Ours runs from its sources: it is compiled once, as packages that pip installs are, not with every start."""


class Failed(Exception):
    """The contender did not do it; the text says how."""


class Figures(NamedTuple):
    """Of one run."""

    rate: float
    """Records per second."""
    cpu_us: float
    """CPU microseconds a record, of the whole tree."""
    memory_mb: float
    """Highest PSS of the tree."""
    root_share: float
    """The first process's part of the tree's CPU time: for ours, the supervisor's."""
    member_memory_mb: float
    """Highest PSS of any one process of the tree but the first; of the first where it is alone."""
    first_record_s: float
    """From the start of the process; for ours beyond the group's join."""
    handled: int
    finding: str
    """What the audit found; empty if nothing."""


@dataclass
class Mark:
    """A moment of a run."""

    at: float
    total: int
    cpu: float
    root_cpu: float


@dataclass
class Running:
    """A started contender."""

    who: Contender
    setting: Setting
    process: subprocess.Popen[str]
    log: Path
    began: float
    tallies: Tallies
    pids: set[int] = field(default_factory=set)
    memory_mb: float = 0.0
    member_memory_mb: float = 0.0

    @property
    def total(self) -> int:
        """Records handled so far."""
        return self.tallies.total() if self.who.audited else _reported(self.log)

    def mark(self) -> Mark:
        """Now."""
        return Mark(time.perf_counter(), self.total, tree.cpu_seconds(self.process.pid), self._root_cpu())

    def _root_cpu(self) -> float:
        return tree.exact_cpu_seconds(self.process.pid)

    def sample(self) -> None:
        """Memory, and which processes there are."""
        members = list(tree.members(self.process.pid))
        self.pids |= set(members)
        each = [tree.own_memory_mb(pid) for pid in members]
        self.memory_mb = max(self.memory_mb, sum(each))
        self.member_memory_mb = max(self.member_memory_mb, *(each[1:] or each))

    def await_first(self, records: int = 1) -> None:
        """Until so many records are handled. Raises `Failed`."""
        deadline = self.began + FIRST_RECORD_SECONDS
        while self.total < records:
            if self.process.poll() is not None:
                raise Failed(f"ended with {self.process.returncode} before a first record: {self.last_line()}")
            if time.perf_counter() > deadline:
                raise Failed(f"no record within {FIRST_RECORD_SECONDS:g} s: {self.last_line()}")
            time.sleep(_LOOK_SECONDS)

    def joining_s(self) -> float:
        """How long the join took, by our own log."""
        said = re.search(r"rebalance completed after ([0-9.]+) s", self.log.read_text(errors="replace"))
        return float(said[1]) if said and self.who.ours else 0.0

    def last_line(self) -> str:
        """Of what it said."""
        return next((line for line in reversed(self.log.read_text(errors="replace").splitlines()) if line), "silent")[
            :200
        ]

    def stop(self) -> None:
        """In order, then by force: nothing of it is left."""
        self.sample()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        tree.kill(list(self.pids))


@contextmanager
def running(who: Contender, setting: Setting) -> Iterator[Running]:
    """Start it; at the end nothing of it is left. Raises `Unavailable`."""
    command = who.command(setting)
    tallies = setting.directory / "tallies"
    tallies.mkdir()
    log = setting.directory / "log.txt"
    env = who.environment(setting) | ({"PYTHONPATH": importable(), **COMPILED} if who.ours else {"PYTHONPATH": ""})
    began = time.perf_counter()
    process = start_child(command, env=env, cwd=CLIENTS, log=log)
    found = Running(who, setting, process, log, began, Tallies(tallies, setting.partitions))
    try:
        yield found
    finally:
        found.stop()


def measure(who: Contender, setting: Setting, seconds: float, produced: list[int]) -> Figures:
    """Drain the topic, for `seconds` at most. Blocks; raises `Failed`, `Unavailable`."""
    with running(who, setting) as contender:
        contender.await_first()
        first = time.perf_counter()
        start = middle = end = None
        due, until = _LOOK_SECONDS, first + seconds
        while contender.process.poll() is None:
            now, total = time.perf_counter(), contender.total
            if start is None and (total >= setting.records * WARM_SHARE or now - first >= WARM_SECONDS):
                start = contender.mark()
            if middle is None and total >= setting.records // 2:
                middle = contender.mark()
            if total >= setting.records or now >= until:
                end = contender.mark()
                break
            if now >= due:
                contender.sample()
                due = now + _SAMPLE_SECONDS
                end = contender.mark() if not who.audited else None
            time.sleep(_LOOK_SECONDS)
        exited = contender.process.poll()
    if start is None or end is None or end.total <= start.total:
        raise Failed(f"ended with {exited} after {contender.total:,} records: {contender.last_line()}")
    return _figures(contender, start, middle or start, end, first, produced)


def _figures(contender: Running, start: Mark, middle: Mark, end: Mark, first: float, produced: list[int]) -> Figures:
    records, cpu = end.total - start.total, end.cpu - start.cpu
    steady_cpu = end.cpu - middle.cpu
    stopped = end.total < contender.setting.records
    finding, in_order = "", contender.who.in_order and contender.setting.kind != "wait"
    if contender.who.audited:
        finding = findings(contender.tallies.counted(), produced, stopped=stopped, in_order=in_order)
    return Figures(
        rate=records / (end.at - start.at),
        cpu_us=cpu / records * 1e6,
        memory_mb=contender.memory_mb,
        root_share=(end.root_cpu - middle.root_cpu) / steady_cpu if steady_cpu else 0.0,
        member_memory_mb=contender.member_memory_mb,
        first_record_s=first - contender.began - contender.joining_s(),
        handled=end.total,
        finding=finding,
    )


def _reported(log: Path) -> int:
    """Records of ConsumerPerformance so far, by its last whole line of statistics."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 4096))
        lines = file.read().decode(errors="replace").split("\n")[:-1]
    for line in reversed(lines):
        fields = line.split(",")
        if len(fields) >= 6 and fields[4].strip().isdigit():
            return int(fields[4])
    return 0


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one run."""
    directory = Path(tempfile.mkdtemp(prefix="kunicorn-peers-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
