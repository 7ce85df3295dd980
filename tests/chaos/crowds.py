"""Members whose workers have one record in hand, or several: their settings, and the order that is judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from kunicorn.commands.demo.audit import read_audit
from kunicorn.commands.demo.judge import calls_in
from tests.chaos.calls import Call

IN_HAND = 4


class Crowd(NamedTuple):
    """How records come to the handler."""

    handler: Mapping[str, Any]
    """Of [handler], beside what every member has."""
    in_hand: int | None
    """So many records may be handled again for each worker that is killed; None: what it handled since its last
    commit, as its outputs may not have been acknowledged."""
    rate: int
    """Records a second: so that workers mostly have several in hand, where they may."""
    keys: int
    ordering: str = "partition"
    together: bool = False
    """Batches: records are in hand at the same time."""
    linger_ms: int = 5
    """How long the producer keeps a record back, for others to go with it."""


def _several(ordering: str, entrypoint: str) -> Crowd:
    entrypoint = f"tests.system.handlers.lethal:{entrypoint}"
    settings = {"entrypoint": entrypoint, "ordering": ordering, "concurrency": IN_HAND}
    return Crowd(settings, IN_HAND, rate=60, keys=60, ordering=ordering)


ONE = "one"
CROWDS: Mapping[str, Crowd] = {
    ONE: Crowd({}, 1, rate=20, keys=1000),
    "key-threads": _several("key", "handle"),
    "key-tasks": _several("key", "handle_async"),
    "none-threads": _several("none", "handle"),
    "partition-tasks": _several("partition", "handle_async"),
}


def disorder(audit: Path, ordering: str) -> list[str]:
    """What was not in the order that was asked for: a record that first began before one of its lane with a lower
    offset, or while the same process had another one of its lane in hand."""
    found = []
    for lane, calls in _lanes(audit, ordering):
        first_begun = list(dict.fromkeys(call.offset for call in calls))
        found += [f"{lane}: offset {b} first began after {a}" for a, b in pairwise(first_begun) if b < a]
        for before, after in pairwise(calls):
            if before.pid == after.pid and before.end is not None and after.begin < before.end:
                found.append(f"{lane}: offsets {before.offset} and {after.offset} were in hand together")
    return found


def _lanes(audit: Path, ordering: str) -> Iterator[tuple[str, list[Call]]]:
    """The calls of each lane, in the order in which they began; with no order there is none."""
    if ordering == "none":
        return
    lanes: defaultdict[tuple[int, int], list[Call]] = defaultdict(list)
    for file in read_audit(audit):
        keys = {(entry.partition, entry.offset): entry.key for entry in file.entries()}
        for partition, offset, begin, end in calls_in(file):
            key = keys[partition, offset] if ordering == "key" else 0
            lanes[partition, key].append(Call(begin, partition, offset, end, file.member, file.pid))
    for (partition, key), calls in lanes.items():
        yield f"partition {partition}, key {key:x}", sorted(calls, key=lambda call: call.begin)
