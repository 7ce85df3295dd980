"""The image's `pipeline` stage without Docker: its virtual environment built as the default stage's is, the Java that
the Dockerfile names unpacked beside it, and a backfill run from the two as the container would run it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.image import BARE, DOCKERFILE, build, container
from tests.kafka import KafkaCluster
from tests.system.members import group_settings, merged, toml
from tests.system.pipeline.desk import QUICK_START
from tests.system.producing import produce
from tests.waiting import wait_until

# Spark is four hundred megabytes.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces, other users and apt-get need root"),
]

HANDLER = """
def handle(record):
    print(f"handled {record.value.decode()}", flush=True)
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage's virtual environment."""
    return build(tmp_path_factory.mktemp("pipeline-image"), "pipeline")


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JAVA_HOME of the package that the Dockerfile installs, unpacked and not installed."""
    (package,) = re.findall(r"--no-install-recommends (openjdk\S+)", DOCKERFILE)
    home = tmp_path_factory.mktemp("java")
    _apt("update", cwd=home)
    _apt("install", "--simulate", "--no-install-recommends", package, cwd=home)
    _apt("-o", "APT::Sandbox::User=root", "download", package, cwd=home)
    subprocess.run(["dpkg", "-x", next(home.glob("*.deb")), home / "root"], check=True)
    (found,) = (each for each in (home / "root/usr/lib/jvm").glob("java-*-openjdk-*") if not each.is_symlink())
    for link in (each for each in found.rglob("*") if each.is_symlink()):
        # Debian keeps Java's settings in /etc, where nothing of this package is.
        if (target := link.readlink()).is_relative_to("/etc"):
            link.unlink()
            link.symlink_to(home / "root" / target.relative_to("/"))
    return found


def _apt(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(["apt-get", "-q", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_java_of_the_image_runs_and_is_one_that_spark_takes(java: Path) -> None:
    said = subprocess.run([java / "bin/java", "-version"], env=BARE, capture_output=True, text=True, check=True).stderr
    assert re.search(r'version "17\.', said), said


def test_a_backfill_in_its_container_handles_everything_and_leaves_an_outcome_of_each_record(
    image: Path, java: Path, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, 200, value=b"x")
    release = image / "release"
    release.mkdir()
    release.chmod(0o755)
    (release / "shop.py").write_text(HANDLER)
    pipeline = {"pipeline": {"directory": "/tmp/runs", "spark": QUICK_START}}
    config = release / "config.toml"
    config.write_text(toml(merged(group_settings(kafka.bootstrap, [topic], topic, "shop:handle"), pipeline)))
    given = {"PYTHONPATH": str(release), "JAVA_HOME": str(java)}
    command = ("pipeline", "backfill", "--config", str(config), "--master", "local[2]", "--from", "2h", "--run", "one")
    unpacked = java.parents[3]
    with container(image, *command, cwd=release, env=given, stage="pipeline", brought=[unpacked]) as (pid, log):
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the backfill to end", 240, every=0.5)
    said = log.read_text()
    assert re.search(r"^handled\s+200 records", said, flags=re.MULTILINE), said[-3000:]
    assert "Read-only" not in said
