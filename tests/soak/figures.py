"""The figures of legs: a line each in a file of the repository, with what they were run on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import checkout
from tests.chaos.group import FETCHERS
from tests.soak.plan import Leg, Shape, legs
from tests.soak.resources import Sums

_ROOT = Path(__file__).parents[2]
FILE = _ROOT / "docs" / "soak.jsonl"
CODE = ("service/kunicorn", "service/columns")
NOT_LIVE = (
    *(f"service/kunicorn/{name}" for name in ("pipeline", "testing", "settings/generate", "observe/generate.py")),
    *(f"service/kunicorn/clients/{name}.py" for name in ("access", "column_reader")),
    "service/kunicorn/handler/decode/json_columns.py",
    *(f"service/columns/src/{name}.rs" for name in ("json", "json_columns")),
    *(
        f"service/kunicorn/commands/{name}"
        for name in (
            *("broker.py", "check", "child.py", "control.py", "dlq.py", "dlq_topic.py", "embedded.py", "group_lag.py"),
            *("kept_offsets.py", "lag.py", "leave.py", "offsets.py", "replay_one.py", "sigterm.py"),
            *("status.py", "topics", "demo/member.py", "demo/mock_cluster.py"),
            *("demo/one_worker.py", "demo/scenario.py", "demo/view.py"),
        )
    ),
)
"""Of `CODE`, no part of a leg's members: jobs on Spark, what users test their handlers with, other commands than `run`,
what writes pages, and what reads JSON: the handlers take bytes."""
OF_OWN_FETCHER = (
    "service/columns",
    *(f"service/kunicorn/{name}" for name in ("columns", "fetch", "worker/fetching/own_fetcher.py")),
)
"""Of members that fetch by librdkafka, no part either."""


@dataclass(frozen=True)
class Faulted:
    """What one fault of a leg came to."""

    fault: str
    allowed: str
    repeated: int
    rebalances: int
    pauses_ms: Sequence[int]
    """The longest of each partition."""
    broken: Sequence[str] = ()
    """The promises that did not hold."""


@dataclass(frozen=True)
class Figures:
    """One leg."""

    seed: int
    leg: int
    date: str
    commit: str
    code: str
    """See `code_under_test`: of the group's fetcher."""
    shape: Mapping[str, Any]
    seconds: int
    rate: int
    busy: float = 0.0
    """Processes that wanted a core for each that there is, the machine's load over the last five minutes."""
    records: int = 0
    lost: int = 0
    deleted: int = 0
    """Records that retention took before anybody could have handled them: neither handled nor lost."""
    handled_again: int = 0
    twice_in_order: int = 0
    """Of these, because of something that members did in order."""
    out_of_order: int = 0
    outputs: int = 0
    outputs_missing: int = 0
    outputs_twice: int = 0
    rebalances: int = 0
    """Members that joined or left in order."""
    restarts: int = 0
    """Members that were restarted in order."""
    faults: Sequence[Faulted] = ()
    peers: Mapping[str, Sequence[Faulted]] = field(default_factory=dict)
    """What the same faults came to for other clients' groups, by client and version."""
    resources: Mapping[str, Mapping[str, Sums]] = field(default_factory=dict)
    broken: Sequence[str] = ()
    """The promises that did not hold, of the leg as a whole; those of a fault are the fault's."""
    codes: Mapping[str, str] = field(default_factory=dict)
    """What members of each fetcher were made of when it began; where it is not told, all of `code`."""

    @property
    def complaints(self) -> list[str]:
        """Every promise that did not hold; none if all is well."""
        return [*self.broken, *(complaint for fault in self.faults for complaint in fault.broken)]

    @property
    def of(self) -> Shape:
        """The group."""
        return Shape(**self.shape)

    def line(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def read(cls, line: str) -> Figures:
        """One that was kept."""
        kept = json.loads(line)
        kept["faults"] = [Faulted(**each) for each in kept["faults"]]
        peers = kept.get("peers", {})
        kept["peers"] = {client: [Faulted(**each) for each in faults] for client, faults in peers.items()}
        kept["resources"] = {
            role: {name: Sums(*sums) for name, sums in of_role.items()} for role, of_role in kept["resources"].items()
        }
        return cls(**kept)


def kept(file: Path = FILE) -> list[Figures]:
    """Of all legs, in the order in which they were run."""
    return [Figures.read(line) for line in file.read_text().splitlines()] if file.exists() else []


def keep(figures: Figures, file: Path = FILE) -> None:
    """Beside those of earlier legs."""
    # At once: legs that run side by side may end together.
    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(lines, f"{figures.line()}\n".encode())
    finally:
        os.close(lines)


def next_legs(seed: int, code: Mapping[str, str], had: Sequence[Figures]) -> Iterator[int]:
    """Numbers of the legs that this seed goes on with, on that code of each fetcher: those that were cut off, and all
    behind them. One that failed is not run again: it is kept."""
    there = {(each.leg, each.code) for each in had if each.seed == seed}
    return (each.number for each in legs(seed) if (each.number, code[each.shape.fetcher]) not in there)


def counted(had: Sequence[Figures]) -> Sequence[Figures]:
    """Those on the code that the newest leg was begun with."""
    newest = had[-1:]
    current = {fetcher: each.codes.get(fetcher, each.code) for each in newest for fetcher in FETCHERS}
    return [each for each in had if each.code == current[each.of.fetcher]]


def code_under_test(root: Path = _ROOT) -> Mapping[str, str]:
    """What members are made of that have that fetcher. Raises `SystemExit` where files differ from the commit."""
    left_out = dict.fromkeys(FETCHERS, NOT_LIVE) | {FETCHERS[0]: (*NOT_LIVE, *OF_OWN_FETCHER)}
    return {fetcher: checkout.code(CODE, left_out[fetcher], root) for fetcher in FETCHERS}


def started(leg: Leg, codes: Mapping[str, str], date: str, rate: int) -> Figures:
    """Of a leg that has only begun."""
    code = codes[leg.shape.fetcher]
    return Figures(leg.seed, leg.number, date, checkout.commit(), code, asdict(leg.shape), 0, rate, codes=codes)
