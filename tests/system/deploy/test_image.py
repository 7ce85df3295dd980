"""The image without Docker: its Dockerfile linted, its build run in a bare environment, and what comes out run as the
container would be: PID 1 of its own namespace, another user, a root file system that nobody can write to.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.charts import EXAMPLE, ROOT, template
from tests.deploy.image import BARE, DOCKERFILE, UID, build, container, context, environment
from tests.deploy.tools import Tools
from tests.kafka import KafkaCluster
from tests.kafka.ports import kept_port
from tests.kubernetes.release import not_json
from tests.system.members import group_settings, merged, toml
from tests.system.producing import producer
from tests.waiting import runs, wait_until

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


def test_the_image_with_spark_starts_what_its_first_word_says(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("kunicorn", "spark-submit", "java"):
        (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        (programs / name).chmod(0o755)
    spark = {
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
        "SPARK_JAVA_OPT_0": "-Dtwo=two words",
        "SPARK_JAVA_OPT_1": "-Dlast",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }

    def started(*words: str, env: Mapping[str, str] = spark) -> list[str]:
        path = {"PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            [ROOT / "deploy/image/entrypoint.sh", *words],
            env={**path, **env},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    assert started("pipeline", "export", "a b", env={}) == ["kunicorn", "pipeline", "export", "a b"]
    assert started(env={}) == ["kunicorn"]
    client = ["--conf", "spark.driver.bindAddress=10.0.0.1", "--deploy-mode", "client"]
    assert started("driver", "--class", "a.B") == ["spark-submit", *client, "--class", "a.B"]
    java = started("executor")
    assert java[:5] == ["java", "-Dtwo=two words", "-Dlast", "-Xms512m", "-Xmx512m"]
    assert java[-14:-12] == ["--driver-url", "spark://driver"]
    with pytest.raises(subprocess.CalledProcessError):
        started("executor", env={})


def test_commands_in_the_pod_find_the_settings_that_the_chart_mounts(tools: Tools) -> None:
    mounted = re.search(r"name: config, mountPath: ([^,]+),", template(tools, "helm4", files=[EXAMPLE]))
    assert mounted is not None
    assert f"KUNICORN_CONFIG={mounted[1]}/config.toml" in DOCKERFILE


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtual environment of the image, built as the Dockerfile does it, with nothing of this one in sight."""
    return build(tmp_path_factory.mktemp("image"))


OURS = {"kunicorn", "kunicorn-columns"}


@pytest.mark.long
def test_the_image_needs_nothing_but_what_is_locked(image: Path) -> None:
    locked = re.findall(r"^([\w.-]+==\S+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    names = {name for name in installed(image) if name.partition("==")[0] not in OURS}
    assert names == {re.sub(r"[-_.]+", "-", line).lower() for line in locked}


def installed(image: Path) -> set[str]:
    """What is in the image's environment, as `name==version`."""
    program = "from importlib.metadata import distributions as d; print(*(f'{x.name}=={x.version}' for x in d()))"
    command = [str(image / "kunicorn/bin/python"), "-I", "-c", program]
    found = subprocess.run(command, env=BARE, capture_output=True, text=True, check=True).stdout
    return {re.sub(r"[-_.]+", "-", each).lower() for each in found.split()}


def test_nothing_that_installs_is_in_the_image(image: Path) -> None:
    assert not {name.partition("==")[0] for name in installed(image)} & {"pip", "setuptools", "wheel"}
    assert not list((image / "kunicorn/bin").glob("pip*"))


def test_the_base_loses_what_installs_and_no_module_of_pythons_own(tmp_path: Path) -> None:
    own = {f"lib/python3.11/{name}.py" for name in {*sys.stdlib_module_names, "pipes"} - {"ensurepip"}}
    own |= {f"lib/python3.11/__pycache__/{name}.cpython-311.pyc" for name in ("pipes", "pprint")}
    own |= {f"bin/{name}" for name in ("python3", "python3.11", "pydoc3.11")}
    packages = ("pip", "pip-24.0.dist-info", "setuptools", "setuptools-79.0.1.dist-info", "wheel", "pkg_resources")
    installing = {f"lib/python3.11/site-packages/{name}/__init__.py" for name in (*packages, "_distutils_hack")}
    installing |= {"lib/python3.11/ensurepip/__init__.py", "lib/python3.11/site-packages/distutils-precedence.pth"}
    installing |= {f"bin/{name}" for name in ("pip", "pip3", "pip3.11", "wheel")}
    for name in own | installing:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (removal,) = re.findall(r"find /usr/local/lib (?:.|\\\n)*-exec rm -rf {} \+", DOCKERFILE)
    subprocess.run(["sh", "-ec", removal.replace("/usr/local", str(tmp_path))], check=True)
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()} == own


def test_every_base_is_a_stage_or_pinned_by_its_digest() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    names = {name for _, name in stages}
    assert [base for base, _ in stages if base not in names and not re.search(r"@sha256:[0-9a-f]{64}$", base)] == []


