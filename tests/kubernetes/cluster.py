"""The cluster of the current KUBECONFIG, by the commands that its users have: kubectl and helm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kunicorn.commands.child import start_child
from tests.deploy.tools import Tools

Object = dict[str, Any]


class Refused(Exception):
    """A command has failed; the message is its own."""


class NoCluster(Exception):
    """There is none to run on; the message is one sentence."""


class Cluster:
    """Commands block until they end. `helm` is helm3 or helm4. What is asked again and again goes through one `kubectl
    proxy`, which lives as long as this process: a start of kubectl costs more than its question."""

    def __init__(self, tools: Tools, helm: str = "helm4") -> None:
        self._helm = tools.command(helm)
        self._proxy = ""

    def kubectl(self, *arguments: str, given: str = "", within: float = 120.0) -> str:
        """What kubectl prints. Raises `Refused`."""
        return _run(["kubectl", *arguments], given, within)

    def helm(self, *arguments: str, within: float = 300.0) -> str:
        """What helm prints. Raises `Refused`."""
        return _run([self._helm, *arguments], "", within)

    def objects(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        """All of a kind."""
        narrowed = ["--selector", selector] if selector else []
        found: list[Object] = json.loads(self.kubectl("get", kind, "--namespace", namespace, *narrowed, "-o", "json"))[
            "items"
        ]
        return found

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Make them, or make them so."""
        self.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pods(self, namespace: str, selector: str) -> list[Object]:
        """The pods that a selector finds."""
        query = urllib.parse.urlencode({"labelSelector": selector})
        found: list[Object] = json.loads(self.server(f"/api/v1/namespaces/{namespace}/pods?{query}"))["items"]
        return found

    def server(self, path: str) -> str:
        """What the API server answers to a GET. Raises `Refused`."""
        try:
            with urllib.request.urlopen(f"{self.proxy}{path}", timeout=20) as answer:
                body: bytes = answer.read()
                return body.decode()
        except OSError as error:
            raise Refused(f"GET {path}: {error}") from None

    @property
    def proxy(self) -> str:
        """Where the API server answers without a login: `http://127.0.0.1:PORT`."""
        if not self._proxy:
            # It ends with the process that has started it.
            child = start_child(["kubectl", "proxy", "--port=0"], pipes=True, log=Path(os.devnull))
            assert child.stdout is not None
            said = child.stdout.readline()
            if " on " not in said:
                raise Refused(f"kubectl proxy: {said.strip() or 'it has ended at once'}")
            self._proxy = f"http://{said.split(' on ')[1].strip()}"
        return self._proxy

    def kinds(self) -> frozenset[str]:
        """What the server knows, as `deployments.apps`."""
        return frozenset(self.kubectl("api-resources", "-o", "name").split())

    def version(self) -> str:
        """The server's: "v1.36.3"."""
        found: str = json.loads(self.server("/version"))["gitVersion"]
        return found

    def nodes(self) -> list[Object]:
        """Every node."""
        return self.objects("nodes", "default")


def connect(tools: Tools) -> Cluster:
    """The cluster. Raises `NoCluster`."""
    if not (os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser().exists()):
        raise NoCluster(
            "There is no cluster to run on: set KUBECONFIG to that of kind, k3d, minikube, or tests/kubernetes/node."
        )
    cluster = Cluster(tools)
    try:
        cluster.version()
    except (Refused, FileNotFoundError) as error:
        reason = re.sub(r"\s+", " ", str(error)).strip()[-200:]
        raise NoCluster(f"The cluster of the current KUBECONFIG does not answer: {reason}") from None
    return cluster


def _run(command: Sequence[str], given: str, within: float) -> str:
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=within, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(f"{' '.join(command[:6])} has not ended in {within:g} s") from None
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)[:300]}: exit code {done.returncode}: {done.stderr.strip()[-1500:]}")
    return done.stdout
