"""What a seed stands for. Pure: the same seed is the same schedule, on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults import FAULTS, Kind
from tests.chaos.group import PROTOCOLS

SEEDS_THAT_FAILED = Path(__file__).parent / "seeds_that_failed.txt"
WHOLE = 2 * len(PROTOCOLS)
"""So many seeds in a row, from a multiple of it on, put every protocol through every fault."""


@dataclass(frozen=True)
class Schedule:
    """Faults in the order in which one group meets them."""

    seed: int
    protocol: str
    static: bool
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"seed {self.seed}: {'static' if self.static else 'dynamic'} members, {self.protocol}"


def schedule(seed: int, only: Sequence[str] = ()) -> Schedule:
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
    return Schedule(seed, list(PROTOCOLS)[seed // 2 % len(PROTOCOLS)], static, tuple(only or mine))


def remembered(path: Path = SEEDS_THAT_FAILED) -> list[Schedule]:
    """Schedules that failed once: a line holds the seed and the faults it stood for, after # a remark."""
    if not path.exists():
        return []
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [schedule(int(seed), only) for seed, *only in filter(None, lines)]


def remember(failed: Schedule, remark: str, path: Path = SEEDS_THAT_FAILED) -> None:
    """Keep it for later runs, which begin with it; once is enough."""
    if failed in remembered(path):
        return
    with path.open("a") as file:
        file.write(f"{failed.seed} {' '.join(failed.faults)}  # {remark.splitlines()[0][:100]}\n")
