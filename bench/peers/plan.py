"""What is measured, in which order and how often: a quick plan of a dozen minutes, and a full one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bench.peers import contenders as c
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.loads import Load, values

WORK_SECONDS = 20e-6
_MANY = 6_000_000
_LARGE = 500_000
_WAITED_FOR = 100_000


class Case(NamedTuple):
    """A topic and a kind of handler."""

    load: Load
    kind: str

    @property
    def key(self) -> str:
        """As results are filed."""
        return f"{self.load.topic} {self.kind}"


class Series(NamedTuple):
    """These contenders side by side, one after the other in every round."""

    case: Case
    contenders: tuple[Contender, ...]
    rounds: int
    seconds: float
    """The longest that one run may handle."""


ALLOCATORS = (c.BATCH_2_GLIBC, c.BATCH_1_GLIBC, c.RECORD_1_GLIBC, c.BARE_PRELOADED)
"""What jemalloc alone does: ours without it, the bare loops with it."""
COLUMNS = (c.ARROW_2, c.ARROW_1, c.SUMMING_1, c.OWN_BATCH_2, c.OWN_BATCH_1, c.OWN_RECORD_1)
"""What our own fetcher does; it needs the compiled decoder."""
HEADLINE = (
    *COLUMNS,
    c.BATCH_2,
    c.BATCH_1,
    c.RECORD_1,
    c.BARE_RUNS,
    c.BARE,
    c.BARE_RUNS_PRELOADED,
    c.FRANZ_GO,
    c.JAVA,
    c.AIOKAFKA,
)
"""Who is near enough to one another that single runs would not tell."""
PACKED = (c.ARROW_2, c.ARROW_1, c.BATCH_2, c.BATCH_1, c.BARE_RUNS, c.FRANZ_GO, c.JAVA, c.AIOKAFKA)
WORKING = (c.RECORD_2, c.RECORD_1)
DELAYED = (c.RECORD_1, c.OWN_RECORD_1)
WIDE = (c.ARROW_1, c.BATCH_1, c.BARE_RUNS)


def others(kind: str, *but: Contender) -> tuple[Contender, ...]:
    """All who know this kind of handler, but those."""
    return tuple(who for who in CONTENDERS if kind in who.kinds and who not in but)


@dataclass(frozen=True)
class Plan:
    """All series, one after the other."""

    small: Load
    packed: Load
    wide: Load
    waited: Load
    delayed: Load
    series: tuple[Series, ...]

    def runs(self) -> Iterator[tuple[Series, int, Contender]]:
        """In order; the rounds of a series are interleaved."""
        for series in self.series:
            for number in range(series.rounds):
                for who in series.contenders:
                    yield series, number, who

    @property
    def loads(self) -> list[Load]:
        """The topics to fill; those of delays are filled while they are consumed."""
        return list(dict.fromkeys(series.case.load for series in self.series if series.case.kind != "delay"))


def quick(scale: float = 1.0) -> Plan:
    """One topic of small records for all, one of large compressed ones for those ahead; the fewest rounds."""
    small, packed, wide, waited, delayed = _loads(scale, delay_records=10_000)
    waiting = (c.KEYED_2, c.RECORD_2, c.RECORD_1, c.AIOKAFKA, c.FAUST, c.FASTSTREAM, c.ARROYO_THREADS, c.PYRALLEL)
    few = (c.BARE, c.AIOKAFKA, c.FASTSTREAM_2, c.ARROYO_PROCESSES, c.PYRALLEL_PROCESSES)
    series = (
        Series(Case(small, "nothing"), HEADLINE, 3, 6.0),
        Series(Case(small, "nothing"), ALLOCATORS, 1, 6.0),
        Series(Case(small, "nothing"), others("nothing", *HEADLINE, *ALLOCATORS), 1, 6.0),
        Series(Case(packed, "nothing"), PACKED, 1, 6.0),
        Series(Case(small, "work"), WORKING, 3, 6.0),
        Series(Case(small, "work"), few, 1, 6.0),
        Series(Case(waited, "wait"), waiting, 1, 5.0),
        Series(Case(delayed, "delay"), DELAYED, 2, 0.0),
        Series(Case(delayed, "delay"), (c.AIOKAFKA, c.FASTSTREAM, c.FRANZ_GO), 1, 0.0),
        Series(Case(wide, "nothing"), WIDE, 2, 8.0),
    )
    return Plan(small, packed, wide, waited, delayed, series)


def full(scale: float = 1.0) -> Plan:
    """Every topic, every handler, every contender that can; more rounds. What has narrow goals comes first, so that who
    interrupts the run has those."""
    small, packed, wide, waited, delayed = _loads(scale, delay_records=30_000)
    more = [
        Load(partitions, size, compression, int(scale * (_MANY if size == 200 else _LARGE)))
        for partitions in (8, 64)
        for size in (200, 2048)
        for compression in ("none", "lz4")
    ]
    series = (
        Series(Case(small, "nothing"), HEADLINE, 7, 15.0),
        Series(Case(wide, "nothing"), WIDE, 5, 15.0),
        Series(Case(small, "work"), WORKING, 5, 15.0),
        Series(Case(delayed, "delay"), DELAYED, 5, 0.0),
        Series(Case(small, "nothing"), ALLOCATORS, 3, 15.0),
        Series(Case(small, "nothing"), others("nothing", *HEADLINE, *ALLOCATORS), 3, 15.0),
        *(Series(Case(load, "nothing"), PACKED, 3, 15.0) for load in more if load != small),
        Series(Case(small, "work"), others("work", *WORKING), 3, 10.0),
        Series(Case(waited, "wait"), others("wait"), 3, 10.0),
        Series(Case(delayed, "delay"), others("delay", *DELAYED, c.BARE_POLL), 2, 0.0),
    )
    return Plan(small, packed, wide, waited, delayed, series)


def _loads(scale: float, delay_records: int) -> tuple[Load, Load, Load, Load, Load]:
    return (
        Load(8, 200, "none", int(scale * _MANY)),
        Load(64, 2048, "lz4", int(scale * _LARGE)),
        Load(2000, 200, "none", int(scale * _MANY)),
        Load(8, 200, "none", int(scale * _WAITED_FOR)),
        Load(8, 200, "none", delay_records),
    )


def loops_of_work(size: int = 200) -> int:
    """How many turns of `clients/tally.py`'s loop make 20 µs together with decoding a record of that size, here and
    now. The best of many tries: what others do on the machine must not make the work smaller."""
    document = values(size)[0]

    def turns(count: int) -> float:
        began, total = time.perf_counter(), 0
        json.loads(document)
        for number in range(count):
            total += number
        return time.perf_counter() - began

    none, thousand = (min(turns(count) for _ in range(300)) for count in (0, 1000))
    return max(0, round((WORK_SECONDS - none) / (thousand - none) * 1000))
