"""What has to be reached, each in the same run as what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.peers import contenders as c
from bench.peers.contenders import Contender
from bench.peers.plan import Case, Plan
from bench.peers.results import Results


class Goal(NamedTuple):
    """One line of the table."""

    text: str
    limit: float
    at_least: bool
    value: float | None
    unit: str = "×"

    @property
    def reached(self) -> bool | None:
        """None where there is nothing to judge."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def wanted(self) -> str:
        """The limit, for people."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"

    @property
    def measured(self) -> str:
        """The value, for people."""
        return "not measured" if self.value is None else f"{self.value:.2f} {self.unit}"

    @property
    def verdict(self) -> str:
        """In a word."""
        return {True: "reached", False: "missed", None: ""}[self.reached]


AIOKAFKAS = (c.AIOKAFKA,)
QUIXES = (c.QUIX,)
ARROYOS = (c.ARROYO, c.ARROYO_PROCESSES)
ELSEWHERE = (
    c.FASTSTREAM,
    c.FASTSTREAM_BATCH,
    c.FASTSTREAM_2,
    c.FAUST,
    c.KAFKA_PYTHON,
    c.PYRALLEL,
    c.PYRALLEL_PROCESSES,
)


def goals(plan: Plan, results: Results) -> list[Goal]:
    """All of them, with what was measured."""
    of = _Measured(
        results=results,
        nothing=Case(plan.small, "nothing"),
        wide=Case(plan.wide, "nothing"),
        work=Case(plan.small, "work"),
        delay=Case(plan.delayed, "delay"),
    )
    return [*_of_columns(of), *_of_objects(of)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What goals are about, by case."""

    results: Results
    nothing: Case
    wide: Case
    work: Case
    delay: Case

    def rate(self, ours: Contender, theirs: Contender) -> float | None:
        """Of ours beside theirs, where there is nothing to do."""
        return self.results.ratio((self.nothing, ours), (self.nothing, theirs))

    def cost(self, who: Contender) -> float | None:
        """Nanoseconds of CPU a record, where there is nothing to do."""
        found = self.results.median(self.nothing, who, "cpu_us")
        return None if found is None else 1000 * found

    def ahead_of(self, theirs: Sequence[Contender]) -> float | None:
        """The rate beside the best of them."""
        found = [ratio for who in theirs if (ratio := self.rate(c.BATCH_2, who)) is not None]
        return min(found, default=None)


def _of_columns(of: _Measured) -> list[Goal]:
    """Those of our own fetcher."""
    return [
        Goal("two workers, arrow handler, beside Java's ConsumerPerformance", 4.0, True, of.rate(c.ARROW_2, c.JAVA)),
        Goal("two workers, arrow handler, beside franz-go", 3.0, True, of.rate(c.ARROW_2, c.FRANZ_GO)),
        Goal("two workers, arrow handler, beside aiokafka", 12.0, True, of.rate(c.ARROW_2, c.AIOKAFKA)),
        Goal(
            "one worker, arrow handler, beside the tuned loop with jemalloc",
            2.0,
            True,
            of.rate(c.ARROW_1, c.BARE_RUNS_PRELOADED),
        ),
        Goal("one worker, arrow handler: CPU a record", 250.0, False, of.cost(c.ARROW_1), "ns"),
        Goal(
            "one worker, arrow handler that sums a decoded column",
            3.0,
            True,
            _millions(of.cost(c.SUMMING_1)),
            "million/s a core",
        ),
        Goal("own fetcher, record handler, beside the tuned loop", 1.5, True, of.rate(c.OWN_RECORD_1, c.BARE)),
        Goal("own fetcher, batch handler, beside the same by runs", 1.5, True, of.rate(c.OWN_BATCH_1, c.BARE_RUNS)),
        Goal(
            "arrow: 2,000 partitions beside 8",
            0.8,
            True,
            of.results.ratio((of.wide, c.ARROW_1), (of.nothing, c.ARROW_1)),
        ),
        Goal(
            "own fetcher: p99 at 1,000 records/s beside a bare poll() loop",
            1.2,
            False,
            of.results.ratio_within(of.delay, c.OWN_RECORD_1, "p99", "poll_p99"),
        ),
    ]


def _of_objects(of: _Measured) -> list[Goal]:
    """Those of handlers over librdkafka."""
    return [
        Goal(
            "one worker, record handler, beside the tuned confluent-kafka loop", 0.9, True, of.rate(c.RECORD_1, c.BARE)
        ),
        Goal("one worker, batch handler, beside the same by runs", 0.97, True, of.rate(c.BATCH_1, c.BARE_RUNS)),
        Goal("two workers, batch handler, beside Java's ConsumerPerformance", 1.5, True, of.rate(c.BATCH_2, c.JAVA)),
        Goal("two workers, batch handler, beside franz-go", 1.0, True, of.rate(c.BATCH_2, c.FRANZ_GO)),
        Goal("two workers, batch handler, beside aiokafka", 4.0, True, of.ahead_of(AIOKAFKAS)),
        Goal("two workers, batch handler, beside Quix Streams", 15.0, True, of.ahead_of(QUIXES)),
        Goal("two workers, batch handler, beside arroyo at its best", 20.0, True, of.ahead_of(ARROYOS)),
        Goal(
            "two workers, batch handler, beside the best of FastStream, Faust, kafka-python and Pyrallel-Consumer",
            10.0,
            True,
            of.ahead_of(ELSEWHERE),
        ),
        Goal(
            "20 µs of work: two workers beside one",
            1.7,
            True,
            of.results.ratio((of.work, c.RECORD_2), (of.work, c.RECORD_1)),
        ),
        Goal(
            "p99 at 1,000 records/s beside a bare poll() loop",
            1.2,
            False,
            of.results.ratio_within(of.delay, c.RECORD_1, "p99", "poll_p99"),
        ),
        Goal(
            "the supervisor's part of the tree's CPU at full throughput",
            2.0,
            False,
            _percent(of.results.median(of.nothing, c.BATCH_2, "root_share")),
            "%",
        ),
        Goal(
            "a worker's memory over a bare process with the same handler",
            15.0,
            False,
            _difference(
                of.results.median(of.nothing, c.RECORD_1, "member_memory_mb"),
                of.results.median(of.nothing, c.BARE, "member_memory_mb"),
            ),
            "MB",
        ),
        Goal(
            "from `kunicorn run` to the first record, beyond the group's join",
            1.0,
            False,
            of.results.median(of.nothing, c.RECORD_1, "first_record_s"),
            "s",
        ),
        Goal("2,000 partitions beside 8", 0.8, True, of.results.ratio((of.wide, c.BATCH_1), (of.nothing, c.BATCH_1))),
    ]


def _millions(nanoseconds: float | None) -> float | None:
    """Records a second of one core, from what a record costs."""
    return None if nanoseconds is None else 1e3 / nanoseconds


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
