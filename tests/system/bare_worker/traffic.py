"""Records for workers to handle, and handlers that leave traces in files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer

HANDLERS = '''
import asyncio
import os
import pathlib
import subprocess
import sys
import time

from tests.system.bare_worker.noting import HERE, note


def see(record):
    note(f"{record.partition}@{record.offset}={record.value.decode()}")


def see_everything(record):
    note(repr((record.topic, record.partition, record.offset, record.timestamp, record.key, record.value,
               record.headers, record.leader_epoch)))


def see_childs_signals(record):
    code = "import signal; print(*(signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGHUP)))"
    note(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())


def see_preloaded(record):
    child = subprocess.run(["cat", "/proc/self/maps"], capture_output=True, text=True).stdout
    mine = pathlib.Path("/proc/self/maps").read_text()
    note(f"mine {'jemalloc' in mine}, a program's {'jemalloc' in child}, {os.environ.get('LD_PRELOAD')}")


def see_batch(records):
    note(f"{records[0].partition}@{records[0].offset}+{len(records)}")


def see_columns(batch):
    note(f"{batch['partition'][0]}@{batch['offset'][0]}+{batch.num_rows}")


async def see_async(record):
    await asyncio.sleep(0)
    see(record)


def wait_when_told(record):
    """`wait` waits for the file "go" and counts as handled only after it."""
    if record.value == b"wait":
        note(f"{record.partition}@{record.offset} waits")
        try:
            while not (HERE / "go").exists():
                time.sleep(0.01)
        finally:
            note(f"{record.partition}@{record.offset} left")
    see(record)


async def wait_async(record):
    if record.value == b"wait":
        note(f"{record.partition}@{record.offset} waits")
        try:
            while not (HERE / "go").exists():
                await asyncio.sleep(30)
        finally:
            note(f"{record.partition}@{record.offset} left")
    see(record)


def spin(record):
    note("spins")
    while True:
        pass


'''


def produce(bootstrap: str, topic: str, values: Iterable[str], partition: int = 0) -> None:
    """Write these to one partition, in order, and wait for the broker's word."""
    # Else a first batch that a new leader is not ready for is sent again behind the second one.
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(60) == 0


def seen(directory: Path) -> list[str]:
    """What the handlers noted so far."""
    path = directory / "seen"
    return [line.rstrip(" ") for line in path.read_text().splitlines()] if path.exists() else []
