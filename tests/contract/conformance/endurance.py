"""What the long runs came to: written by them where they are asked to (`make conformance-long`), shown on the page."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from kunicorn.kafka.versions import Api

RECORDED = Path(__file__).parent / "endurance.json"
_PART = ", part "
_ASKED = "KUNICORN_RECORD_RUNS"
"""An environment variable: the file to add to. Without it nothing is written: a test leaves the tree as it is."""

Runs = dict[str, dict[str, int]]
"""How often, by what was done and to what."""


def came_through(done: str, of: str, times: int, part: int | None = None) -> None:
    """Note that this was done so often and held; the last call of a test, which a failure never reaches.

    `part`: of those that are shown as one, where a test is done in parts.
    """
    if path := os.environ.get(_ASKED):
        write(Path(path), done, of if part is None else f"{of}{_PART}{part}", times)


def write(path: Path, done: str, of: str, times: int) -> None:
    """Add to the file, to which other processes may add as well; an earlier run of the same is replaced."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        runs: Runs = json.loads(file.read() or "{}")
        runs.setdefault(done, {})[of] = times
        file.truncate(0)
        file.write(json.dumps(runs, indent=1, sort_keys=True) + "\n")


def read(path: Path = RECORDED) -> Runs:
    """What was written; empty where nothing was."""
    if not path.exists():
        return {}
    runs: Runs = json.loads(path.read_text())
    return runs


PROTOCOLS = ("classic", "consumer")
SPOILT_FOR = "spoilt answers to a member, {protocol} protocol"
UNREADABLE_FOR = "spoilt answers that a member could not read, {protocol} protocol"
NEVER_ASKED: Mapping[Api, str] = {
    Api.CONSUMER_GROUP_DESCRIBE: "no member asks it, only commands about a group such as `kunicorn leave` do",
    Api.LIST_GROUPS: "no member asks it, only commands about a group such as `kunicorn check` do",
}
"""What no driver of a member asks, and who does."""

_HEAD = """
## Long runs

What is done a few times in every run of the tests, done often (`make conformance-long`), each with no failure. Spoilt
answers are what a broken broker, a bug of ours or a stranger on the line would send: bytes changed, cut, added or
doubled, counts of billions, unknown tags. Read or refused, an answer takes bounded time and memory and nothing else
happens. A story is a group of three to eight members through joins, crashes, lost, doubled and late answers and moves
of the coordinator.

| what was done | of | times |
| --- | --- | --: |
"""
_MEMBERS = """
Spoilt answers also reach a member, through its connections and drivers, beside a coordinator that the test plays: up to
fifty in a row to one kind of request, each an answer at random or the true one with a few bytes changed. For each that
cannot be read the connection is closed and the log says why; those that can be read may say anything, also that the
member is lost or refused for good. After every row the member settles by itself, a refused one's successor does; memory
stays bounded, nothing waits for ever and nothing raises. Every run of the tests does the same over sockets, a few of
each; this many go over streams in memory. Whole answers that come in another order than that of their requests, twice,
unasked for, or when nobody waits any more are taken for no other's and end their connection, too
([test_order_of_answers.py](../tests/contract/conformance/coordinator/test_order_of_answers.py)).

| API | classic protocol | of these unreadable | consumer protocol | of these unreadable |
| --- | --: | --: | --: | --: |
"""


def section(runs: Mapping[str, Mapping[str, int]]) -> str:
    """The page's part about them; nothing where nothing was recorded."""
    if not runs:
        return ""
    runs = {done: _whole(counts) for done, counts in runs.items()}
    by_protocol = [words.format(protocol=each) for each in PROTOCOLS for words in (SPOILT_FOR, UNREADABLE_FOR)]
    others = {done: counts for done, counts in runs.items() if done not in by_protocol}
    members = [runs.get(done, {}) for done in by_protocol]
    apis = sorted(set().union(*members))
    if not apis:
        return _HEAD + "".join(_rows(others))
    table = "".join(f"| {api} | {' | '.join(_number(counts.get(api)) for counts in members)} |\n" for api in apis)
    never = "".join(f"\nNot {api.title}: {why}.\n" for api, why in NEVER_ASKED.items())
    return _HEAD + "".join(_rows(others)) + _MEMBERS + table + never


def _whole(counts: Mapping[str, int]) -> dict[str, int]:
    """Parts put together."""
    whole: Counter[str] = Counter()
    for of, times in counts.items():
        whole[of.partition(_PART)[0]] += times
    return dict(whole)


def _rows(runs: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for done, counts in sorted(runs.items()):
        for of, times in sorted(counts.items()):
            yield f"| {done} | {of} | {times:,} |\n"


def _number(times: int | None) -> str:
    return "" if times is None else f"{times:,}"
