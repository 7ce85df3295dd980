"""How many tasks can run at once, on a real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.pipeline.spark import Job, open_session
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.pipeline.tasks.limits import limits_of
from tests.system.members import toml
from tests.system.pipeline.desk import QUICK_START
from tests.unit.settings.files import LEAST, loaded


@pytest.mark.parametrize(
    ("own", "cores"),
    [
        ({"spark.default.parallelism": "1000"}, 4),
        ({"spark.default.parallelism": "1"}, 4),
        ({"spark.task.cpus": "2"}, 2),
    ],
)
def test_tasks_at_once_are_those_that_the_executors_run_whatever_clusters_set_as_parallelism(
    tmp_path: Path, own: dict[str, str], cores: int
) -> None:
    # A JVM keeps what it was started with, over the sessions of other tests.
    open_session(loaded(tmp_path, LEAST + toml({"pipeline": {"spark": QUICK_START}})), "local[4]", "first").stop()
    pipeline = {"max_records_per_second": 5000, "spark": {**QUICK_START, **own}}
    settings = loaded(tmp_path, LEAST + toml({"pipeline": pipeline}))
    spark = open_session(settings, "local[4]", "cores")
    try:
        job = Job(spark, SettingsFile("", ""))
        assert job.cores() == cores
        assert job.room() == 8
        assert limits_of(settings.pipeline, 10_000, job.cores()).records_per_second == 5000 / cores
    finally:
        spark.stop()
