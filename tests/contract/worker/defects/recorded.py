"""What finding them took, as it was measured last, and how the page shows it. Pure, but for the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.contract.supervisor.plan import AWAY_FROM, BUSY_FROM, LATE_FROM
from tests.contract.worker.plan import DECODERS_FROM, GATES_FROM

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"

_OF_GATES: Mapping[str, str] = {
    "probe_without_end": "a circuit breaker waits for ever for a probe that was done in part",
    "overtaken_while_failing": "a record is passed over that fails while an output before it is refused",
    "returned_to_a_filter": "a `BatchError` that is returned counts what a filter has dropped, too",
    "yielded_and_returned": "what a generator yields before it returns a `BatchError` is not sent",
    "dropped_with_the_failed": "what a filter has dropped becomes a dead letter with its batch",
}
DEFECTS: Mapping[str, str] = {
    "refused_beside_waiting_batch": "a refused output is lost where records wait for a fuller batch",
    "halt_beyond_refused": "a partition halts behind a record whose output was refused meanwhile",
    "refused_with_full_outbox": "an output that is refused while the outbox is full stops the worker",
    "rewind_while_waiting": "a partition that is to begin again and waits to be fetched is forgotten",
    "failing_behind_outputs": "a record that fails behind its outputs counts as done",
    "bits_left_behind": "where offsets jump, records that were never handled are told as done",
    "failed_and_in_hand": "a record that has failed stays in hand while the main thread is in another handler's call",
    **_OF_GATES,
    "failed_without_having": "a batch that fails as a whole decides on records behind one that cannot be decoded",
}
"""By the patch that puts it back."""

FIRST_SEEDS: Mapping[str, int] = {
    **dict.fromkeys(_OF_GATES, GATES_FROM),
    "failed_without_having": DECODERS_FROM,
    "given_up_while_away": AWAY_FROM,
    "one_broker_believed": LATE_FROM,
    "lease_before_the_news": BUSY_FROM,
    "given_while_one_was_behind": LATE_FROM,
}
"""Of the stories that are of such, a worker's and a group's; 1 for the others."""


class Soonest(NamedTuple):
    """The seed that finds a defect with the fewest stories."""

    which: int
    """From 0 on."""
    number: int
    """Of the story that finds it, from 1 on."""
    median: int
    """So many stories seeds take in the middle."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Each by its patch."""

    stories: int
    """Most of a seed."""
    found: Mapping[str, list[int | None]]

    def soonest(self, defect: str) -> Soonest:
        """Raises `KeyError` where it was not measured."""
        every = [self.stories if number is None else number for number in self.found[defect]]
        at = min(range(len(every)), key=every.__getitem__)
        return Soonest(at, every[at], round(median(every)))


def read(path: Path = RECORDED) -> Measured | None:
    """What was measured last."""
    if not path.exists():
        return None
    recorded = json.loads(path.read_text())
    return Measured(recorded["stories"], recorded["found"])


def table(measured: Measured, defects: Mapping[str, str] = DEFECTS) -> str:
    """As Markdown."""
    lines = ["| defect, put back | seeds that find it | story, median | latest |", "| --- | --: | --: | --: |"]
    for name, what in defects.items():
        if (every := measured.found.get(name)) is None:
            lines.append(f"| {what} | not measured yet | | |")
            continue
        hits = [number for number in every if number is not None]
        middle = f"{median(number or measured.stories for number in every):,.0f}" if hits else "none"
        latest = f"{max(hits):,}" if hits else "none"
        lines.append(f"| {what} | {len(hits)} of {len(every)} | {middle} | {latest} |")
    return "\n".join(lines) + "\n"


_HEAD = """
## Stories of a worker

A worker's threads run one at a time, by a clock that stands still meanwhile, beside a supervisor, brokers and a handler
that do what chance says: gaps, outputs refused or late, stops, losses, time-outs, reloads, deaths at any store of the
ledger ([tests/contract/worker](../tests/contract/worker/story.py)). After each store and each message no record that is
not finished may have been passed; at the end each is accounted for. Every run of the tests tells thousands of
stories, `make conformance-long` 200,000. Hundreds of every run are drawn by hypothesis, which makes one that fails
simpler ([test_stories_of_hypothesis.py](../tests/contract/worker/test_stories_of_hypothesis.py)).

How soon stories find what was wrong once: each defect is put back by a patch, and each of {seeds} seeds tells up to
{stories:,} stories until one does not hold. Measured by `python -m tests.contract.worker.defects --write`, on demand:
it takes minutes, so no test says when it is stale. In every run of the tests the quickest seed finds each one that was
measured: a story says which promise is broken, and an exception of the patched code counts as none.

"""


def section(measured: Measured | None) -> str:
    """The page's part about them; nothing where nothing was measured."""
    if measured is None:
        return ""
    seeds = max(map(len, measured.found.values()), default=0)
    return _HEAD.format(stories=measured.stories, seeds=seeds) + table(measured)
