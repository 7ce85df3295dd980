"""Java, Kafka's jars and a class-data archive, fetched once into a cache; `python -m tests.cache` fetches all at once.

The cache is `$KUNICORN_CACHE`, else `~/.cache/kunicorn`. Several test runs may share it: whoever fetches holds a
lock, and what is complete appears under its final name by a rename.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MINIMUM_JAVA = 17
"""Kafka 4 brokers need it."""
SLF4J = "1.7.36"
"""The version Kafka is built with; `slf4j-simple` logs to standard error without a configuration file."""
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

_TOOLS = {"4.4.0": "4.3.1"}
"""Versions of Kafka whose command-line tools are in no public repository (kafka-tools 4.4.0 was missing from Maven
Central on 2026-11-23, when everything else of 4.4.0 was there), and the newest version whose tools are."""

_DEBIAN_PACKAGES = ("default-jre-headless", "maven")
_ADVICE = f"Install Java {MINIMUM_JAVA} or later and Maven (Debian: apt-get install {' '.join(_DEBIAN_PACKAGES)})."
_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kunicorn</groupId><artifactId>kafka-for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_ONE = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{alone}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def project_of(*artifacts: tuple[str, str, str], alone: bool = False) -> str:
    """A Maven project that depends on these: group, name and version of each; `alone`: and on nothing they need."""
    excluded = _ALONE if alone else ""
    return _PROJECT.format(dependencies="".join(_ONE.format(*each, alone=excluded) for each in artifacts))


class KafkaUnavailable(Exception):
    """Kafka cannot be started on this machine; the message says why and what to do."""


@dataclass(frozen=True)
class Java:
    """The Java that runs the brokers."""

    command: str
    version: str
    """As Java gives it: "17.0.15"."""


@dataclass(frozen=True)
class Distribution:
    """One version of Kafka, ready to run."""

    version: str
    java: Java
    jars: Path
    archive: Path
    """The class-data archive; may not exist yet."""

    @property
    def classpath(self) -> str:
        """Every jar, in a fixed order: an archive is only used under the class path it was made with."""
        return os.pathsep.join(str(jar) for jar in sorted(self.jars.glob("*.jar")))


def cache_directory() -> Path:
    """Where fetched things are kept between runs."""
    return Path(os.environ.get("KUNICORN_CACHE") or Path.home() / ".cache" / "kunicorn")


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock called `name`; blocks while another process holds it."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def distribution(version: str) -> Distribution:
    """Kafka `version` from the cache, fetched with Maven if it is not there. Raises `KafkaUnavailable`."""
    java = find_java()
    home = cache_directory() / f"kafka-{version}"
    jars = home / "jars"
    with locked(f"kafka-{version}"):
        if not jars.is_dir():
            home.mkdir(exist_ok=True)
            _fetch(version, jars)
    return Distribution(version, java, jars, home / f"classes-java-{java.version}.jsa")


def tools_version(version: str) -> str:
    """The version whose command-line tools are run against brokers of `version`."""
    return _TOOLS.get(version, version)


def find_java() -> Java:
    """The Java of `$JAVA_HOME` or the PATH; as root on Debian it is installed if missing."""
    command = _java_command() or (_install_on_debian() and _java_command())
    if not command:
        raise KafkaUnavailable(f"There is no java on this machine. {_ADVICE}")
    answer = subprocess.run([command, "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "((\d+)[^"]*)"', answer)
    if found is None or int(found[2]) < MINIMUM_JAVA:
        raise KafkaUnavailable(f"{command} is too old: {answer.splitlines()[0]}. {_ADVICE}")
    return Java(command, found[1])


def _java_command() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(Path(home) / "bin" / "java") if home else shutil.which("java")


def _install_on_debian() -> bool:
    """Install Java and Maven where nobody has to be asked; true if that was tried and worked."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"kafka for tests: installing {' and '.join(_DEBIAN_PACKAGES)} with apt-get", file=sys.stderr)
    if complaint := install_with_apt(*_DEBIAN_PACKAGES):
        raise KafkaUnavailable(f"{complaint} {_ADVICE}")
    return True


def install_with_apt(*packages: str) -> str:
    """What apt-get complains of; nothing where all is installed. Caller: is root, on Debian."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with locked("apt-get"):  # A second one beside it would not wait, but fail.
        for step in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = fetched(["apt-get", "-q", *step], env=quiet)
            if done.returncode != 0:
                return f"apt-get {step[0]} failed: {done.stderr.strip()[-500:]}"
    return ""


def fetched(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """The end of a command that fetches something. It is tried three times: networks are away for moments."""
    for pause in (5, 30):
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        if done.returncode == 0:
            return done
        time.sleep(pause)
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def jars_of(name: str, version: str, wanted: Sequence[tuple[str, str, str]]) -> Path:
    """Directory of these artifacts' jars (group, name and version of each) and of all that they need, from the cache or
    fetched into it. Raises `KafkaUnavailable`.
    """
    home = cache_directory() / f"{name}-{version}"
    jars = home / "jars"
    with locked(home.name):
        if not jars.is_dir():
            home.mkdir(exist_ok=True)
            _copy(f"{name} {version}", wanted, jars)
    return jars


def _fetch(version: str, jars: Path) -> None:
    """Copy Kafka's jars and all they depend on into `jars`, which appears only when complete."""
    wanted = [("org.apache.kafka", "kafka_2.13", version), ("org.slf4j", "slf4j-simple", SLF4J)]
    if tools_version(version) == version:
        wanted.append(("org.apache.kafka", "kafka-tools", version))
    _copy(f"Kafka {version}", wanted, jars)


def _copy(what: str, wanted: Sequence[tuple[str, str, str]], jars: Path) -> None:
    """Fetch the artifacts with Maven, and show them under `jars` when all are there."""
    maven = shutil.which("mvn") or (_install_on_debian() and shutil.which("mvn"))
    if not maven:
        raise KafkaUnavailable(f"{what} is not in {jars.parent} and there is no mvn to fetch it. {_ADVICE}")
    with tempfile.TemporaryDirectory(dir=jars.parent) as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(project_of(*wanted))
        complete = Path(scratch) / "jars"
        command = [maven, "-q", "-B", "-f", str(pom), DEPENDENCY_PLUGIN, f"-DoutputDirectory={complete}"]
        done = fetched(command)
        if done.returncode != 0:
            complaint = done.stdout.strip()[-2000:]
            raise KafkaUnavailable(f"Maven could not fetch {what}; is its repository in reach?\n{complaint}")
        complete.rename(jars)
