"""Scenarios of what a release's owner does to it."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import time
from functools import partial
from io import BytesIO
from pathlib import Path

from kunicorn.ipc.clock import now_ns
from tests.deploy.charts import ROOT
from tests.kubernetes.release import WITHIN, Release, not_json
from tests.kubernetes.scene import PODS, RELEASE, SESSION, Scene
from tests.waiting import wait_until

STATIC = {"membership": {"static": True}, "config": {"group": {"session_timeout_ms": 120_000}}}
ON_DISK_WITHIN = 150.0
"""Seconds until a changed ConfigMap or Secret is in a pod: the kubelet's sync and its cache's time."""


def install(scene: Scene) -> None:
    """A release into an empty namespace, before a backlog."""
    release = scene.release()
    scene.load.start()
    began = time.monotonic()
    release.install()
    scene.notes.append(f"`helm install --wait` {time.monotonic() - began:.1f} s")
    scene.wait_whole()
    logs = release.logs(since="10m")
    assert logs, "the services have logged nothing"
    assert not_json(logs) == [], "lines that are no JSON are on the stream"


def helm_test(scene: Scene) -> None:
    """`helm test` beside a release at work."""
    release = scene.installed()
    began = time.monotonic()
    said = scene.cluster.helm("test", release.name, "--namespace", scene.namespace, "--timeout", "120s")
    assert "Succeeded" in said, said
    scene.notes.append(f"`helm test` {time.monotonic() - began:.1f} s")


def rollout(scene: Scene) -> None:
    """Every pod replaced."""
    release = scene.installed()
    before = release.generation()
    release.restart()
    scene.wait_whole()
    scene.notes.append(f"{release.generation() - before} rebalances")


def upgrade_and_rollback(scene: Scene) -> None:
    """The chart upgraded with other settings, and rolled back."""
    release = scene.installed()
    pods = release.names()
    release.upgrade({"config": {"workers": {"count": 1}}, "podAnnotations": {"example.com/round": "2"}})
    scene.wait_whole()
    upgraded = release.names()
    release.rollback(1)
    scene.wait_whole()
    assert not {*pods} & {*upgraded} & {*release.names()}, "the same pods after an upgrade and a rollback"


def scale(scene: Scene) -> None:
    """Two pods, three, one, two."""
    release = scene.installed()
    for pods in (3, 1, 2):
        release.scale(pods)
        scene.wait_whole(pods)
        scene.wait_handled_on()


def config_map(scene: Scene) -> None:
    """A ConfigMap changed under running pods, and SIGHUP: new workers, no rebalance, no restart."""
    release = scene.installed()
    before = release.generation()
    toml = _config(release)
    changed = re.sub(r"^commit_interval_ms = \d+$", "commit_interval_ms = 900", toml, flags=re.MULTILINE)
    assert changed != toml, toml
    patched = time.monotonic()
    _patch_config(release, changed)
    for pod in release.names():
        wait_on_disk(release, pod, "/etc/kunicorn/config/config.toml", "commit_interval_ms = 900")
    scene.notes.append(f"in the pods after {time.monotonic() - patched:.0f} s")
    for pod in release.names():
        release.execute(pod, "sh", "-c", "kill -HUP 1")
        wait_until(partial(_reloaded, release, pod), f"{pod} to have reloaded", 60, 0.5)
    scene.wait_whole()
    assert release.generation() == before, "a reload has cost a rebalance"
    assert release.restarts() == 0, "a container was restarted"


def _config(release: Release) -> str:
    return release.kubectl("get", "configmap", release.full_name, "-o", r"jsonpath={.data.config\.toml}")


def _patch_config(release: Release, toml: str) -> None:
    release.kubectl("patch", "configmap", release.full_name, "--patch", json.dumps({"data": {"config.toml": toml}}))


def wait_on_disk(release: Release, pod: str, path: str, words: str) -> None:
    """Until what was changed in a ConfigMap or a Secret is in the pod."""
    wait_until(lambda: words in release.execute(pod, "cat", path), f"{words!r} in {pod}:{path}", ON_DISK_WITHIN, 1)


def _reloaded(release: Release, pod: str) -> bool:
    return bool((release.status(pod).get("reload") or {}).get("result") == "completed")


def static_rolled(scene: Scene) -> None:
    """Static members replaced one after the other: no rebalance."""
    release = scene.installed(STATIC)
    before = release.generation()
    release.restart()
    scene.wait_whole()
    assert release.generation() == before, "a static member's restart has cost a rebalance"
    scene.notes.append("0 rebalances")


def switched(scene: Scene) -> None:
    """A Deployment made a StatefulSet under load, and back."""
    release = scene.installed()
    release.upgrade(STATIC)
    release.rolled_out()
    scene.wait_whole()
    scene.wait_handled_on()
    # New pods are ready only once they have joined, and wait for that until the static members' sessions end.
    release.roll_out()
    _leave(release)
    release.rolled_out()
    scene.wait_whole()
    scene.wait_handled_on()


def _leave(release: Release) -> None:
    """Static members are gone for good, and their places are given up by hand."""
    static = [f"{release.full_name}-{number}" for number in range(PODS)]
    wait_until(lambda: not {*static} & {*_all_pods(release)}, "the static members' pods to be gone", WITHIN, 0.5)
    pod = wait_until(partial(_running, release), "a pod to run a command in", WITHIN, 0.5)
    for instance in static:
        release.execute(pod, "kunicorn", "leave", "--yes", "--instance", instance)


def _all_pods(release: Release) -> list[str]:
    """Those that are being deleted, too."""
    return release.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}").split()


def _running(release: Release) -> str:
    """A pod whose service runs, be it ready or not; empty where there is none."""
    for pod in release.pods():
        if any("running" in each["state"] for each in pod["status"].get("containerStatuses", [])):
            return str(pod["metadata"]["name"])
    return ""


def two_releases(scene: Scene) -> None:
    """A second release of the same group comes, and goes; the first one's objects stay."""
    first = scene.installed()
    objects = first.kubectl("get", "all,configmap,pdb", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name")
    second = scene.release(name="orders-b")
    second.install()
    scene.wait_whole()
    assert second.partitions(), "the second release handles nothing"
    second.uninstall()
    scene.releases.remove(second)
    scene.wait_whole()
    again = first.kubectl("get", "all,configmap,pdb", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name")
    assert again == objects, again


def restricted(scene: Scene) -> None:
    """A namespace that enforces the restricted Pod Security standard admits the pods, and `helm test`'s."""
    scene.installed()
    scene.cluster.helm("test", RELEASE, "--namespace", scene.namespace, "--timeout", "120s")


def kunicorn_upgraded(scene: Scene) -> None:
    """An older commit's chart and image, upgraded to this one's under load, and rolled back: one group of both."""
    given = scene.given
    assert given.old_image is not None
    old = _chart_of(given.old_commit, scene.directory)
    release = scene.release()
    release.install(given.old_image.values, chart=old)
    scene.load.start()
    scene.wait_whole()
    scene.began = now_ns()
    release.upgrade()
    scene.wait_whole()
    scene.wait_handled_on()
    release.rollback(1)
    scene.wait_whole()
    scene.notes.append(f"commit {given.old_commit} and back")


def _chart_of(commit: str, directory: Path) -> Path:
    archive = subprocess.run(["git", "archive", commit, "deploy/helm"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as packed:
        packed.extractall(directory / "old", filter="data")
    return directory / "old" / "deploy" / "helm"


def autoscaled(scene: Scene) -> None:
    """With a HorizontalPodAutoscaler in the release, what it and KEDA would do is done by hand: 1, 3, none, 2 pods."""
    release = scene.installed({"autoscaling": {"hpa": {"enabled": True}}})
    release.scale(3)
    scene.wait_whole(3)
    release.upgrade({"autoscaling": {"hpa": {"enabled": True}}, "podAnnotations": {"example.com/round": "2"}})
    assert len(release.names()) >= 3, "an upgrade has reset the scale"
    scene.wait_whole(3)
    release.scale(0)
    release.wait_pods(0)
    scene.last(SESSION)
    release.scale(2)
    scene.wait_whole(2)
