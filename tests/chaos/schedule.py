"""What a seed stands for. Pure: the same seed is the same schedule, on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.crowds import ONE
from tests.chaos.faults import FAULTS, Kind
from tests.chaos.group import FETCHERS, PROTOCOLS

SEEDS_THAT_FAILED = Path(__file__).parent / "seeds_that_failed.txt"
WHOLE = 2 * len(PROTOCOLS)
"""So many seeds in a row, from a multiple of it on, put every protocol through every fault, over one fetcher."""

CROWD_FAULTS = ("kill-worker", "rolling-restart", "kill-supervisor", "kill-worker", "scale-out")


@dataclass(frozen=True)
class Schedule:
    """Faults in the order in which one group meets them."""

    seed: int
    protocol: str
    static: bool
    faults: tuple[str, ...]
    crowd: str = ONE
    """How many records its workers have in hand, in which order."""
    fetcher: str = FETCHERS[0]
    """Of `kafka.fetcher`: who fetches in its workers."""

    def __str__(self) -> str:
        members = f"{'static' if self.static else 'dynamic'} members"
        return f"seed {self.seed}: {members}, {self.protocol}, {self.crowd} in hand, fetched by {self.fetcher}"


def crowded(seed: int, crowd: str, fetcher: str = FETCHERS[0]) -> Schedule:
    """A dynamic group whose workers have several records in hand, and what ends workers and moves partitions."""
    return schedule(2 * seed, CROWD_FAULTS, crowd, fetcher)


def schedule(seed: int, only: Sequence[str] = (), crowd: str = ONE, fetcher: str = FETCHERS[0]) -> Schedule:
    """The schedule of a seed; `only` keeps a subset of faults, or the list that a seed stood for when it failed.

    An even seed and the odd one after it deal all faults out between a dynamic and a static group.
    """
    static = bool(seed % 2)
    dealt = {kind: [name for name, fault in FAULTS.items() if fault.kind is kind] for kind in Kind}
    random.Random(seed // 2).shuffle(dealt[Kind.ANY])
    # The dynamic group has more faults of its own.
    half = (len(FAULTS) + 1) // 2 - len(dealt[Kind.DYNAMIC])
    mine = dealt[Kind.ANY][half:] + dealt[Kind.STATIC] if static else dealt[Kind.ANY][:half] + dealt[Kind.DYNAMIC]
    random.Random(seed).shuffle(mine)
    return Schedule(seed, list(PROTOCOLS)[seed // 2 % len(PROTOCOLS)], static, tuple(only or mine), crowd, fetcher)


def remembered(path: Path = SEEDS_THAT_FAILED) -> list[Schedule]:
    """Schedules that failed once: a line holds the seed, or seed:crowd:fetcher, and the faults it stood for, after #
    a remark."""
    if not path.exists():
        return []
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [_read(word, only) for word, *only in filter(None, lines)]


def _read(word: str, only: Sequence[str]) -> Schedule:
    seed, crowd, fetcher = f"{word}::".split(":")[:3]
    return schedule(int(seed), only, crowd or ONE, fetcher or FETCHERS[0])


def remember(failed: Schedule, remark: str, path: Path = SEEDS_THAT_FAILED) -> None:
    """Keep it for later runs, which begin with it; once is enough."""
    if failed in remembered(path):
        return
    with path.open("a") as file:
        usual = (failed.crowd, failed.fetcher) == (ONE, FETCHERS[0])
        word = str(failed.seed) if usual else f"{failed.seed}:{failed.crowd}:{failed.fetcher}"
        file.write(f"{word} {' '.join(failed.faults)}  # {remark.splitlines()[0][:100]}\n")
