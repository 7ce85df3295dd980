"""In which order records were handled, by what the handlers wrote."""

from __future__ import annotations

from collections import defaultdict

from kunicorn.commands.demo.audit import Entry, Kind, read_audit
from tests.system.scene import Scene


def entries(stage: Scene) -> list[Entry]:
    """All that any handler wrote, in the order of time."""
    found = [entry for file in read_audit(stage.members.audit) for entry in file.entries()]
    return sorted(found, key=lambda entry: entry.time_ns)


def begun_out_of_order(stage: Scene) -> list[Entry]:
    """First calls with a record of a key after a later one of it had begun."""
    highest: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    seen: set[tuple[int, int]] = set()
    wrong = []
    for entry in entries(stage):
        place = (entry.partition, entry.offset)
        if entry.kind != Kind.BEGIN or place in seen:
            continue
        seen.add(place)
        lane = (entry.partition, entry.key)
        if entry.offset < highest[lane]:
            wrong.append(entry)
        highest[lane] = max(highest[lane], entry.offset)
    return wrong
