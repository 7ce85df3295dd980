"""Ours and confluent-kafka's members through the same faults: what `bench.differential` measured, judged and shown."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median

MEASURED = Path(__file__).parent / "differential.json"

_OURS = "kunicorn"
_NOISE_SECONDS = 1.0
"""A record comes every third of a second to each partition, and a busy machine hesitates."""
_SESSION_SECONDS, _PHASE_SECONDS = 40.0, 5.0
"""Where a session has to end first, it ends 45 s after the last heartbeat: the rarer they are, the sooner by chance."""
_COMMIT_SECONDS = {"classic": 5, "consumer": 1}
_RATE = 40
"""Records a second. A fault meets a commit's interval anywhere: so many may be repeated more by chance."""


@dataclass(frozen=True, slots=True)
class Row:
    """One client through one fault."""

    client: str
    protocol: str
    fault: str
    pause: float
    """Seconds: the longest of any partition."""
    rebalances: float
    """Generations, or epochs of the group, that the broker told of."""
    moved: float
    repeated: float
    ends: bool = False
    """The fault is one that a member may not survive: shown, but not judged."""


def medians(rows: Iterable[Row]) -> list[Row]:
    """One row for all runs of a fault and client; in the order of the first run."""
    found: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.client, row.protocol, row.fault].append(row)
    return [
        Row(
            *key,
            pause=median(row.pause for row in runs),
            rebalances=median(row.rebalances for row in runs),
            moved=median(row.moved for row in runs),
            repeated=median(row.repeated for row in runs),
            ends=runs[0].ends,
        )
        for key, runs in found.items()
    ]


def worse(rows: Sequence[Row]) -> list[str]:
    """Where ours did worse than theirs with the same protocol, beyond what chance explains; empty: nowhere."""
    theirs = {(row.fault, row.protocol): row for row in rows if not row.client.startswith(_OURS)}
    return [
        f"{row.fault}: {row.client} {what} {mine:g}, {other.client} {its:g}"
        for row in rows
        if row.client.startswith(_OURS) and not row.ends
        if (other := theirs.get((row.fault, row.protocol))) is not None
        for what, mine, its, chance in _compared(row, other)
        if mine > its + chance
    ]


def _compared(ours: Row, theirs: Row) -> Iterator[tuple[str, float, float, float]]:
    """What was done, how much by ours and by theirs, and how much of a difference chance makes."""
    # Rebalances are counts: they are compared exactly.
    phase = _PHASE_SECONDS if theirs.pause > _SESSION_SECONDS else _NOISE_SECONDS
    yield "paused for", ours.pause, theirs.pause, phase
    yield "rebalanced", ours.rebalances, theirs.rebalances, 0
    yield "repeated", ours.repeated, theirs.repeated, _COMMIT_SECONDS[ours.protocol] * _RATE


_HEAD = """
## Side by side

Groups of two members of ours and of confluent-kafka, each group behind a link of its own, on one broker of Apache
Kafka; every fault hits all of them at the same moment (`make bench-differential`). Faults of single requests hit the
next one of that kind in each group: one that is refused never reaches the broker and is answered as Kafka words it, one
whose answer is lost was carried out.

The pause is the longest of any partition: its next record lies in the log, and nobody has a record of it in hand, for
whatever reason; the fault itself is part of it. Where the only broker is down or frozen, nobody is served and nothing
is appended: there the pause counts from when it answers again, since a record that was appended just before and not yet
fetched would count as many seconds as the machine takes to start a broker, for one client or another by chance.
Rebalances: generations, or epochs of the group, in the broker's own log. Moved: how often a partition went to another
member. Repeated: records handled twice, at most what was handled since the last commit. With the consumer protocol both
commit every second, else every five (confluent-kafka's default).

{judgement}

| fault | client | longest pause s | rebalances | moved | repeated |
| --- | --- | --: | --: | --: | --: |
"""
_NEVER_WORSE = """Medians of {runs} runs on a busy machine. Ours is never worse than confluent-kafka with the same
protocol: no pause longer by more than a second (five where a session has to end first: by chance it does so sooner or
later), no more rebalances, no more repeated than one interval's commits. The bench fails otherwise."""
_WORSE_HERE = "Medians of {runs} runs on a busy machine. Ours was worse here:\n\n"
_NOT_JUDGED = """

Not judged: {faults}. A fenced instance has to stop, since another has taken its place (KIP-345). Ours ends, nobody
started it again here, and its partitions wait for its session to end; confluent-kafka's reports the error, and whoever
goes on polling goes on consuming."""


def read(path: Path = MEASURED) -> list[list[Row]]:
    """The rows of each run that was kept; none where nothing was."""
    return [[Row(**row) for row in run] for run in json.loads(path.read_text())] if path.exists() else []


def merged(kept: Sequence[Sequence[Row]], fresh: Sequence[Sequence[Row]], faults: Sequence[str]) -> list[list[Row]]:
    """The fresh runs, and of those kept before what they did not measure: faults that are still done, in their order.

    So a fault that a busy machine disturbed can be done again alone.
    """
    measured = {row.fault for run in fresh for row in run}
    runs = [
        [*(row for row in old if row.fault in set(faults) - measured), *new]
        for old, new in zip_longest(kept, fresh, fillvalue=())
    ]
    return [sorted(run, key=lambda row: faults.index(row.fault)) for run in runs if run]


def write(runs: Sequence[Sequence[Row]], path: Path = MEASURED) -> None:
    """Keep these runs, in place of those there."""
    path.write_text(json.dumps([[asdict(row) for row in run] for run in runs], indent=1) + "\n")


def section(path: Path = MEASURED) -> str:
    """The page's part about it; nothing where nothing was measured."""
    runs = read(path)
    if not runs:
        return ""
    rows = medians(row for run in runs for row in run)
    complaints = worse(rows)
    sentence = _WORSE_HERE if complaints else _NEVER_WORSE
    # Single faults may have been done again more often, or less.
    times = min(Counter((row.client, row.fault) for run in runs for row in run).values())
    judgement = sentence.format(runs=times) + "\n".join(f"- {line}" for line in complaints)
    faults = dict.fromkeys(row.fault for row in rows)
    if unjudged := dict.fromkeys(row.fault for row in rows if row.ends):
        judgement += _NOT_JUDGED.format(faults=", ".join(unjudged))
    return _HEAD.format(judgement=judgement) + "".join(
        f"| {fault} | {row.client} | {row.pause:.1f} | {row.rebalances:g} | {row.moved:g} | {row.repeated:g} |\n"
        for fault in faults
        for row in rows
        if row.fault == fault
    )
