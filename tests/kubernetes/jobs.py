"""Scenarios of the chart's pipelines: Jobs and CronJobs with Spark in them, whose drivers do not live to their end."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kunicorn.commands.demo.ports import free_ports
from kunicorn.ipc.clock import now_ns
from tests.kubernetes.cluster import Object
from tests.kubernetes.faults import node_pid
from tests.kubernetes.release import Release
from tests.kubernetes.scene import PODS, Scene
from tests.system.producing import produce
from tests.waiting import wait_until

RECORDS, KILLED_AT = 6000, 2500
"""Of a backfill; and after how many of them its driver is killed."""
BACKLOG_FOR, DELETED_AT = 30.0, 300
"""Seconds without a live service; and after how many records that were caught up the pod is deleted."""
ROUND = 600
"""Offsets. A killed driver's round may be handled again."""
EXECUTORS = 2
WITHIN = 600.0
"""Seconds: each driver starts a Java, and so does each executor."""
_JOB, _CRON_JOB = "replay", "nightly"
_IN_CLUSTER = "k8s://https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"
"""By address: there are clusters without names. The kubelet puts in what every pod is told."""


def backfill_resumed(scene: Scene) -> None:
    """A backfill in a Job, its executors in pods, its manifest in an object store. The driver is killed in the middle;
    the Job starts another, which goes on with the same run."""
    produce(scene.given.brokers.bootstrap, scene.topic, RECORDS, value=b"x")
    # The newest of each partition, whose time of arrival is known: what lies before them is older.
    scene.load.start()
    scene.last(3)
    scene.load.stop()
    with object_store(scene.given.host) as (url, access):
        release = scene.release(
            _spark(scene, directory=url, master=_IN_CLUSTER),
            {
                "replicaCount": 0,
                "pipelines": {_JOB: {"command": "backfill", "args": ["--from", "2h"]}},
                "extraEnv": [*scene.values()["extraEnv"], *access],
            },
        )
        release.install()
        wait_handled(scene, release, KILLED_AT, _only(release, "jobs", _JOB))
        (driver,) = _pods(release, "pipeline")
        executors = [each["metadata"]["name"] for each in _pods(release, "executor")]
        assert len(executors) == EXECUTORS, f"executors: {executors}"
        scene.hurts(*executors)
        scene.round = ROUND
        began, scene.began = time.monotonic(), now_ns()
        os.kill(node_pid(driver["metadata"]["uid"], 1, b"kunicorn"), signal.SIGKILL)
        completed(release, _only(release, "jobs", _JOB))
        scene.notes.append(f"executors in {EXECUTORS} pods; complete {time.monotonic() - began:.0f} s after the kill")
        assert len(_pods(release, "pipeline")) == 2, "the Job has not started a second driver, and no third one"


def handed_over(scene: Scene) -> None:
    """The live service is scaled to nothing; a Job of the CronJob catches the group up, loses its pod on the way, and
    is done by the next one; the live service goes on."""
    release = scene.installed(
        _spark(scene, directory="/tmp/runs", master="local[2]"),
        {"pipelines": {_CRON_JOB: {"command": "catch-up", "schedule": "0 3 1 1 *", "args": ["--wait", "120"]}}},
    )
    release.scale(0)
    release.wait_pods(0)
    before = scene.count()
    scene.last(BACKLOG_FOR)
    release.kubectl("create", "job", "by-hand", f"--from={_only(release, 'cronjobs', _CRON_JOB)}")
    wait_handled(scene, release, before + DELETED_AT, "job.batch/by-hand")
    (driver,) = _pods(release, "pipeline")
    release.kubectl("delete", "pod", driver["metadata"]["name"], "--wait=false")
    completed(release, "job.batch/by-hand")
    scene.notes.append(f"{scene.count() - before} records caught up by Spark")
    release.scale(PODS)
    scene.wait_whole(PODS)


def wait_handled(scene: Scene, release: Release, records: int, job: str) -> None:
    """Until so many records were handled; `AssertionError` as soon as the Job has failed."""

    def done() -> bool:
        _conditions(release, job)
        return scene.count() >= records

    wait_until(done, f"{records} records to be handled", WITHIN, 0.3)


def completed(release: Release, job: str) -> None:
    """Wait until the Job is complete; `AssertionError` where it has failed."""
    wait_until(lambda: "Complete" in _conditions(release, job), f"{job} to be complete", WITHIN, 1)


def _conditions(release: Release, job: str) -> list[str]:
    """Of the Job; raises `AssertionError` where one says that it has failed."""
    found = release.kubectl("get", job, "-o", "jsonpath={.status.conditions[*].type}").split()
    assert "Failed" not in found, f"{job} has failed"
    return found


def _spark(scene: Scene, directory: str, master: str) -> Mapping[str, Any]:
    assert scene.given.pipeline_image is not None
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1536Mi"}}
    return {
        "config": {
            "pipeline": {
                "directory": directory,
                "max_offsets_per_trigger": ROUND,
                "spark": {
                    "spark.executor.instances": str(EXECUTORS),
                    "spark.executor.memory": "512m",
                    "spark.kubernetes.executor.request.cores": "0.1",
                    "spark.ui.enabled": "false",
                },
            }
        },
        "pipeline": {
            "image": scene.given.pipeline_image.named,
            "master": master,
            "resources": resources,
        },
    }


def _pods(release: Release, component: str) -> list[Object]:
    selector = f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component={component}"
    return release.cluster.pods(release.namespace, selector)


def _only(release: Release, kind: str, entry: str) -> str:
    """The object of an entry of `pipelines`, as `job.batch/NAME`."""
    found = release.kubectl("get", kind, "-o", "name").split()
    (name,) = (each for each in found if f"-{entry}" in each)
    return name


@contextmanager
def object_store(host: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The URL of a bucket that pods reach on this machine, and the variables by which they find and may use it."""
    (port,) = free_ports(1)
    server, bucket = f"http://{host}:{port}", f"runs-{secrets.token_hex(2)}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    access = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        wait_until(lambda: _made(f"{server}/{bucket}"), "an object store", 60, 0.2)
        yield f"s3://{bucket}/runs", [{"name": name, "value": value} for name, value in access.items()]
    finally:
        process.kill()
        process.wait(10)


def _made(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5):
            return True
    except urllib.error.URLError:
        return False
