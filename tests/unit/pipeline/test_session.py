"""What Spark needs, and what it is told."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import Queue

import pytest
from py4j.protocol import Py4JJavaError

from kunicorn.errors import ConfigError
from kunicorn.pipeline import spark
from kunicorn.pipeline.report import said_by_task
from kunicorn.pipeline.spark import check_installed, open_session, patient, spark_settings, told_without_executors
from kunicorn.settings import PipelineSettings
from tests.unit.settings.files import LEAST, loaded


def fake_java(directory: Path, says: str, code: int = 0) -> str:
    home = directory / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    (home / "bin" / "java").chmod(0o755)
    return str(home)


def test_a_missing_java_is_one_message_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is none in PATH: install Java 17"):
        check_installed()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="bin/java cannot be run"):
        check_installed()


def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, 'openjdk version "11.0.2" 2019-01-15'))
    with pytest.raises(ConfigError, match=r'is openjdk version "11.0.2" 2019-01-15: install Java 17'):
        check_installed()


@pytest.mark.parametrize(
    ("spark", "fits"), [("3.5.9", ["1.8.0_402", "11.0.2", "17.0.1", "21"]), ("4.0.5", ["17.0.1", "21"])]
)
def test_spark_3_runs_on_the_javas_that_its_clusters_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: str, fits: list[str]
) -> None:
    monkeypatch.setattr("pyspark.__version__", spark)
    for java in ("1.7.0_80", "1.8.0_402", "11.0.2", "17.0.1", "21"):
        monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / java, f'openjdk version "{java}" 2024-01-16'))
        if java in fits:
            check_installed()
        else:
            with pytest.raises(ConfigError, match=r"Spark needs Java (8|17) or later"):
                check_installed()


def test_a_local_master_tries_tasks_again_as_a_cluster_does() -> None:
    assert [patient(master) for master in ("local", "local[*]", "local[2]", "local[2,9]", "k8s://x")] == [
        "local[1,4]", "local[*,4]", "local[2,4]", "local[2,9]", "k8s://x",
    ]  # fmt: skip


def test_a_job_refuses_a_server_of_spark_connect_as_its_master(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LEAST)
    with pytest.raises(ConfigError, match=r"--master sc://spark:15002 is a server of Spark Connect.*name the cluster"):
        open_session(settings, "sc://spark:15002", "run")


def test_no_secret_of_sparks_settings_is_an_argument_of_a_process_and_all_that_a_jvm_starts_by_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the keytab it logs in as it starts, and not later."""
    secrets = '"spark.hadoop.fs.s3a.secret.key" = "hunter2"\n"spark.hadoop.url" = "jdbc:x://me:hunter2@h"\n'
    plain = '"spark.driver.memory" = "3g"\n"spark.kerberos.keytab" = "/etc/shop.keytab"\n'
    settings = loaded(tmp_path, f"{LEAST}[pipeline.spark]\n{secrets}{plain}")
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\nexit 1\n')
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    monkeypatch.setattr(spark, "check_installed", lambda: None)
    with pytest.raises(ConfigError, match="Spark does not start with --master spark://spark:7077"):
        open_session(settings, "spark://spark:7077", "run")
    arguments = (tmp_path / "arguments").read_text()
    assert "spark.driver.memory=3g" in arguments
    assert "spark.kerberos.keytab=/etc/shop.keytab" in arguments
    assert "hunter2" not in arguments


class Refused(Py4JJavaError):  # type: ignore[misc]
    """As PySpark raises it where the JVM's own context does not begin."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: External scheduler cannot be instantiated\n\tat one\n"
            "Caused by: java.lang.reflect.InvocationTargetException\n\tat two\n"
            "Caused by: org.apache.spark.SparkException: Must specify the executor container image\n\t... 9 more\n"
        )


def test_a_context_that_does_not_begin_is_a_setting_that_is_wrong_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise Refused

    monkeypatch.setattr(spark, "check_installed", lambda: None)
    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", refused)
    with pytest.raises(ConfigError) as error:
        open_session(loaded(tmp_path, LEAST), "k8s://https://kubernetes.default.svc", "run")
    assert str(error.value) == (
        "Spark does not start with --master k8s://https://kubernetes.default.svc: "
        "org.apache.spark.SparkException: External scheduler cannot be instantiated; "
        "org.apache.spark.SparkException: Must specify the executor container image"
    )


def test_settings_of_the_users_go_to_spark_but_for_what_promises_rest_on() -> None:
    pipeline = PipelineSettings(spark={"spark.ui.port": "4141"})
    told = spark_settings(pipeline, "local[*]", "run")
    assert (told["spark.ui.port"], told["spark.speculation"], told["spark.app.name"]) == ("4141", "false", "run")


def test_a_jvm_beside_its_tasks_is_a_small_one_and_a_clusters_is_left_alone() -> None:
    name = "spark.driver.extraJavaOptions"
    assert "UseSerialGC" in spark_settings(PipelineSettings(), "local[2]", "run")[name]
    assert name not in spark_settings(PipelineSettings(), "local-cluster[2,1,1024]", "run")
    own = PipelineSettings(spark={name: "-Xmx8g"})
    assert spark_settings(own, "local", "run")[name] == "-Xmx8g"


def test_a_tasks_own_message_is_found_in_sparks_account() -> None:
    account = """An exception was thrown from the Python worker: Traceback (most recent call last):
  File "tasks.py", line 1
kunicorn.clients.range_reader.RangeUnreadable: orders-0 cannot be read: topic is gone

\tat org.apache.spark.api.python.BasePythonRunner"""
    assert said_by_task(account) == "orders-0 cannot be read: topic is gone"
    assert "a Python process died" in said_by_task("Python worker exited unexpectedly (crashed)")
    assert said_by_task("[SOME_ERROR] of Spark's own\nmore") == "[SOME_ERROR] of Spark's own"


def test_a_driver_that_waits_for_its_first_executors_says_so_until_they_come() -> None:
    said: Queue[str] = Queue()
    with told_without_executors(said.put, every=0.01):
        texts = [said.get(timeout=60) for _ in range(2)]
    assert all("no executor has done anything" in text and "their image can be pulled" in text for text in texts)
    assert not [thread for thread in threading.enumerate() if thread.name == "executors"], "it has come to its end"
