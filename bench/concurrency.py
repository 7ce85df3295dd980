"""Several records in hand: how near a worker comes to what handlers that wait allow. `make bench-concurrency`

    python -m bench.concurrency [--rounds N]

One worker, one partition, ordering by key, handlers that wait 5 ms: with n records in hand no more than n / 5 ms can be
handled. The goal is nine tenths of that, for threads and for asyncio tasks. Beside it stands what Python alone comes to
in the same minute: as many threads, or tasks, that only wait. Where that misses the goal, so does any worker.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import uvloop
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.quick import start_worker
from bench.quick_handlers import WAIT_SECONDS
from tests.kafka import KafkaCluster
from tests.system.worker.rig import configuration

KEYS = 5000
SECONDS = 3.0
GOAL = 0.9
FORMS = {"threads": "bench.quick_handlers:wait", "tasks": "bench.quick_handlers:wait_async"}


def fill(bootstrap: str, topic: str, records: int) -> None:
    """One partition, and so many keys that they never hold each other up for long."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # Named: as a temporary it would be gone before the answer.
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(records):
        producer.produce(topic, b"v" * 200, b"%d" % (number % KEYS))
    if producer.flush(60):
        raise SystemExit(f"{bootstrap} did not take the records for {topic} within a minute")


def worker_rate(bootstrap: str, topic: str, entrypoint: str, in_hand: int, records: int) -> float:
    """Records a second, from the first one handled on."""
    configure = configuration(bootstrap, entrypoint, [topic], ordering="key", concurrency=in_hand, log_level="error")
    with ExitStack() as stack:
        worker = start_worker(stack, configure)
        worker.start(topic, {0: 0})
        while not (already := worker.slot(1).handled):
            time.sleep(0.001)
        began = time.perf_counter()
        while (handled := worker.slot(1).handled) < records:
            time.sleep(0.005)
        return (handled - already) / (time.perf_counter() - began)


def threads_alone(in_hand: int) -> float:
    """Waits a second of so many threads."""
    counts = [0] * in_hand
    until = time.perf_counter() + 1.0

    def wait(index: int) -> None:
        while time.perf_counter() < until:
            time.sleep(WAIT_SECONDS)
            counts[index] += 1

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(in_hand)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(sum(counts))


def tasks_alone(in_hand: int) -> float:
    """Waits a second of so many tasks."""
    count = 0

    async def wait(until: float) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await asyncio.sleep(WAIT_SECONDS)
            count += 1

    async def every() -> None:
        until = time.perf_counter() + 1.0
        await asyncio.gather(*(wait(until) for _ in range(in_hand)))

    uvloop.run(every())
    return float(count)


ALONE: dict[str, Callable[[int], float]] = {"threads": threads_alone, "tasks": tasks_alone}


def main() -> int:
    """Measure, print, and exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.concurrency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    table = Table("in hand", "form", "records/s", "of n / 5 ms", "only waiting", "of that", "goal")
    good = True
    with KafkaCluster() as kafka:
        for in_hand in (10, 100):
            limit = in_hand / WAIT_SECONDS
            records, topic = round(limit * SECONDS), f"bench-{in_hand}"
            fill(kafka.bootstrap, topic, records)
            for form, entrypoint in FORMS.items():
                found, alone = [], []
                for _ in range(options.rounds):
                    alone.append(ALONE[form](in_hand))
                    found.append(worker_rate(kafka.bootstrap, topic, entrypoint, in_hand, records))
                rate, waiting = median(found), median(alone)
                good &= rate >= GOAL * limit
                ratios = f"{rate / limit:.2f}", f"{waiting:,.0f}", f"{rate / waiting:.2f}"
                table.add_row(str(in_hand), form, f"{rate:,.0f}", *ratios, f"≥ {GOAL}")
    Console(width=110).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
