"""What jobs ask of an object store: requests by kind, a task, a round and a run. `make bench-store-calls`

    python -m bench.store_calls [--partitions N] [--rounds N] [--write]

A real Kafka and Spark, and S3 as moto speaks it, which logs what it is asked. Counts, and no times: they are the same
on every machine, but for a backfill's rounds, of which there are as many as its seconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.pages import write_section
from tests.kafka import KafkaCluster
from tests.object_store import bucket_served
from tests.system.pipeline.desk import Desk
from tests.system.pipeline.store_calls import KINDS, ROUND, RUN, TASK, Counted, StoreLog, counted
from tests.system.producing import produce

TITLE = "Requests to an object store"
BUCKET = "s3://runs"
RECORDS = 100
"""Of a range."""
_ABOUT = {
    "export": {TASK: "a task (a file)", ROUND: "a round", RUN: "the rest, once"},
    "backfill": {TASK: "a task", ROUND: "a count of progress", RUN: "the rest, once"},
    "reconcile": {TASK: "a file", RUN: "the rest, once"},
}


def measured(partitions: int, rounds: int, directory: Path) -> list[Counted]:
    """One export, backfill and reconciliation. Starts Kafka, Spark and the store."""
    topic, audit = "orders", directory / "audit"
    audit.mkdir()
    own = {"directory": f"{BUCKET}/{topic}-runs", "max_offsets_per_trigger": partitions * RECORDS}
    with KafkaCluster() as kafka, bucket_served(directory / "moto.log", "runs") as served:
        os.environ.update(served, KUNICORN_AUDIT_DIR=str(audit), SPARK_LOCAL_IP="127.0.0.1")
        kafka.create_topic(topic, partitions)
        produce(kafka.bootstrap, topic, partitions * rounds * RECORDS)
        desk = Desk(kafka, topic, directory, audit, {"http": {"enabled": False}, "pipeline": own})
        try:
            return counted(desk, StoreLog(directory / "moto.log", served), BUCKET)
        finally:
            desk.close()


def page(found: Sequence[Counted], partitions: int, rounds: int) -> str:
    """The section."""
    text = (
        f"`make bench-store-calls`: what a job asks of S3, played by moto, for {partitions} partitions and {rounds} "
        f"ranges of each, by kind. LIST is a GET of names. A POST removes an old manifest. *The rest* is the job's "
        f"beginning and its end: the store is tried from the driver and from executors, and names are listed. A "
        f"range of a backfill in which no record failed has no file; one with failures is one PUT. No figure is a time."
    )
    rows = ["| job | for | " + " | ".join(KINDS) + " |", "|---|---|" + "--:|" * len(KINDS)]
    for job in found:
        for about, name in _ABOUT[job.job].items():
            each = job.each(about)
            cells = (f"{each[kind]:.2g}" if kind in each else "" for kind in KINDS)
            rows.append(f"| {job.job} | {name} | {' | '.join(cells)} |")
    return "\n".join([text, "", *rows])


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.store_calls", description=__doc__)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true", help=f"into docs/benchmarks.md, section {TITLE}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = measured(options.partitions, options.rounds, Path(directory))
    text = page(found, options.partitions, options.rounds)
    print(text)
    if options.write:
        write_section(TITLE, text)


if __name__ == "__main__":
    main()
