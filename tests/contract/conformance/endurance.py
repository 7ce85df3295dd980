"""What the long runs came to: written by them where they are asked to (`make conformance-long`), shown on the page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

RECORDED = Path(__file__).parent / "endurance.json"
_ASKED = "KUNICORN_RECORD_RUNS"
"""An environment variable: the file to add to. Without it nothing is written: a test leaves the tree as it is."""

Runs = dict[str, dict[str, int]]
"""How often, by what was done and to what."""


def came_through(done: str, of: str, times: int) -> None:
    """Note that this was done so often and held; the last call of a test, which a failure never reaches."""
    if path := os.environ.get(_ASKED):
        write(Path(path), done, of, times)


def write(path: Path, done: str, of: str, times: int) -> None:
    """Add to the file; an earlier run of the same is replaced."""
    runs = read(path)
    runs.setdefault(done, {})[of] = times
    path.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")


def read(path: Path = RECORDED) -> Runs:
    """What was written; empty where nothing was."""
    if not path.exists():
        return {}
    runs: Runs = json.loads(path.read_text())
    return runs


_HEAD = """
## Long runs

What is done a few times in every run of the tests, done often (`make conformance-long`), each with no failure. Spoilt
answers are what a broken broker, a bug of ours or a stranger on the line would send: bytes changed, cut, added or
doubled, counts of billions, unknown tags. Read or refused, an answer takes bounded time and memory and nothing else
happens; a member that gets it over its connection says why it looks for the coordinator anew, and settles. A story is
a group of three to eight members through joins, crashes, lost, doubled and late answers and moves of the coordinator.

| what was done | of | times |
| --- | --- | --: |
"""


def section(runs: Mapping[str, Mapping[str, int]]) -> str:
    """The page's part about them; nothing where nothing was recorded."""
    return _HEAD + "".join(_rows(runs)) if runs else ""


def _rows(runs: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for done, counts in sorted(runs.items()):
        for of, times in sorted(counts.items()):
            yield f"| {done} | {of} | {times:,} |\n"
