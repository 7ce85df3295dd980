"""A driver whose JVM has died says so: real sessions of PySpark's, on a gateway at whose port nobody listens."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kunicorn.errors import ConfigError
from kunicorn.pipeline import spark, stream
from kunicorn.pipeline.metrics_port import Exposed
from kunicorn.pipeline.range_job import Stop
from kunicorn.pipeline.spark import Job, JobFailed, stopped_behind
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.positions import OffsetRange

WHOLE = OffsetRange("orders", 0, 0, 9)


class Session(SparkSession):
    """Was begun while its JVM lived: the settings were told then."""

    def __init__(self, java: Any) -> None:
        self._sc = Context(java)


class Context(SparkContext):
    def __init__(self, java: Any) -> None:
        self._jsc = java
        self._accumulatorServer: Any = None

    def getConf(self) -> Any:
        return {"spark.task.maxFailures": "4"}


class Frame:
    """A query: to be collected it has to be asked for."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def mapInArrow(self, *_: object) -> Frame:
        return self

    def collect(self) -> Any:
        return self._java.collectToPython()


@pytest.fixture
def java() -> Any:
    """Any object of a JVM that is gone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gateway = ClientServer(JavaParameters(port=port), PythonParameters(port=0, eager_load=False))
    return JavaObject("o1", gateway._gateway_client)


def test_a_job_underway_ends_with_6_and_the_reason(java: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(java)
    monkeypatch.setattr(spark, "rows_frame", lambda *_: Frame(java))
    monkeypatch.setattr(Job, "cores", lambda job: 1)
    task: Any = None
    gone = pytest.raises(JobFailed, match=r"Spark's JVM does not answer any more.*spark\.driver\.memory")
    with gone, stopped_behind(session):
        job = Job(session, SettingsFile("", ""))
        monkeypatch.setattr(Context, "getConf", JavaObject("o2", java._gateway_client).getConf)
        job.submit([WHOLE], task, Directory(str(tmp_path)))
        job.ended(60)


def test_whatever_the_driver_asks_then_ends_the_job_so(java: Any) -> None:
    session = Session(java)
    with pytest.raises(JobFailed, match="does not answer any more"), stopped_behind(session):
        Job(session, SettingsFile("", "")).room()


def test_a_stream_ends_so_too(java: Any, tmp_path: Path) -> None:
    settings: Any = None
    exposed: Exposed | Any = None
    batches = stream.Batches(settings, Directory(str(tmp_path / "all")), Stop(), exposed, print)
    with pytest.raises(JobFailed, match="does not answer any more"), stopped_behind(Session(java)):
        stream._attend(StreamingQuery(java), batches, Stop(), 4)


def test_what_has_ended_the_job_is_told_and_not_that_nothing_can_be_stopped(java: Any) -> None:
    with pytest.raises(ConfigError, match="another driver"), stopped_behind(Session(java)):
        raise ConfigError("another driver")
