"""A round is counted while its tasks run, on a real Spark."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

import pytest

from kunicorn.pipeline.spark import Job, open_session
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import settings_file
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import OffsetRange
from kunicorn.settings import load
from tests.kafka.ports import kept_port
from tests.system.pipeline.desk import MASTER, Desk
from tests.system.producing import produce
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

RECORDS = 400
START_SECONDS = 480.0


def metrics(port: int) -> dict[str, float]:
    """What the driver tells now; nothing while it does not listen yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            told = answer.read().decode()
    except OSError:
        return {}
    return {name: float(value) for name, value in re.findall(r"^kunicorn_pipeline_(\w+){[^}]*} (\S+)$", told, re.M)}


def test_offsets_left_fall_while_the_first_round_is_underway(desk_of: Callable[..., Desk]) -> None:
    port = kept_port()
    desk = desk_of(2, {"http": {"host": "127.0.0.1", "port": port}})
    produce(desk.kafka.bootstrap, desk.topic, RECORDS)
    process = desk.start("backfill", "--master", MASTER, env={"KUNICORN_HANDLER_MS": "100"})
    seen = wait_until(
        lambda: now if 0 < (now := metrics(port)).get("offsets_left", 0) < RECORDS else None,
        "some of the round to be handled",
        START_SECONDS,
        every=0.1,
    )
    assert seen["saves"] == 0
    out, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, out
    assert f"handled       {RECORDS} records in " in out


def test_where_no_file_of_a_task_is_in_sight_what_is_through_is_counted(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(2)
    for number in range(2):
        produce(desk.kafka.bootstrap, desk.topic, RECORDS // 2, partition=number)
    settings = load(desk.config, {})
    ranges = [OffsetRange(desk.topic, number, 0, RECORDS // 2) for number in range(2)]
    spark = open_session(settings, MASTER, "counted")
    try:
        file = settings_file(desk.config, settings)
        job = Job(spark, file)
        out_of_sight = Directory(str(desk.directory / "elsewhere"))
        job.submit(ranges, HandleRanges(file, Directory(str(desk.runs / "counted"))), out_of_sight)
        assert sum(summary.records for summary in job.ended(START_SECONDS)) == RECORDS
    finally:
        spark.stop()
