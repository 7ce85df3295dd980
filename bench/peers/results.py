"""What came out of the runs, kept in a file while they go on."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.contenders import Contender
from bench.peers.delays import Delays
from bench.peers.plan import Case
from bench.peers.run import Figures

Measured = Figures | Delays


@dataclass(frozen=True)
class Entry:
    """One run; `failed` says why there are no figures."""

    case: str
    title: str
    round: int
    figures: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    under: str = ""
    """What it was measured with."""


@dataclass
class Results:
    """All runs so far."""

    path: Path
    entries: list[Entry] = field(default_factory=list)
    under: str = ""
    """What is measured now is measured with."""

    @classmethod
    def read(cls, path: Path) -> Results:
        """Those of an earlier run, if there was one."""
        if not path.exists():
            return cls(path)
        return cls(path, [Entry(**each) for each in json.loads(path.read_text())])

    def add(self, case: Case, who: Contender, number: int, found: Measured | str) -> None:
        """One run, or why there is none; on disk before this returns."""
        if isinstance(found, str):
            self.entries.append(Entry(case.key, who.title, number, failed=found, under=self.under))
        else:
            self.entries.append(Entry(case.key, who.title, number, found._asdict(), under=self.under))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps([asdict(entry) for entry in self.entries], indent=1))

    def forget(self, measured: Collection[tuple[Case, Contender]]) -> None:
        """Of these cases there are to be new runs."""
        over = {(case.key, who.title) for case, who in measured}
        self.entries = [entry for entry in self.entries if (entry.case, entry.title) not in over]

    def of(self, case: Case, who: Contender) -> list[Entry]:
        """Its runs that have figures."""
        return [entry for entry in self._all(case, who) if entry.figures]

    def otherwise(self, case: Case) -> list[str]:
        """What runs of this case that are kept from earlier were measured with."""
        return sorted({entry.under for entry in self.entries if entry.case == case.key} - {self.under})

    def failure(self, case: Case, who: Contender) -> str:
        """Why it has no figures; empty if it has, or never ran."""
        if self.of(case, who):
            return ""
        return next((entry.failed for entry in self._all(case, who)), "")

    def _all(self, case: Case, who: Contender) -> list[Entry]:
        return [entry for entry in self.entries if (entry.case, entry.title) == (case.key, who.title)]

    def column(self, case: Case, who: Contender, name: str) -> list[float]:
        """One figure of all its runs, sorted."""
        return sorted(entry.figures[name] for entry in self.of(case, who))

    def median(self, case: Case, who: Contender, name: str) -> float | None:
        """Of one figure."""
        found = self.column(case, who, name)
        return median(found) if found else None

    def ratio(self, ours: tuple[Case, Contender], theirs: tuple[Case, Contender], name: str = "rate") -> float | None:
        """The median of the rounds' ratios: neighbours on the machine disturb both sides of a round alike. Rounds that
        only one side has are left out; without any common one, the ratio of the medians."""
        mine, other = ({entry.round: entry.figures[name] for entry in self.of(*side)} for side in (ours, theirs))
        common = [mine[number] / other[number] for number in mine.keys() & other.keys() if other[number]]
        if common:
            return float(median(common))
        if mine and other and median(other.values()):
            return float(median(mine.values()) / median(other.values()))
        return None

    def ratio_within(self, case: Case, who: Contender, one: str, other: str) -> float | None:
        """The median of the runs' ratios of two of their own figures."""
        found = [entry.figures[one] / entry.figures[other] for entry in self.of(case, who)]
        return median(found) if found else None

    def finding(self, case: Case, who: Contender) -> str:
        """What the audits of its runs found."""
        return "; ".join(sorted({entry.figures["finding"] for entry in self.of(case, who)} - {""}))
