"""The archive of docs/clusters.md, made by the page's own commands, on clusters that have nothing of kunicorn: YARN in
both modes, and Spark's own. Brokers ask for a password, which is in a file beside each process.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from kunicorn import __version__
from kunicorn.positions import TopicPartition
from tests.kafka.ports import kept_ports
from tests.kafka.secured import PASSWORDS, SecuredCluster
from tests.markdown import blocks
from tests.system.members import group_settings, merged, toml
from tests.system.pipeline.desk import outcome_rows, tiles
from tests.system.pipeline.yarn import attempts, yarn_served
from tests.system.procfs import running
from tests.system.producing import produce
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[3]
SPARK = Path(pyspark.__file__).parent
PAGE = [block.text for block in blocks(ROOT / "docs" / "clusters.md")]
RECORDS, PARTITIONS = 400, 2
KILLED_AT = 40
TOPIC, USER = "archived", "carol"
WITHIN = 900.0
"""Seconds for a job: the archive of more than a hundred megabytes is unpacked for the driver and each executor, and
each starts a Java."""
BARE = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
"""Of this process's environment nothing that leads to the checkout."""
HANDLER = """
import os, sys, time
from pathlib import Path

_options = {}

def handle(record):
    time.sleep(0.02)
    with (Path(_options["where"]) / str(os.getpid())).open("a") as told:
        told.write(f"{record.partition} {record.offset} {sys.prefix}\\n")

handle.setup = _options.update
"""


def command(begins: str) -> list[str]:
    """Words of the page's command."""
    (text,) = (each for each in PAGE if each.startswith(begins))
    return shlex.split(text.replace("\\\n", " "))


