"""One release of the chart in one namespace: what helm does to it, and what its pods say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.charts import CHART
from tests.kubernetes.cluster import Cluster, Object, Refused
from tests.waiting import wait_until

WITHIN = 240.0
"""Seconds for whatever is waited for; throttled pods take a minute to come up."""


@dataclass
class Release:
    """`values` are those of its first install; later ones go over them."""

    cluster: Cluster
    namespace: str
    name: str
    values: dict[str, Any]
    directory: Path
    chart: Path = CHART
    _files: int = field(default=0, init=False)

    # -- helm

    def install(self, *more: Mapping[str, Any], chart: Path | None = None) -> None:
        """`helm install --wait`. Raises `Refused`."""
        self._helm("install", chart, *more)

    def upgrade(self, *more: Mapping[str, Any], chart: Path | None = None) -> None:
        """`helm upgrade --wait`; what earlier calls were given is forgotten. Raises `Refused`."""
        self._helm("upgrade", chart, *more)

    def rollback(self, revision: int) -> None:
        """`helm rollback --wait`, also of what kubectl has changed since."""
        self.cluster.helm("rollback", self.name, str(revision), *self._common(), "--force-conflicts")

    def uninstall(self) -> None:
        """`helm uninstall --wait`: its pods have drained, committed and left."""
        self.cluster.helm("uninstall", self.name, *self._common())

    def roll_out(self, *more: Mapping[str, Any]) -> None:
        """`helm upgrade` by somebody who does not wait for what becomes of it. Raises `Refused`."""
        self._helm("upgrade", None, *more, common=["--namespace", self.namespace])

    def _helm(
        self, verb: str, chart: Path | None, *more: Mapping[str, Any], common: Sequence[str] | None = None
    ) -> None:
        self._files += 1
        file = self.directory / f"{self.name}-{self._files}.json"
        file.write_text(json.dumps(over(self.values, *more)))
        conflicts = ["--force-conflicts"] if verb == "upgrade" else []
        self.cluster.helm(
            verb, self.name, str(chart or self.chart), *(common or self._common()), "-f", str(file), *conflicts
        )

    def _common(self) -> list[str]:
        return ["--namespace", self.namespace, "--wait", "--timeout", f"{WITHIN:.0f}s"]

    # -- objects

    @property
    def full_name(self) -> str:
        """Of Deployment, StatefulSet and what else there is one of."""
        return self.name if "kunicorn" in self.name else f"{self.name}-kunicorn"

    @property
    def workload(self) -> str:
        """`deployment/NAME` or `statefulset/NAME`, whichever there is."""
        for kind in ("deployment", "statefulset"):
            if self.kubectl("get", kind, self.full_name, "--ignore-not-found", "-o", "name"):
                return f"{kind}/{self.full_name}"
        raise AssertionError(f"{self.name} has no workload")

    def kubectl(self, *arguments: str, given: str = "", within: float = 120.0) -> str:
        """kubectl in the release's namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, given=given, within=within)

    def pods(self) -> list[Object]:
        """The members' pods, without those that are being deleted."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=consumer"
        found = self.cluster.pods(self.namespace, selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"] and "status" in pod]

    def names(self) -> list[str]:
        """Of the pods, in order."""
        return sorted(pod["metadata"]["name"] for pod in self.pods())

    def scale(self, pods: int) -> None:
        """`kubectl scale`, without waiting."""
        self.kubectl("scale", self.workload, f"--replicas={pods}")

    def restart(self) -> None:
        """`kubectl rollout restart`, and wait until it is over."""
        self.kubectl("rollout", "restart", self.workload)
        self.rolled_out()

    def rolled_out(self) -> None:
        """Wait until the rollout is over."""
        self.kubectl("rollout", "status", self.workload, f"--timeout={WITHIN:.0f}s", within=WITHIN + 10)

    def execute(self, pod: str, *command: str) -> str:
        """A command in the service's container. Raises `Refused`."""
        return self.kubectl("exec", pod, "-c", "kunicorn", "--", *command)

    # -- what pods say

    def status(self, pod: str) -> dict[str, Any]:
        """`/status` of a pod; empty where it does not answer."""
        try:
            port = f"https:{pod}:9400" if self._has_certificate else f"{pod}:9400"
            answer = self.cluster.server(f"/api/v1/namespaces/{self.namespace}/pods/{port}/proxy/status")
        except Refused:
            return {}
        found: dict[str, Any] = json.loads(answer)
        return found

    @property
    def _has_certificate(self) -> bool:
        """Whether its HTTP port speaks TLS."""
        return bool(self.values.get("auth", {}).get("httpTls", {}).get("existingSecret"))

    def partitions(self, pods: int | None = None) -> int | None:
        """Partitions that run, where all pods are ready and their group is stable, and there are `pods` of them; None
        where that is not so."""
        found = self.pods()
        if (pods is not None and len(found) != pods) or not all(map(ready, found)):
            return None
        running = 0
        for pod in found:
            status = self.status(pod["metadata"]["name"])
            if not status or status["group"]["state"] != "stable":
                return None
            states = [partition["state"] for partition in status["partitions"]]
            if any(state != "running" for state in states):
                return None
            running += len(states)
        return running

    def generation(self) -> int:
        """The newest that a pod knows of."""
        return max(int(self.status(pod)["group"]["generation"] or 0) for pod in self.names())

    def restarts(self) -> int:
        """Of all containers of the pods that are there."""
        return sum(each["restartCount"] for pod in self.pods() for each in pod["status"].get("containerStatuses", []))

    def ends(self) -> set[str]:
        """Why containers of the pods ended last, where one did: "OOMKilled", "Error"."""
        found = [each["lastState"] for pod in self.pods() for each in pod["status"].get("containerStatuses", [])]
        return {state["terminated"]["reason"] for state in found if "terminated" in state}

    def waiting(self) -> list[str]:
        """Why containers of the pods do not run: "CrashLoopBackOff", "ImagePullBackOff"; "Error" of one that has ended
        and is about to be started again."""
        states = [
            each["state"]
            for pod in self.pods()
            for kind in ("initContainerStatuses", "containerStatuses")
            for each in pod["status"].get(kind, [])
        ]
        return [
            state.get("waiting", {}).get("reason") or state["terminated"].get("reason", "Error")
            for state in states
            if "waiting" in state or ("terminated" in state and state["terminated"]["exitCode"])
        ]

    def wait_gone(self, pod: str) -> None:
        """Until the pod is no more."""
        self.kubectl("wait", "--for=delete", f"pod/{pod}", f"--timeout={WITHIN:.0f}s", within=WITHIN + 10)

    def wait_pods(self, count: int) -> None:
        """Until so many are ready, and no other is there."""
        wait_until(
            lambda: len(found := self.pods()) == count and all(map(ready, found)), f"{count} ready pods", WITHIN, 0.5
        )

    def history(self) -> list[dict[str, Any]]:
        """Its revisions, oldest first."""
        found: list[dict[str, Any]] = json.loads(
            self.cluster.helm("history", self.name, "--namespace", self.namespace, "-o", "json")
        )
        return found

    def logs(self, since: str = "2m") -> str:
        """What the services have logged lately."""
        pods = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=consumer"
        return self.kubectl("logs", "--selector", pods, "-c", "kunicorn", f"--since={since}", "--tail=400")

    def last_words(self) -> str:
        """The ends of the logs of containers that have ended."""
        said = []
        for pod in self.names():
            try:
                said.append(self.kubectl("logs", pod, "-c", "kunicorn", "--previous", "--tail=50"))
            except Refused:
                # It has not ended yet.
                continue
        return "\n".join(said)

    def told(self) -> str:
        """What to read when something is wrong: pods, events, the ends of the logs."""
        parts = []
        for arguments in (
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            (
                "logs",
                "--selector",
                f"app.kubernetes.io/instance={self.name}",
                "--tail=15",
                "--prefix",
                "--all-containers",
            ),
        ):
            try:
                parts.append(self.kubectl(*arguments)[-3000:])
            except Refused as error:
                parts.append(str(error))
        return "\n".join(parts)


def ready(pod: Object) -> bool:
    """Whether Kubernetes says so."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def not_json(logs: str) -> list[str]:
    """Lines that are no JSON object."""
    return [line for line in logs.splitlines() if not _is_object(line)]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def over(*values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of helm: tables are joined, all else is replaced by what comes later."""
    whole: dict[str, Any] = {}
    for each in values:
        for name, value in each.items():
            below = whole.get(name)
            whole[name] = over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return whole
