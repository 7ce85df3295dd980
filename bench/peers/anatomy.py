"""Where a record's processor time goes: by threads, ours beside those of the same language. `make bench-anatomy`

    python -m bench.peers.anatomy [--rounds N] [--write]

The topic of `make bench`, handlers with nothing to do. What Python does is in the main thread (with what it takes from
the Kafka client there), what librdkafka does for the network is in threads of its own.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from statistics import median

from bench.pages import paragraph, write_section
from bench.peers import broker, run, tree
from bench.peers import contenders as c
from bench.peers.contenders import Contender, Setting
from bench.peers.loads import Load, fill
from bench.peers.page import conditions, rows_of
from tests.kafka import KafkaCluster

TITLE = "Where a record's time goes"
LOAD = Load(8, 200, "none", 3_000_000)
COMPARED = (c.BARE, c.RECORD_1, c.BARE_RUNS, c.BATCH_1, c.BATCH_2, c.AIOKAFKA)
MAIN, CLIENT, OTHERS, SUPERVISOR = "main thread", "client's threads", "other threads", "supervisor and template"
PARTS = (MAIN, CLIENT, OTHERS, SUPERVISOR)
_WORKER, _CLIENTS = "kunicorn-w", "rdk:"
"""How our workers' main threads are called, and librdkafka's threads."""


def spent(root: int, *, ours: bool) -> Counter[str]:
    """CPU nanoseconds so far of that process and all it has started, by `PARTS`; what ends meanwhile is left out."""
    found: Counter[str] = Counter()
    for pid in tree.members(root):
        every = list(tree.threads(pid))
        serves = ours and not any(tid == pid and name.startswith(_WORKER) for tid, name, _ in every)
        for tid, name, took in every:
            found[SUPERVISOR if serves else _part(name, main=tid == pid)] += took
    return found


def _part(name: str, *, main: bool) -> str:
    if main:
        return MAIN
    return CLIENT if name.startswith(_CLIENTS) else OTHERS


def measure(kafka: KafkaCluster, who: Contender, group: str) -> dict[str, float]:
    """CPU nanoseconds a record, by `PARTS`, from 5 % of the topic on. Blocks; raises `run.Failed`, `Unavailable`."""
    with run.scratch() as directory:
        setting = Setting(kafka.bootstrap, LOAD.topic, group, LOAD.partitions, LOAD.records, "nothing", 0, directory)
        with run.running(who, setting) as contender:
            contender.await_first(int(LOAD.records * run.WARM_SHARE))
            already, before = contender.total, spent(contender.process.pid, ours=who.ours)
            deadline = time.monotonic() + 30
            while (total := contender.total) < LOAD.records and time.monotonic() < deadline:
                time.sleep(0.01)
            after = spent(contender.process.pid, ours=who.ours)
    return {part: (after[part] - before[part]) / (total - already) for part in PARTS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.anatomy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    found: dict[Contender, list[dict[str, float]]] = {who: [] for who in COMPARED}
    with broker.KINDS[broker.SHIPPED].cluster() as kafka:
        fill(kafka, LOAD)
        for number in range(options.rounds):
            for who in COMPARED:
                found[who].append(measure(kafka, who, f"anatomy-{number}-{COMPARED.index(who)}"))
                print(who.title, {part: round(took) for part, took in found[who][-1].items()}, flush=True)
    print(text := page(found))
    if options.write:
        write_section(TITLE, text)


def page(found: dict[Contender, list[dict[str, float]]]) -> str:
    """The section of docs/benchmarks.md."""
    told = (
        f"Processor time in nanoseconds a record, {LOAD}, handlers with nothing to do; medians of "
        f"{len(found[COMPARED[0]])} rounds. Taking a record from librdkafka and making it a Python object is in the "
        f"main thread."
    )
    rows = [["client", *PARTS, "in all"], ["---", *["--:"] * (len(PARTS) + 1)]]
    for who, rounds in found.items():
        parts = [median(each[part] for each in rounds) for part in PARTS]
        whole = median(sum(each.values()) for each in rounds)
        rows.append([who.title, *(f"{took:,.0f}" if took >= 0.5 else "" for took in parts), f"{whole:,.0f}"])
    return "\n\n".join([conditions("make bench-anatomy", COMPARED), paragraph(told), rows_of(rows)])


if __name__ == "__main__":
    main()
