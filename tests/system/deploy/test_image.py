"""The image without Docker: its Dockerfile linted, its build run in a bare environment, and what comes out run as the
container would be: PID 1 of its own namespace, another user, a root file system that nobody can write to.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.charts import ROOT, template
from tests.deploy.image import BARE, DOCKERFILE, UID, build, container
from tests.deploy.tools import Tools
from tests.kafka import KafkaCluster
from tests.system.members import free_port
from tests.system.producing import producer
from tests.waiting import wait_until

# All that is locked is fetched and installed, the first time.
pytestmark = pytest.mark.timeout(400)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and other users need root")


def test_the_dockerfile_has_no_lint(tools: Tools) -> None:
    done = tools.run("hadolint", "--failure-threshold", "info", ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_the_service_is_what_is_built_by_default_and_runs_as_a_number() -> None:
    stages = re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert stages[-1] == "service"
    last = DOCKERFILE.rpartition("FROM ")[2]
    assert f"USER {UID}:{UID}" in last
    assert f"USER {UID}:{UID}" in DOCKERFILE.partition("AS pipeline\n")[2].partition("FROM ")[0]
    assert re.findall(r'^ENTRYPOINT \["kunicorn"\]$', DOCKERFILE, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtual environment of the image, built as the Dockerfile does it, with nothing of this one in sight."""
    return build(tmp_path_factory.mktemp("image"))


@pytest.mark.long
def test_the_image_needs_nothing_but_what_is_locked(image: Path) -> None:
    listed = [str(image / "kunicorn/bin/pip"), "list", "--format=freeze", "--disable-pip-version-check"]
    found = subprocess.run(listed, env=BARE, capture_output=True, text=True, check=True).stdout
    locked = re.findall(r"^([\w.-]+==\S+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    names = {re.sub(r"[-_.]+", "-", line).lower() for line in found.splitlines()}
    extra = {name for name in names if name.partition("==")[0] not in {"pip", "setuptools", "kunicorn", "wheel"}}
    assert extra == {re.sub(r"[-_.]+", "-", line).lower() for line in locked}


@dataclass(frozen=True)
class Release:
    """The chart's example, set to a broker and a topic, as files: what its two ConfigMaps would be mounted as."""

    directory: Path
    port: int

    @property
    def config(self) -> str:
        """Where the settings are."""
        return str(self.directory / "config" / "config.toml")

    @property
    def environment(self) -> dict[str, str]:
        """What the container is given."""
        return {"PYTHONPATH": f"{self.directory}/handlers:/app"}


def released(tools: Tools, directory: Path, bootstrap: str, topic: str) -> Release:
    """As `helm install` with the example's values, and these."""
    port = free_port()
    values = {"kafka.bootstrap_servers": f"{{{bootstrap}}}", "group.id": topic, "group.topics": f"{{{topic}}}"}
    sets = [f"config.{key}={value}" for key, value in {**values, "http.port": port, "workers.count": 1}.items()]
    for name, file, template_file in (("config", "config.toml", "configmap"), ("handlers", "handlers.py", "handlers")):
        shown = ["-s", f"templates/{template_file}.yaml", *(word for each in sets for word in ("--set", each))]
        text = template(tools, "helm4", *shown).partition(f"  {file}: |\n")[2]
        (directory / name).mkdir(parents=True)
        (directory / name / file).write_text(textwrap.dedent(text))
    directory.chmod(0o755)
    return Release(directory, port)


@as_root
def test_the_chart_s_example_in_its_container_is_checked_joins_handles_and_leaves_at_sigterm(
    tools: Tools, image: Path, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    release = released(tools, image / "release", kafka.bootstrap, topic)
    where: dict[str, Any] = {"cwd": release.directory, "env": release.environment}
    with container(image, "check", "--config", release.config, **where) as (_, log):
        wait_until(lambda: "ok      group" in log.read_text(), "the check to come to its end", 60, every=0.2)
        assert "FAILED" not in log.read_text()
    with container(image, "run", "--config", release.config, **where) as (pid, log):
        wait_until(lambda: _ready(release.port), "readiness", 60, every=0.2)
        sender = producer(kafka.bootstrap)
        sender.produce(topic, value=b"one", partition=1)
        assert sender.flush(30) == 0
        wait_until(lambda: f"{topic}-1@0" in log.read_text(), "the record to be handled", 30, every=0.2)
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(rf"^Uid:\s+{UID}\s+{UID}\s+{UID}", status, flags=re.MULTILINE), status
        assert re.search(r"^NSpid:\s+\d+\s+1$", status, flags=re.MULTILINE), "PID 1 of its namespace"
        assert re.search(r"^CapEff:\s+0+$", status, flags=re.MULTILINE)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: "everything handled is committed" in log.read_text(), "an orderly stop", 40)
    assert "Read-only" not in log.read_text()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
