"""Middlewares around each way of calling a handler, in a real service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system.members import Members
from tests.system.producing import produce

MODULE = """
import asyncio
import os

NOTED = os.open("noted", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(text):
    os.write(NOTED, (text + "\\n").encode())


class Noting:
    def setup(self, worker, options):
        note("set up")

    def __call__(self, call):
        yield
        for record in call.records:
            note(f"around {call.partition} {record.offset} {type(call.outcome).__name__}")

    def teardown(self):
        note("torn down")


def handle(record):
    note(f"handle {record.partition} {record.offset}")


def handle_batch(batch):
    for record in batch:
        handle(record)


async def handle_async(record):
    await asyncio.sleep(0)
    handle(record)


def handle_arrow(batch):
    for partition, offset in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist()):
        note(f"handle {partition} {offset}")
"""
WAYS: dict[str, dict[str, Any]] = {
    "records": {"entrypoint": "noting:handle"},
    "batches": {"entrypoint": "noting:handle_batch", "mode": "batch"},
    "columns": {"entrypoint": "noting:handle_arrow", "mode": "arrow"},
    "threads": {"entrypoint": "noting:handle", "concurrency": 8, "ordering": "none"},
    "tasks": {"entrypoint": "noting:handle_async"},
}
IN_CI = {"records", "threads"}
"""Middlewares are one context around a call, in the loop's thread and in others: `test_middleware.py` has each form."""
RECORDS = 200


@pytest.mark.parametrize("way", rest_long(WAYS, IN_CI))
def test_every_record_is_handled_within_its_middleware_and_workers_set_it_up_and_tear_it_down(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path, way: str
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, RECORDS)
    (tmp_path / "noting.py").write_text(MODULE)
    handler = {"handler": {**WAYS[way], "middlewares": ["noting:Noting"]}}
    job = members_of(kafka.bootstrap, topic, workers=2, settings=handler).start(options=["--until-end"])
    assert job.exit_code() == 0
    noted = (tmp_path / "noted").read_text().splitlines()
    handled = sorted(line.removeprefix("handle ") for line in noted if line.startswith("handle"))
    around = sorted(line.removeprefix("around ").removesuffix(" Done") for line in noted if line.startswith("around"))
    assert len(handled) == RECORDS
    assert around == handled
    # All may be done by one worker before the other one, on a busy machine, has started.
    assert 1 <= noted.count("torn down") <= noted.count("set up") <= 2
