"""DataFrames over Spark Connect: a server of its own, and a client that has no Java."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from kunicorn.errors import ExitCode
from tests.kafka.ports import kept_port
from tests.system.pipeline.desk import QUICK_START, Desk, send
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 180.0
_ROOT = Path(__file__).parents[3]
_PATH = {"PYTHONPATH": os.pathsep.join([str(_ROOT / "service"), str(_ROOT)]), "PYSPARK_PYTHON": sys.executable}


@pytest.fixture
def remote(tmp_path: Path, audit: Path) -> Iterator[str]:
    """The URL of a Connect server; the wheel of PySpark has all of it."""
    port = kept_port()
    settings = {**QUICK_START, "spark.connect.grpc.binding.port": str(port), "spark.sql.codegen.wholeStage": "false"}
    options = [part for setting, value in settings.items() for part in ("--conf", f"{setting}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    log = tmp_path / "server.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [str(submit), "--master", "local[2]", "--class", SERVER, *options, "spark-internal"],
            env={**os.environ, **_PATH}, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=tmp_path,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(lambda: answers(port, server, log), "the Connect server", START_SECONDS, every=0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(60)


def answers(port: int, server: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether somebody listens; the server has to live."""
    assert server.poll() is None, log.read_text()
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_client_without_a_java_reads_handles_and_streams(
    desk_of: Callable[..., Desk], remote: str, tmp_path: Path
) -> None:
    desk = desk_of(2)
    send(desk.kafka.bootstrap, desk.topic, {0: ["b", "poison", "c"], 1: ["skip"]})
    client = subprocess.run(
        [sys.executable, "-m", "tests.system.pipeline.connected", str(desk.config), str(tmp_path)],
        env={**os.environ, **_PATH, "SPARK_REMOTE": remote, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
        capture_output=True, text=True, timeout=START_SECONDS, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert client.returncode == 0, client.stderr
    told = json.loads(client.stdout)
    assert told["client"] == "pyspark.sql.connect.session"
    assert told["records"] == [[0, 0, "b"], [0, 1, "poison"], [0, 2, "c"], [1, 0, "skip"]]
    assert told["outcomes"] == [
        [0, 0, 1, "done", None], [0, 1, 2, "dead_letter", "ValueError"], [0, 2, 3, "done", None],
        [1, 0, 1, "skip", "kunicorn.Skip"],
    ]  # fmt: skip
    assert told["ours"] == [
        [0, 0, 1, "done", None], [0, 1, 2, "dead_letter", "LookupError"], [0, 2, 3, "done", None],
        [1, 0, 1, "dead_letter", "LookupError"],
    ]  # fmt: skip
    assert told["streamed"] == [[0, 0], [0, 1], [0, 2], [1, 0]]


def test_a_job_whose_environment_connects_every_session_refuses_in_one_sentence(
    desk_of: Callable[..., Desk], remote: str
) -> None:
    desk = desk_of(1)
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"]})
    process = desk.start("backfill", "--from", "2h", "--master", "submitted", env={**_PATH, "SPARK_REMOTE": remote})
    said, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == ExitCode.CONFIGURATION, said
    assert "with --master submitted the session here is one of Spark Connect" in said
    assert "Traceback" not in said
