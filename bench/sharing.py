"""One hot partition in eight: what sharing by load is worth, beside sharing by number. `make bench-sharing`

    python -m bench.sharing [--records N] [--write]

Two workers, default settings, a handler that waits about 200 µs; the hot partition has as much as the seven others
together. By number its worker has three more partitions beside it, and the other worker runs out of work; by load they
go there, one after the other. The bound is what a perfect division would make: both workers busy to the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.pages import write_section
from bench.topics import create
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members, group_settings, merged
from tests.system.producing import produce
from tests.waiting import wait_until

PARTITIONS, WORKERS, HOT = 8, 2, 0
GOAL = 1.2
"""Half the records are the hot partition's, 2/7 of the rest lie beside it: 1.4 times the rate is the most there is."""
MOST = 10 / 7


class Drained(NamedTuple):
    """One run."""

    sharing: str
    rate: float
    """Records per second, from the first one handled to the last."""
    moves: int
    repeated: int
    """Records counted more often than they were sent."""


def main() -> int:
    """Measure, print, and exit 1 if the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharing", description=__doc__)
    parser.add_argument("--records", type=int, default=280_000)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    each = options.records // (2 * (PARTITIONS - 1))
    found = []
    with KafkaCluster() as kafka, tempfile.TemporaryDirectory() as directory:
        create(kafka.admin(), "hot", PARTITIONS)
        for number in range(PARTITIONS):
            count = each * (PARTITIONS - 1) if number == HOT else each
            produce(kafka.bootstrap, "hot", count, partition=number)
        for sharing in ("count", "load"):
            found.append(drain(kafka.bootstrap, sharing, 2 * each * (PARTITIONS - 1), Path(directory)))
    show(found)
    gain = found[1].rate / found[0].rate
    print(f"{gain:.2f} times the records per second (goal: {GOAL}, most there is: {MOST:.2f})")
    if options.write:
        write_section("One hot partition in eight", page(found, gain))
    return 0 if gain >= GOAL and not any(each.repeated for each in found) else 1


def drain(bootstrap: str, sharing: str, records: int, directory: Path) -> Drained:
    """Have a group of one member handle everything."""
    entrypoint = "bench.quick_handlers:wait_a_little"
    settings = group_settings(bootstrap, ["hot"], f"hot-{sharing}", entrypoint, WORKERS)
    place = directory / sharing
    place.mkdir()
    members = Members(place, merged(settings, {"workers": {"sharing": sharing}, "log": {"level": "info"}}), {})
    try:
        member = members.start()
        wait_until(lambda: handled(member), "a first record", 60, every=0.005)
        began, already = time.perf_counter(), handled(member)
        wait_until(lambda: handled(member) >= records, f"{records} records", 600, every=0.05)
        seconds = time.perf_counter() - began
        moves = member.output().count(" moves from worker ")
        repeated = handled(member) - records
        member.stop()
        return Drained(sharing, (records - already) / seconds, moves, repeated)
    finally:
        members.close()


def handled(member: MemberProcess) -> int:
    """Records so far, by all workers, as they tell twice a second."""
    return int(member.status().get("totals", {}).get("records", 0))


ROWS = ("workers.sharing", "records/s", "moves", "repeated")


def cells(each: Drained) -> tuple[str, ...]:
    """One row."""
    return each.sharing, f"{each.rate:,.0f}", str(each.moves), str(each.repeated)


def show(found: Iterable[Drained]) -> None:
    """The table, for a terminal."""
    table = Table(*ROWS)
    for each in found:
        table.add_row(*cells(each))
    Console(width=110).print(table)


def page(found: Iterable[Drained], gain: float) -> str:
    """The section of docs/benchmarks.md."""
    rows = [ROWS, ("---", "--:", "--:", "--:"), *map(cells, found)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return (
        "`python -m bench.sharing --write`: eight partitions, of which one has as much as the seven others together;\n"
        "two workers with default settings, and a handler that waits about 200 µs.\n\n"
        f"{table}\n\n"
        f"That is {gain:.2f} times as many; a perfect division would make {MOST:.2f} of it."
    )


if __name__ == "__main__":
    sys.exit(main())
