"""Jobs on every version of Spark that clusters have: `pip install --target build/spark/VERSION pyspark==VERSION`. A
test is a cell of docs/compatibility.md's table.
"""

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

from kunicorn.clients.session import cluster_session
from kunicorn.errors import ExitCode
from kunicorn.pipeline.group_offsets import commit
from kunicorn.positions import TopicPartition
from kunicorn.settings import load
from tests.system.pipeline.desk import MASTER, Desk, send, tiles
from tests.system.pipeline.versions import UNPACKED, VERSIONS, WITHOUT_FILTERS, WITHOUT_SOURCE, WITHOUT_STREAMS
from tests.system.producing import committed_offsets, end_offsets

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_ROOT = Path(__file__).parents[3]
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


def sent(desk: Desk) -> None:
    """As many records in each of two partitions; one of them becomes a letter."""
    values = {number: ["x" for _ in WHOLE] for number in range(2)}
    values[1][100] = "letter"
    desk.configure({"pipeline": {"dead_letters": "outcomes"}})
    send(desk.kafka.bootstrap, desk.topic, values)


def handled(desk: Desk, run: str) -> None:
    """The run has every record once, and the letter by its place."""
    rows = desk.outcomes(run)
    assert tiles(rows, {TopicPartition(desk.topic, number): WHOLE for number in range(2)})
    failed = [(row["partition"], row["offset"], row["status"]) for row in rows if row["status"] != "done"]
    assert failed == [(1, 100, "dead_letter")]


def test_a_backfill_handles_every_record(desk_of: Callable[..., Desk], version: str) -> None:
    desk = desk_of(2)
    sent(desk)
    said(desk, version, "backfill", "--master", MASTER, "--run", "all")
    handled(desk, "all")


def test_a_catch_up_brings_the_group_to_its_end(desk_of: Callable[..., Desk], version: str) -> None:
    desk = desk_of(2)
    sent(desk)
    with cluster_session(load(desk.config, {})) as session:
        commit(session, {TopicPartition(desk.topic, number): 0 for number in range(2)}, "")
    said(desk, version, "catch-up", "--master", MASTER, "--run", "over")
    handled(desk, "over")
    ends = end_offsets(desk.kafka.bootstrap, desk.topic, 2)
    assert committed_offsets(desk.kafka.bootstrap, desk.topic, desk.topic, 2) == ends


def test_a_frame_is_transformed_row_by_row(desk_of: Callable[..., Desk], version: str) -> None:
    desk = desk_of(2)
    assert read(desk, version, "transformed") == [
        [number, offset, "dead_letter" if (number, offset) == (1, 100) else "done"]
        for number in range(2)
        for offset in WHOLE
    ]


def test_an_export_has_every_record(desk_of: Callable[..., Desk], version: str) -> None:
    desk = desk_of(2)
    sent(desk)
    lake = desk.directory / "lake"
    said(desk, version, "export", str(lake), "--master", MASTER)
    found = [pq.ParquetFile(file).read(["partition", "offset"]).to_pylist() for file in lake.glob("date=*/*.parquet")]
    places = sorted((row["partition"], row["offset"]) for some in found for row in some)
    assert places == [(number, offset) for number in range(2) for offset in WHOLE]


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


def test_a_stream_handles_every_record_or_says_what_it_needs(desk_of: Callable[..., Desk], version: str) -> None:
    desk = desk_of(2)
    sent(desk)
    stream = ("stream", "--run", "live", "--starting-offsets", "earliest", "--available-now", "--master", MASTER)
    if version in WITHOUT_STREAMS:
        told = said(desk, version, *stream, code=ExitCode.CONFIGURATION)
        assert f"a stream needs Spark 4.2 or later, and PySpark is {version}" in told
    else:
        said(desk, version, *stream)
        handled(desk, "live")
