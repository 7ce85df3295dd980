"""The chart, rendered as `helm install` would, and judged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kunicorn.commands.child import start_child
from tests.deploy.tools import Tools

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
EXAMPLE = CHART / "ci" / "example-values.yaml"
"""The least that makes a release: brokers, group, topic, handler."""
HELMS = ("helm3", "helm4")
NEWER_BY_DAY = (pytest.param("helm3", marks=pytest.mark.long), "helm4")
"""For what no template branches on: that both Helms render the same is a test of its own."""

Manifest = dict[str, Any]


class Refused(Exception):
    """Helm refuses the values; the message is its own."""


@dataclass(frozen=True)
class Rendered:
    """The manifests of one release."""

    documents: list[Manifest]
    problems: list[str]

    def kinds(self) -> set[str]:
        """Kinds of object, each once."""
        return {document["kind"] for document in self.documents}

    def all(self, kind: str) -> list[Manifest]:
        """The objects of a kind."""
        return [document for document in self.documents if document["kind"] == kind]

    def only(self, kind: str) -> Manifest:
        """The one object of a kind, without the test's pod."""
        (found,) = self.all(kind)
        return found

    def workload(self) -> Manifest:
        """Deployment or StatefulSet."""
        (found,) = [*self.all("Deployment"), *self.all("StatefulSet")]
        return found

    def pod(self) -> Manifest:
        """The workload's pod."""
        spec: Manifest = self.workload()["spec"]["template"]["spec"]
        return spec

    def container(self) -> Manifest:
        """The service's own container."""
        return next(each for each in self.pod()["containers"] if each["name"] == "kunicorn")

    def environment(self) -> Mapping[str, Manifest]:
        """The service's environment by name."""
        return {each["name"]: each for each in self.container().get("env", [])}

    def config(self) -> str:
        """config.toml."""
        data = next(each["data"] for each in self.all("ConfigMap") if "config.toml" in each["data"])
        return str(data["config.toml"])


def template(tools: Tools, helm: str, *arguments: str | Path, files: Iterable[Path] = ()) -> str:
    """What `helm template` writes. Raises `Refused`."""
    values = [argument for file in files for argument in ("-f", file)]
    done = tools.run(helm, "template", "orders", CHART, "--namespace", "shop", *values, *arguments)
    if done.returncode != 0:
        raise Refused(done.stderr)
    return done.stdout


def judged(tools: Tools, *texts: str, scratch: Path) -> list[Rendered]:
    """Manifests, read and validated."""
    files = [scratch / f"{number}.yaml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    found = _judge(tools).read(files)
    return [Rendered(**found[str(file)]) for file in files]


class _Judge:
    """validate.py, which stays until this process ends: it takes seconds to load the schemas."""

    def __init__(self, tools: Tools) -> None:
        self._scratch = TemporaryDirectory(prefix="kunicorn-judge-")
        self._log = Path(self._scratch.name) / "log.txt"
        # Isolated: a session of Spark leaves the path of this process in the environment, whose packages are others.
        command: list[str | Path] = [tools.command("python"), "-I", Path(__file__).with_name("validate.py")]
        self._process = start_child(command, pipes=True, log=self._log)

    def read(self, files: Sequence[Path]) -> dict[str, Any]:
        """Documents and problems of each file, by its name. Blocks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(file) for file in files]) + "\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline()
        assert told, f"the judge has ended:\n{self._log.read_text()}"
        found: dict[str, Any] = json.loads(told)
        return found


@cache
def _judge(tools: Tools) -> _Judge:
    return _Judge(tools)
