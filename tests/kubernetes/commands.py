"""The scenario of the runbooks' commands: each is typed into a shell as it is written there, in a real release."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping
from functools import partial

from tests.deploy.charts import CHART
from tests.deploy.runbooks import RUNBOOKS, commands
from tests.deploy.tools import tools
from tests.kubernetes import handler
from tests.kubernetes.credentials import TLS, secret
from tests.kubernetes.faults import node_pid
from tests.kubernetes.release import WITHIN, Release, ready
from tests.kubernetes.scene import PARTITIONS, PODS, Scene
from tests.system.producing import end_offsets, produce
from tests.waiting import wait_until

_WRONG = PARTITIONS - 1
"""The partition in which all goes wrong: the pages' `orders:7`."""
_ELSEWHERE: Mapping[str, str] = {
    "certificates,": "certificates.cert-manager.io",
    "podmonitors,": "podmonitors.monitoring.coreos.com",
    " top pods ": "pods.metrics.k8s.io",
}
"""Words of a command, and the kind that the cluster has to know for it."""


def typed(scene: Scene) -> None:
    """A release in which there is something to look at and to repair: a pod that has restarted, a dead letter, a halted
    partition. Every command to look with is typed there, then those of each page's repair, in a release that is whole
    again before the next page's."""
    scene.given.brokers.create_topic(f"{scene.topic}.dead-letters", 1)
    secret(scene, TLS, {"ca.crt": b"not asked for"})
    release = scene.installed({"config": {"handler": _ON_FAILURE}, "extraEnv": _environment(scene)})
    scene.load.stop()
    scene.wait_whole(PODS)
    shell = _Shell(scene, release)
    shell.break_it()
    pages = sorted(file.stem for file in RUNBOOKS.glob("[!R]*.md"))
    shell.type_all(dict.fromkeys(line for page in pages for line in commands(page)[0]))
    for page in pages:
        repairs = commands(page)[1]
        if repairs:
            shell.restore()
            shell.type_all(repairs)
    shell.restore()
    scene.notes.append(f"{shell.typed} commands")
    if shell.left_out:
        scene.notes.append("not " + ", ".join(f"`{line}`" for line in shell.left_out))


_ON_FAILURE = {
    "max_attempts": 1,
    "failures": [{"exceptions": ["builtins.LookupError"], "max_attempts": 1, "on_failure": "dead_letter"}],
}


def _environment(scene: Scene) -> list[object]:
    return [*scene.values()["extraEnv"], {"name": "HANDLER_IS", "value": "broken once"}]


class _Shell:
    """Whoever is on call: `kubectl`, `helm`, and the pages' example names replaced by the scene's."""

    def __init__(self, scene: Scene, release: Release) -> None:
        self.typed = 0
        self.left_out: list[str] = []
        self._said = ""
        self._scene, self._release = scene, release
        self._offset = 0
        self._kinds = scene.cluster.kinds()
        # `helm` is the one that the scenarios use.
        (scene.directory / "bin").mkdir()
        (scene.directory / "bin" / "helm").symlink_to(tools().command("helm4"))

    def break_it(self) -> None:
        """A supervisor is killed; then a record becomes a dead letter, and the next one halts its partition."""
        scene, release = self._scene, self._release
        pod = next(pod for pod in release.pods() if pod["metadata"]["name"] == self._owner())
        scene.hurts(*release.names())
        os.kill(node_pid(pod["metadata"]["uid"], 1, b"kunicorn"), signal.SIGKILL)
        wait_until(lambda: release.restarts() == 1, "the container's restart", WITHIN, 0.5)
        scene.wait_whole(PODS)
        bootstrap = scene.given.brokers.bootstrap
        found = end_offsets(bootstrap, scene.topic, PARTITIONS)
        self._offset = next(end for tp, end in found.items() if tp.partition == _WRONG)
        for value in (handler.REFUSED, handler.FAULTY):
            produce(bootstrap, scene.topic, 1, partition=_WRONG, value=value)
        wait_until(lambda: "halted" in self._states(), "a halted partition", WITHIN, 0.5)

    def restore(self) -> None:
        """As many pods as there were, ready, in a group that is stable. A halted partition stays so."""
        # Also where there are as many: a command that has taken them away may be about to be carried out.
        self._release.scale(PODS)
        wait_until(self._is_whole, "pods that share all partitions", WITHIN, 0.5)
        self._scene.hurts(*self._release.names())

    def type_all(self, lines: Iterable[str]) -> None:
        """One after the other. Each has to succeed; right after a rollout it may take some tries."""
        for line in lines:
            if any(words in line and kind not in self._kinds for words, kind in _ELSEWHERE.items()):
                self.left_out.append(re.sub(r" -n shop| -l \S+", "", line))
                continue
            try:
                wait_until(partial(self._succeeds, line), f"`{line}` to succeed", WITHIN, 2)
            except AssertionError as error:
                raise AssertionError(f"{error}: {self._said}") from None
            self.typed += 1

    def _succeeds(self, line: str) -> bool:
        path = f"{self._scene.directory / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "POD": f"pod/{self._owner()}"}
        done = subprocess.run(
            ["sh", "-c", self._ours(line)], env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        self._said = (done.stdout + done.stderr)[-600:]
        return done.returncode == 0

    def _ours(self, line: str) -> str:
        """The command for our release: other names and numbers, and without what waits for ever or for a word that
        only a fault's log has."""
        topic = self._scene.topic
        values = self._release.directory / f"{self._release.name}-1.json"
        for example, own in {
            "-n shop ": f"-n {self._scene.namespace} ",
            "replay-one orders 7 1234": f"replay-one {topic} {_WRONG} {self._offset + 1}",
            "orders:7": f"{topic}:{_WRONG}",
            "--to-offset 1235": f"--to-offset {self._offset}",
            "0@17": "0@0",
            "kill -ABRT 42": f"kill -ABRT {self._worker()}",
            " deploy/helm ": f" {CHART} ",
            " values.yaml": f" {values}",
            " --watch": "",
        }.items():
            line = line.replace(example, own)
        return line.partition(" | grep ")[0]

    def _owner(self) -> str:
        """The pod that has the partition in which all goes wrong; the first one where none tells that it has."""
        names = self._release.names()
        for pod in names:
            if any(each["partition"] == _WRONG for each in self._partitions(pod)):
                return pod
        return names[0] if names else "none"

    def _worker(self) -> int:
        workers = self._release.status(self._owner()).get("workers", [])
        return next((int(each["pid"]) for each in workers if each["pid"]), 0)

    def _partitions(self, pod: str) -> list[Mapping[str, object]]:
        found: list[Mapping[str, object]] = self._release.status(pod).get("partitions", [])
        return found

    def _states(self) -> list[object]:
        return [each["state"] for pod in self._release.names() for each in self._partitions(pod)]

    def _is_whole(self) -> bool:
        pods = self._release.pods()
        states = self._states()
        return len(pods) == PODS and all(map(ready, pods)) and len(states) == PARTITIONS and {*states} <= _AT_REST


_AT_REST = {"running", "halted"}
