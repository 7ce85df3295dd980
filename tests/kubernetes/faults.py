"""Scenarios of what happens to a release: pods deleted, processes killed, nodes drained, brokers away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.chaos.calls import read_calls
from tests.deploy.charts import ROOT
from tests.kubernetes import handler
from tests.kubernetes.brokers import Brokers
from tests.kubernetes.cluster import Refused
from tests.kubernetes.release import WITHIN, Release
from tests.kubernetes.scene import Scene
from tests.system.producing import produce
from tests.waiting import wait_until

AWAY = 300.0
"""Seconds that brokers are away: sessions are over by then, many times."""
THROTTLED_FOR = 60.0


def deleted(scene: Scene) -> None:
    """A pod deleted with its grace period: it drains, commits and leaves."""
    release = scene.installed()
    victim = release.names()[0]
    began = time.monotonic()
    release.kubectl("delete", "pod", victim, "--wait=false")
    release.wait_gone(victim)
    scene.notes.append(f"gone after {time.monotonic() - began:.1f} s")
    scene.wait_whole(2)


def deleted_at_once(scene: Scene) -> None:
    """A pod deleted without grace."""
    release = scene.installed()
    victim = release.names()[0]
    scene.hurts(victim)
    release.kubectl("delete", "pod", victim, "--grace-period=0", "--force", "--wait=false")
    scene.wait_whole(2)


def worker_out_of_memory(scene: Scene) -> None:
    """A record whose handler takes memory until the kernel ends its worker. With cgroup v1 that is the worker alone;
    with v2 the kubelet has the kernel end the whole container."""
    release = scene.installed()
    for pod in release.names():
        # A worker ends with the record in hand; with a whole container, what was not committed may come again.
        if _ends_whole_containers():
            scene.hurts(pod)
    produce(scene.given.brokers.bootstrap, scene.topic, 1, value=handler.GREEDY)
    wait_until(lambda: _unfinished(scene), "a handler that the kernel has ended", WITHIN, 0.5)
    scene.wait_whole(2)
    scene.in_hand = 1
    restarts = release.restarts()
    scene.notes.append(f"{restarts} containers restarted")
    if not _ends_whole_containers():
        assert restarts == 0, "the container was restarted for a worker's death"


def _ends_whole_containers() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def _unfinished(scene: Scene) -> bool:
    """Whether a record that was begun and not ended was begun again."""
    for calls in read_calls(scene.audit).values():
        open_ones = {call.offset for call in calls if call.end is None}
        if any(call.offset in open_ones and call.end is not None for call in calls):
            return True
    return False


def supervisor_killed(scene: Scene) -> None:
    """PID 1 of a pod killed: the kubelet starts the container again."""
    release = scene.installed()
    pod = release.pods()[0]
    name = pod["metadata"]["name"]
    scene.hurts(name)
    os.kill(node_pid(pod["metadata"]["uid"], 1, b"kunicorn"), signal.SIGKILL)
    wait_until(lambda: release.restarts() == 1, "the container's restart", WITHIN, 0.5)
    scene.wait_whole(2)


def supervisor_out_of_memory(scene: Scene) -> None:
    """Something beside the supervisor takes its pod's last memory. Of the processes that are there the supervisor has
    most, so that the kernel ends it."""
    release = scene.installed()
    pod = release.names()[0]
    scene.hurts(pod)
    usual = _resources(release, pod)
    used = int(release.execute(pod, "sh", "-c", f"cat {_USED} 2>/dev/null || true").split()[0])
    little = f"{(used >> 20) + _LEFT_MIB}Mi"
    _resize(release, pod, {"requests": {"memory": "64Mi"}, "limits": {"memory": little}})
    with contextlib.suppress(Refused):
        release.execute(pod, "python", "-c", "taken = []\nwhile True: taken.append(b'1' * (1 << 18))")
    wait_until(lambda: release.restarts() == 1, "the container's restart", WITHIN, 0.1)
    _resize(release, pod, usual)
    assert release.ends() == {"OOMKilled"}, f"the container ended by {release.ends()}"
    scene.notes.append(f"ended as OOMKilled at {little}")
    scene.wait_whole(2)


_USED = "/sys/fs/cgroup/memory/memory.usage_in_bytes /sys/fs/cgroup/memory.current"
"""In the container, with cgroup v1 and v2."""
_LEFT_MIB = 12


def node_pid(pod: str, inside: int, name: bytes) -> int:
    """The node's pid of a process in the pod with this uid that has pid `inside` there, and this in its command."""
    spellings = (pod, pod.replace("-", "_"))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            group = (process / "cgroup").read_text()
            own = next(line for line in (process / "status").read_text().splitlines() if line.startswith("NSpid:"))
            command = (process / "cmdline").read_bytes()
        except (OSError, StopIteration):
            continue
        if any(each in group for each in spellings) and own.split()[-1] == str(inside) and name in command:
            return int(process.name)
    raise AssertionError(f"no process {inside} of pod {pod} is in sight")


