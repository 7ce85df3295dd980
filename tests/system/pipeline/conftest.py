"""`kunicorn pipeline` on the common broker, in this process or as one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.kafka import KafkaCluster
from tests.system.pipeline.desk import Desk
from tests.waiting import wait_until


@pytest.fixture(scope="session")
def audits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For all tests of this process: its JVM keeps the environment that it was started with, over files of tests."""
    return tmp_path_factory.mktemp("audits")


@pytest.fixture(scope="module", autouse=True)
def audit(audits: Path) -> Iterator[Path]:
    """Where handlers write, by topic. For every file here: whichever comes first in a process starts its JVM, and
    handlers of those behind it find nowhere to write if that one did not know of it."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUNICORN_AUDIT_DIR", str(audits))
        environment.setenv("KUNICORN_AUDIT_MEMBER", "spark")
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield audits


@pytest.fixture(scope="module")
def one_context(audit: Path) -> Iterator[None]:
    """Spark's context stays from job to job of a file: each would start one, with Python processes of its own. What a
    job left running ends where the job would have stopped Spark, so that it reaches into no other test. That each job
    stops Spark is shown without a Spark (test_range_job), and by jobs in processes of their own."""
    stop = SparkSession.stop

    def end_jobs(spark: SparkSession) -> None:
        spark.sparkContext.cancelAllJobs()
        tracker = spark.sparkContext.statusTracker()
        wait_until(lambda: not tracker.getActiveJobsIds(), "the job's own jobs in Spark to end")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparkSession, "stop", end_jobs)
        yield
    if (there := SparkSession.getActiveSession()) is not None:
        stop(there)


@pytest.fixture
def desk_of(kafka: KafkaCluster, topic: str, tmp_path: Path, audit: Path) -> Iterator[Callable[..., Desk]]:
    """`desk_of(partitions, {"handler": {...}})`: creates the topic."""
    with ExitStack() as desks:

        def make(partitions: int, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Desk:
            kafka.create_topic(topic, partitions)
            desk = Desk(kafka, topic, tmp_path, audit, settings or {})
            desks.callback(desk.close)
            return desk

        yield make