def test_a_package_that_is_not_the_one_that_was_locked_is_refused(tmp_path: Path) -> None:
    source = context(tmp_path / "src")
    lock = source / "requirements.lock"
    (one,) = re.findall(r"^idna==.*\n(?:    --hash=.*\n)+", lock.read_text(), flags=re.MULTILINE)
    lock.write_text(re.sub(r"sha256:\w{8}", "sha256:00000000", one).rstrip().rstrip("\\") + "\n")
    command = [str(source / "deploy/image/build.sh"), str(source), str(tmp_path / "kunicorn")]
    done = subprocess.run(command, env=BARE, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.long
def test_the_stage_for_columns_has_pyarrow_and_the_decoder(image: Path, tmp_path: Path) -> None:
    python = build(tmp_path, "arrow", upon=image) / "kunicorn/bin/python"
    probe = "import pyarrow, kunicorn_columns, kunicorn.handler.arrow; print(kunicorn.handler.arrow.SCHEMA.names)"
    done = subprocess.run([python, "-c", probe], env=BARE, cwd="/", capture_output=True, text=True, check=False)
    assert "'value'" in done.stdout, done.stderr


@as_root
def test_the_documented_recipe_makes_an_image_whose_handler_finds_its_packages(
    image: Path, kafka: KafkaCluster, topic: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (recipe,) = re.findall(r"```dockerfile\n(.*?)```", (ROOT / "docs/operations.md").read_text(), flags=re.DOTALL)
    (line,) = re.findall(r"^RUN (pip .*)$", recipe, flags=re.MULTILINE)
    assert "COPY --from=packages /opt/kunicorn /opt/kunicorn" in recipe
    # The stage has a copy of the environment, and the pip of its Python.
    own = tmp_path_factory.mktemp("recipe")
    shutil.copytree(image / "kunicorn", own / "kunicorn", symlinks=True)
    # Here the copy has another place, which its scripts' first lines name.
    script = own / "kunicorn/bin/kunicorn"
    script.write_text(script.read_text().replace(str(image), str(own)))
    subprocess.run(["python3", "-m", "venv", str(tmp_path / "python")], check=True, env=BARE)
    command = line.replace("/opt/kunicorn", str(own / "kunicorn")).replace(
        "/requirements.txt", str(tmp_path / "requirements.txt")
    )
    path = f"{tmp_path}/python/bin:{BARE['PATH']}"

    def install(requirement: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "requirements.txt").write_text(f"{requirement}\n")
        environ = {**BARE, "PATH": path}
        return subprocess.run(shlex.split(command), env=environ, capture_output=True, text=True, check=False)

    moved = install("confluent-kafka<2")
    assert moved.returncode != 0
    assert "confluent-kafka" in moved.stderr, "what would be moved is named"
    done = install("iniconfig")
    assert done.returncode == 0, done.stderr
    kafka.create_topic(topic, 1)
    release = own / "release"
    release.mkdir(mode=0o755)
    (release / "shop.py").write_text("import iniconfig\ndef handle(record): ...\n")
    # Not the usual port, which a job of another test may have.
    own_settings = merged(group_settings(kafka.bootstrap, [topic], topic, "shop:handle"), {"http": {"port": 0}})
    (release / "config.toml").write_text(toml(own_settings))
    environment = {"PYTHONPATH": str(release)}
    with container(own, "check", "--config", str(release / "config.toml"), cwd=release, env=environment) as (pid, log):
        all_is_well(pid, log)


def all_is_well(pid: int, log: Path) -> None:
    """What a check has found, once it has ended."""
    wait_until(lambda: not runs(pid), "the check to come to its end", every=0.2)
    assert "ok      group" in log.read_text()
    assert "FAILED" not in log.read_text()


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
    port = kept_port()
    values = {"kafka.bootstrap_servers": f"{{{bootstrap}}}", "group.id": topic, "group.topics": f"{{{topic}}}"}
    sets = [f"config.{key}={value}" for key, value in {**values, "http.port": port, "workers.count": 1}.items()]
    for name, file, template_file in (("config", "config.toml", "configmap"), ("handlers", "handlers.py", "handlers")):
        shown = ["-s", f"templates/{template_file}.yaml", *(word for each in sets for word in ("--set", each))]
        text = template(tools, "helm4", *shown, files=[EXAMPLE]).partition(f"  {file}: |\n")[2]
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
    with container(image, "check", "--config", release.config, **where) as (pid, log):
        all_is_well(pid, log)
    with container(image, "run", "--config", release.config, **where) as (pid, log):
        wait_until(lambda: _ready(release.port), "readiness", every=0.2)
        sender = producer(kafka.bootstrap)
        sender.produce(topic, value=b"one", partition=1)
        assert sender.flush(60) == 0
        wait_until(lambda: f"{topic}-1@0" in log.read_text(), "the record to be handled", every=0.2)
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(rf"^Uid:\s+{UID}\s+{UID}\s+{UID}", status, flags=re.MULTILINE), status
        assert re.search(r"^NSpid:\s+\d+\s+1$", status, flags=re.MULTILINE), "PID 1 of its namespace"
        assert re.search(r"^CapEff:\s+0+$", status, flags=re.MULTILINE)
        assert _in_container(pid, UID, image, "recycle", "0", "--config", release.config) == 0
        asked = "recycle was asked for over HTTP by this machine ("
        wait_until(lambda: asked in log.read_text(), "who has asked, in the log", every=0.2)
        assert _in_container(pid, UID + 1, image, "recycle", "0", "--config", release.config) == 2
        (local,) = Path(f"/proc/{pid}/root/tmp").glob("kunicorn-http-*.sock")
        assert (stat.filemode(local.lstat().st_mode), local.lstat().st_uid) == ("srw-------", UID)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: "everything handled is committed" in log.read_text(), "an orderly stop")
    assert "Read-only" not in log.read_text()
    assert not_json(log.read_text()) == []


def _in_container(pid: int, uid: int, image: Path, *arguments: str) -> int:
    """Exit code of `kunicorn ARGUMENTS` as `kubectl exec` runs it beside that process, as this user."""
    user = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs")
    return subprocess.run(
        ["nsenter", f"--target={pid}", "--mount", "--pid", *user, str(image / "kunicorn/bin/kunicorn"), *arguments],
        env=environment(image, "service"),
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
    ).returncode


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
