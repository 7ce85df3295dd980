"""Jobs on every version of Spark that clusters have: `pip install --target build/spark/VERSION pyspark==VERSION`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kunicorn.errors import ExitCode
from kunicorn.positions import TopicPartition
from tests.system.pipeline.desk import MASTER, Desk, send, tiles
from tests.system.pipeline.versions import VERSIONS

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_ROOT = Path(__file__).parents[3]
UNPACKED = _ROOT / "build" / "spark"
WITHOUT_SOURCE = ("3.5.9",)
WITHOUT_FILTERS = ("3.5.9", "4.0.5")
WITHOUT_STREAMS = ("3.5.9", "4.0.5", "4.1.4")
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


def read(desk: Desk, version: str, what: str) -> Any:
    """What the data source gives with that PySpark, or says."""
    path = [UNPACKED / version, _ROOT / "service", _ROOT]
    command = [sys.executable, "-m", "tests.system.pipeline.read_source", str(desk.config), what]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=600, check=False, cwd=desk.directory
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_data_source_has_what_the_versions_interface_has_and_says_what_it_needs(
    desk_of: Callable[..., Desk], version: str
) -> None:
    desk = desk_of(2)
    send(desk.kafka.bootstrap, desk.topic, {number: ["x"] * len(WHOLE) for number in range(2)})
    if version in WITHOUT_SOURCE:
        assert "DATA_SOURCE_NOT_FOUND" in read(desk, version, "all"), "it is not registered"
        return
    assert read(desk, version, "all") == {"0": [*WHOLE], "1": [*WHOLE]}
    filtered, stream = read(desk, version, "filtered"), read(desk, version, "stream")
    if version in WITHOUT_FILTERS:
        assert f"pushFilters needs Spark 4.1 or later, and PySpark is {version}" in filtered
    else:
        assert filtered == {"1": [*range(290, 300)]}
    if version in WITHOUT_STREAMS:
        assert f"a stream of the data source kunicorn needs Spark 4.2 or later, and PySpark is {version}" in stream
    else:
        assert stream == "a stream"


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
    if version in WITHOUT_STREAMS:
        told = said(desk, version, *stream, code=ExitCode.CONFIGURATION)
        assert f"a stream needs Spark 4.2 or later, and PySpark is {version}" in told
    else:
        said(desk, version, *stream)
        assert tiles(desk.outcomes("live"), {TopicPartition(desk.topic, number): WHOLE for number in range(2)})
