"""A Spark session for a job: what has to be there, and the settings that its promises rest on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kunicorn.allocator import library_of, with_library
from kunicorn.errors import ConfigError
from kunicorn.settings import PipelineSettings, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED = "submitted"
"""`--master` of a driver that spark-submit or an operator has started: the master is settled."""
_JAVA = 17
"""The oldest that Spark 4 runs on."""
_JAVA_REMEDY = (
    f"install Java {_JAVA} or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
)
_ATTEMPTS = 4
"""Tries of a task, as on a cluster; `local[*]` alone has one, and a broker's restart would end the run."""
_JAVA_SECONDS = 30.0

_SETTINGS: Mapping[str, str] = {
    # A range that two attempts handle at the same time is handled twice.
    "spark.speculation": "false",
    # The bar of the job itself would be painted over.
    "spark.ui.showConsoleProgress": "false",
    # What a job has to say it says itself; Spark's warnings are about its own inner life.
    "spark.log.level": "FATAL",
    # Times in the tables are UTC wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    # A round is one scan and one `mapInArrow`: Java made and compiled for it costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.metrics.namespace": "kunicorn",
    "spark.metrics.conf.*.sink.prometheusServlet.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
}

_LOCAL_SETTINGS: Mapping[str, str] = {
    # The JVM shares the machine with the tasks, and no record passes through it: the optimising compiler alone took
    # half a second of each round's processors.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def check_installed() -> None:
    """Whether PySpark and a Java are here. Raises `ConfigError` with what to install. Runs `java -version`."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'kunicorn[pipeline]'") from error
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs a Java, and there is none in PATH: {_JAVA_REMEDY}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Spark needs a Java, and {java} cannot be run ({error}): {_JAVA_REMEDY}") from error
    version = re.search(r'version "(\d+)', told.stderr + told.stdout)
    if told.returncode != 0 or version is None or int(version[1]) < _JAVA:
        found = (told.stderr or told.stdout).strip().partition("\n")[0]
        raise ConfigError(f"Spark needs Java {_JAVA} or later, and {java} is {found or 'silent'}: {_JAVA_REMEDY}")


def spark_settings(pipeline: PipelineSettings, master: str, name: str) -> dict[str, str]:
    """All that a session is made with. `master` as Spark knows it. Pure."""
    return {
        **_SETTINGS,
        **(_LOCAL_SETTINGS if master.startswith("local[") or master == "local" else {}),
        **pipeline.spark,
        "spark.speculation": "false",
        **({} if master == SUBMITTED else {"spark.master": patient(master)}),
        "spark.app.name": name,
    }


def patient(master: str) -> str:
    """A local master whose tasks are tried again, as a cluster's are. Pure."""
    if master == "local":
        return f"local[1,{_ATTEMPTS}]"
    return re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{_ATTEMPTS}]", master)


def open_session(settings: Settings, master: str, name: str) -> SparkSession:
    """Start Spark, or connect to a cluster's, and register the source. Blocks for seconds. Raises `ConfigError`."""
    check_installed()
    if master.startswith("sc:"):
        raise ConfigError(
            f"--master {master} is a server of Spark Connect, where jobs cannot see their tasks: name the cluster "
            f"itself (spark://, k8s://, yarn), or use the source and transform from a connected session"
        )
    if master.startswith("local"):
        _share_python()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from kunicorn.pipeline.source import KunicornDataSource

    builder = SparkSession.builder
    for setting, value in spark_settings(settings.pipeline, master, name).items():
        builder = builder.config(setting, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise ConfigError(f"Spark does not start with --master {master}: {error}") from error
    # Of Spark's Python processes alone: `spark.executorEnv` would be the JVMs', too.
    spark.sparkContext.environment.update(with_library({}, library_of(settings.workers.allocator, os.environ)))
    spark.dataSource.register(KunicornDataSource)
    return spark


def _share_python() -> None:
    """Spark's Python processes on this machine are this Python, and find the modules that this process finds.

    Left alone, they take the first `python3` in PATH, and know nothing of this process's search path.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    entries = [os.getcwd(), *filter(None, sys.path)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))