def brokers_away(scene: Scene) -> None:
    """No broker for minutes; meanwhile a pod is deleted and a third one is wanted, so that new ones start without."""
    brokers = scene.given.brokers
    assert isinstance(brokers, Brokers)
    release = scene.installed()
    # It cannot commit what it has handled since the last time.
    victim = release.names()[0]
    # From here on: a broker that stops in order takes seconds, and commits fail meanwhile.
    scene.hurts(victim)
    brokers.broker(1).stop()
    try:
        began = time.monotonic()
        release.kubectl("delete", "pod", victim, "--wait=false")
        release.scale(3)
        scene.last(max(0.0, AWAY - (time.monotonic() - began)))
        scene.notes.append("meanwhile " + ", ".join(sorted(map(_phase, release.pods()))))
    finally:
        brokers.broker(1).start()
        brokers.wait_until_ready(WITHIN)
    back = time.monotonic()
    scene.wait_whole(3, within=600)
    scene.notes.append(f"away for {AWAY:.0f} s, whole {time.monotonic() - back:.0f} s after their return")


def _phase(pod: dict[str, object]) -> str:
    """As `kubectl get pods` would say it, in short."""
    status = pod["status"]
    assert isinstance(status, dict)
    for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if reason := each["state"].get("waiting", {}).get("reason"):
            restarts = each["restartCount"]
            return f"{reason} ({restarts} restarts)" if restarts else str(reason)
    return str(status.get("phase"))


def drained(scene: Scene) -> None:
    """`kubectl drain` of every node with a pod of ours: the budget lets one pod go at a time."""
    release = scene.installed()
    before = release.names()
    node = release.pods()[0]["spec"]["nodeName"]
    alone = len(scene.cluster.nodes()) == 1
    command = ["kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
               f"--pod-selector=app.kubernetes.io/instance={release.name}", f"--timeout={WITHIN:.0f}s"]  # fmt: skip
    draining = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        if alone:
            wait_until(lambda: _unschedulable(release), "a pod that no node takes", WITHIN, 0.5)
            assert len([name for name in release.names() if name in before]) == 1, "the budget has let both pods go"
            scene.cluster.kubectl("uncordon", node)
        _, complaints = draining.communicate(timeout=WITHIN)
        assert draining.returncode == 0, complaints
    finally:
        draining.kill()
        scene.cluster.kubectl("uncordon", node)
    scene.wait_whole(2)
    assert not {*before} & {*release.names()} or not alone, "a pod has outlived the drain"


def _unschedulable(release: Release) -> bool:
    return any(
        condition.get("reason") == "Unschedulable"
        for pod in release.pods()
        for condition in pod["status"].get("conditions", [])
    )


def throttled(scene: Scene) -> None:
    """Every pod held to a tenth of a processor for a minute, while it runs; nobody may leave the group."""
    release = scene.installed(
        {"resources": {"limits": {"cpu": "2"}}, "config": {"group": {"session_timeout_ms": 45_000}}}
    )
    before, pods = release.generation(), release.names()
    for pod in pods:
        _resize(release, pod, {"limits": {"cpu": "100m"}})
    scene.last(THROTTLED_FOR)
    for pod in pods:
        _resize(release, pod, {"limits": {"cpu": "2"}})
    back = time.monotonic()
    scene.wait_whole(2)
    scene.notes.append(f"backlog gone after {time.monotonic() - back:.0f} s")
    scene.notes.append(f"{release.generation() - before} rebalances, {release.restarts()} containers restarted")
    assert release.names() == pods, "a pod was replaced"


def _resources(release: Release, pod: str) -> dict[str, Any]:
    """Of the service's container, as the kubelet has given them to it."""
    found = next(each for each in release.pods() if each["metadata"]["name"] == pod)
    own = next(each for each in found["status"]["containerStatuses"] if each["name"] == "kunicorn")
    given: dict[str, Any] = own.get("resources", {})
    return given


def _resize(release: Release, pod: str, resources: dict[str, Any]) -> None:
    patch = {"spec": {"containers": [{"name": "kunicorn", "resources": resources}]}}
    release.kubectl("patch", "pod", pod, "--subresource=resize", "--patch", json.dumps(patch))
    limits = resources["limits"]

    def given() -> bool:
        return bool(limits.items() <= _resources(release, pod).get("limits", {}).items())

    wait_until(given, f"{pod} at {limits}", WITHIN, 0.5)