@dataclass(frozen=True)
class Archive:
    """What the page's commands have made, and where its handler and its jobs leave what they have done."""

    place: Path
    handled: Path
    runs: Path

    @contextmanager
    def submitted(self, run: str, environment: Mapping[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
        """The page's `spark-submit` on YARN with other options behind its own, in a small size, from the directory in
        which the archive was made. A directory stands for HDFS.
        """
        words = command("spark-submit --master yarn")
        entry = next(at for at, word in enumerate(words) if word.endswith("__main__.py"))
        small = {
            "8": "2",
            "2": "1",
            "1g": "512m",
            "spark.executor.memoryOverhead=1g": "spark.executor.memoryOverhead=512m",
        }
        here = {
            "spark-submit": f"{SPARK}/bin/spark-submit",
            "hdfs:///apps/orders/environment.tar.gz#environment": f"file://{self.place}/environment.tar.gz#environment",
            "hdfs:///user/orders/sasl-password": f"file://{self.place}/sasl-password",
            "2026-01-01T00:00:00Z": "2h",
            "replay-2026": run,
        }
        words = [small.get(each, here.get(each, each)) for each in [*words[:entry], *options, *words[entry:]]]
        process = subprocess.Popen(
            words,
            cwd=self.place,
            env={**BARE, **environment, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)

    def told(self) -> list[tuple[int, int, str]]:
        """Partition, offset and Python of each call of the handler."""
        lines = [line for file in self.handled.iterdir() for line in file.read_text().splitlines(keepends=True)]
        words = [line.split() for line in lines if line.endswith("\n")]
        return [(int(partition), int(offset), prefix) for partition, offset, prefix in words]

    def has_all(self, run: str) -> bool:
        """Whether the run's table has every offset once, and the handler was called with each."""
        whole = {TopicPartition(TOPIC, number): range(RECORDS // PARTITIONS) for number in range(PARTITIONS)}
        called = {(partition, offset) for partition, offset, _ in self.told()}
        return tiles(outcome_rows(self.runs, run), whole) and len(called) == RECORDS

    def forget(self) -> None:
        """The next run's calls are counted by themselves."""
        for file in self.handled.iterdir():
            file.unlink()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """One that asks for a password, over TLS."""
    with SecuredCluster(tmp_path_factory.mktemp("brokers")) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.allow(USER, (ResourceType.TOPIC, TOPIC, AclOperation.READ))
        for number in range(PARTITIONS):
            produce(cluster.bootstrap, TOPIC, RECORDS // PARTITIONS, partition=number)
        yield cluster


@pytest.fixture(scope="module")
def archive(brokers: SecuredCluster, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Made by the page's commands: this Python, the lock of the Spark that is installed, and no HDFS."""
    place = tmp_path_factory.mktemp("archive")
    made = Archive(place, place / "handled", place / "runs")
    made.handled.mkdir()
    kafka = {
        "security_protocol": "SASL_SSL",
        "ssl_ca_location": str(brokers.certificates.ca),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": USER,
        # As on the page: relative to where a process runs.
        "sasl_password_file": "sasl-password",
    }
    settings = merged(
        group_settings(brokers.server("SECURE"), [TOPIC], TOPIC, "shop.handlers:handle"),
        {"kafka": kafka, "handler": {"options": {"where": str(made.handled)}}},
        {"pipeline": {"directory": str(made.runs), "max_offsets_per_trigger": 40}, "http": {"port": 0}},
    )
    (place / "config.toml").write_text(toml(settings))
    (place / "sasl-password").write_text(PASSWORDS[USER])
    (place / "sasl-password").chmod(0o400)
    wheel_of_shop(place)
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(place), str(ROOT)]
    subprocess.run(build, cwd=place, check=True, capture_output=True, timeout=600)
    (text,) = (each for each in PAGE if each.startswith("python3.11 -m venv environment"))
    assert f"./kunicorn-{__version__}-py3-none-any.whl" in text
    script = "\n".join(line for line in text.splitlines() if not line.startswith("hdfs "))
    script = script.replace("python3.11", sys.executable)
    script = script.replace("requirements-pipeline-3.5.lock", str(ROOT / "requirements-pipeline.lock"))
    done = subprocess.run(
        ["bash", "-euc", script], cwd=place, env=BARE, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def wheel_of_shop(directory: Path) -> None:
    """The handler's package, as `pip wheel` would make it."""
    about = "shop-1.0.dist-info"
    with zipfile.ZipFile(directory / "shop-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("shop/__init__.py", "")
        wheel.writestr("shop/handlers.py", HANDLER)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        names = ("shop/__init__.py", "shop/handlers.py", f"{about}/METADATA", f"{about}/WHEEL")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in [*names, f"{about}/RECORD"]))


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A YARN of one node."""
    with yarn_served(tmp_path_factory.mktemp("yarn")) as environment:
        yield environment


ON_YARN = ("--driver-memory", "512m", "--conf", f"spark.yarn.jars=local:{SPARK}/jars/*")
"""Besides what the page says: Spark's jars are those of this machine, instead of 300 MB in each container."""


@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_yarn_runs_the_handler_by_the_python_of_the_archive(
    mode: str, archive: Archive, yarn: Mapping[str, str]
) -> None:
    archive.forget()
    with archive.submitted(mode, yarn, *ON_YARN, "--deploy-mode", mode) as process:
        said, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, said
    assert archive.has_all(mode)
    local = Path(yarn["YARN_CONF_DIR"]).parent / "local"
    assert {Path(prefix).is_relative_to(local) for _, _, prefix in archive.told()} == {True}, "unpacked by YARN"
    assert PASSWORDS[USER] not in said


def test_a_driver_that_is_killed_on_yarn_goes_on_in_the_second_attempt(
    archive: Archive, yarn: Mapping[str, str]
) -> None:
    archive.forget()
    with archive.submitted("killed", yarn, *ON_YARN) as process:
        wait_until(lambda: len(archive.told()) >= KILLED_AT, "handled records", WITHIN, every=0.05)
        os.kill(driver_of("killed"), signal.SIGKILL)
        said, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, said
    assert archive.has_all("killed")
    assert attempts(yarn) == 2
    assert len(archive.told()) < 2 * RECORDS, "it went on, and did not begin again"


def driver_of(run: str) -> int:
    """The pid of the Python that is the driver of that run, in a container."""
    (driver,) = running(f"--begin-or-resume {run} ", "environment/bin/python")
    return driver.pid


def test_a_cluster_of_sparks_own_runs_it_on_several_executors(archive: Archive, tmp_path: Path) -> None:
    archive.forget()
    with standalone(tmp_path) as master:
        own = ("--master", master, "--deploy-mode", "client", "--conf", "spark.executor.instances=2")
        with archive.submitted("standalone", {}, *own) as process:
            said, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == 0, said
    assert archive.has_all("standalone")
    places = {prefix for _, _, prefix in archive.told()}
    assert {Path(each).is_relative_to(tmp_path) for each in places} == {True}, "unpacked by the workers"
    assert len(places) == 2, "two executors"


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Spark's own cluster while the block runs, a master and two workers of a core each: the master's address."""
    port, web, *webs = kept_ports(4)
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    starts: list[tuple[str, list[str]]] = [
        ("master", [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)])
    ]
    for number, each in enumerate(webs):
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", str(each)]
        work = ["--work-dir", str(directory / f"worker-{number}")]
        starts.append((f"worker-{number}", [f"{deploy}.worker.Worker", *options, *work, master]))
    with ExitStack() as started:
        for name, words in starts:
            log = started.enter_context((directory / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [f"{SPARK}/bin/spark-class", *words],
                stdout=log, stderr=log, env={**BARE, "SPARK_DAEMON_MEMORY": "256m"}, start_new_session=True,
            )  # fmt: skip
            started.callback(process.wait, 60)
            started.callback(process.terminate)
        said = directory / "master.log"
        wait_until(lambda: said.read_text().count("Registering worker") == 2, "two workers", 180, every=0.2)
        yield master
