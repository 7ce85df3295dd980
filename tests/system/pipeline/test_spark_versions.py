"""Jobs on every version of Spark that clusters have: `pip install --target build/spark/VERSION pyspark==VERSION`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kunicorn.errors import ExitCode
from kunicorn.positions import TopicPartition
from tests.system.pipeline.desk import MASTER, Desk, send, tiles

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_ROOT = Path(__file__).parents[3]
UNPACKED = _ROOT / "build" / "spark"
VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
WITHOUT_SOURCE = ("3.5.9", "4.0.5", "4.1.4")
WHOLE = range(300)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if not (UNPACKED / found / "pyspark").is_dir():
        pytest.skip(f"{UNPACKED / found} is not there: pip install --target {UNPACKED / found} pyspark=={found}")
    return found


def said(desk: Desk, version: str, *command: str, code: ExitCode = ExitCode.CLEAN) -> str:
    """What the command says with that PySpark."""
    path = [UNPACKED / version, _ROOT / "service", _ROOT]
    process = desk.start(*command, env={"PYTHONPATH": os.pathsep.join(map(str, path))})
    told, _ = process.communicate(timeout=600)
    assert process.returncode == code, told
    return told


def test_a_backfill_and_an_export_have_every_record_and_a_stream_runs_or_says_what_it_needs(
    desk_of: Callable[..., Desk], version: str
) -> None:
    desk = desk_of(2)
    values = {number: [str(at) for at in WHOLE] for number in range(2)}
    values[1][100] = "letter"
    desk.configure({"pipeline": {"dead_letters": "outcomes"}})
    send(desk.kafka.bootstrap, desk.topic, values)
    said(desk, version, "backfill", "--master", MASTER, "--run", "all")
    rows = desk.outcomes("all")
    assert tiles(rows, {TopicPartition(desk.topic, number): WHOLE for number in range(2)})
    failed = [(row["partition"], row["offset"], row["status"]) for row in rows if row["status"] != "done"]
    assert failed == [(1, 100, "dead_letter")]
    lake = desk.directory / "lake"
    said(desk, version, "export", str(lake), "--master", MASTER)
    found = [pq.ParquetFile(file).read(["partition", "offset"]).to_pylist() for file in lake.glob("date=*/*.parquet")]
    places = sorted((row["partition"], row["offset"]) for some in found for row in some)
    assert places == [(number, offset) for number in range(2) for offset in WHOLE]
    stream = ("stream", "--run", "live", "--starting-offsets", "earliest", "--available-now", "--master", MASTER)
    if version in WITHOUT_SOURCE:
        told = said(desk, version, *stream, code=ExitCode.CONFIGURATION)
        assert f"a stream needs Spark 4.2 or later, and PySpark is {version}" in told
    else:
        said(desk, version, *stream)
        assert tiles(desk.outcomes("live"), {TopicPartition(desk.topic, number): WHOLE for number in range(2)})
