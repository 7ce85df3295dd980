"""Manifests and tables in an object store: S3 as a server of its own process speaks it."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kunicorn.errors import ConfigError
from kunicorn.pipeline.state import Runs, RunState
from kunicorn.pipeline.storage import Directory
from tests.system.members import free_port
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a bucket; Arrow finds server and rights in the environment, as in production."""
    server = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", server)
        environment.setenv("AWS_ACCESS_KEY_ID", "x")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "x")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("no_proxy", f"127.0.0.1,{os.environ.get('no_proxy', '')}")
        try:
            wait_until(lambda: _made(f"{server}/runs"), "the server", 60, every=0.1)
            yield "s3://runs"
        finally:
            process.kill()
            process.wait(10)


def _made(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5):
            return True
    except urllib.error.URLError:
        return False


def test_a_run_begins_and_is_found_again(bucket: str) -> None:
    runs = Runs(f"{bucket}/pipeline")
    first = runs.start("backfill", "a:b", "[]", RunState(()), "one")
    assert runs.read("one") == first
    assert [each.id for each in runs.all()] == ["one"]


def test_a_table_is_there_whole_or_not_at_all_and_replaced_when_written_again(bucket: str) -> None:
    place, rows = Directory(f"{bucket}/outcomes"), pa.table({"offset": [1, 2]})
    for some in (rows.slice(0, 1), rows):
        with place.writing("orders/0/a.parquet") as file:
            pq.write_table(some, file)
    assert place.names(".parquet") == ["orders/0/a.parquet"]
    assert place.table("orders/0/a.parquet").equals(rows)
    with pytest.raises(ZeroDivisionError), place.writing("orders/0/b.parquet"):
        1 / 0  # noqa: B018
    assert place.read("orders/0/b.parquet") is None, "a file that was begun is no file"


def test_a_bucket_that_is_not_there_is_an_error_that_names_it(bucket: str) -> None:
    with pytest.raises(ConfigError, match="s3://nowhere/x cannot be used"):
        Directory("s3://nowhere/x").write("a", b"")
