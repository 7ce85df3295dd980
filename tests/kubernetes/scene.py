"""What a scenario plays in: a namespace, a topic and its group under load, the chart's releases, and the audit."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kunicorn.ipc.clock import now_ns
from tests.chaos.calls import read_calls
from tests.chaos.load import Load
from tests.deploy.charts import CHART
from tests.kubernetes import handler
from tests.kubernetes.brokers import Brokers, GivenBrokers, SecuredBrokers
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.collector import Collector
from tests.kubernetes.release import WITHIN, Release, over
from tests.system.producing import committed_offsets, end_offsets
from tests.waiting import wait_until

PARTITIONS, RATE, PODS, WORKERS = 6, 60, 2, 2
HANDLER_MS = 20
SESSION, COMMIT_INTERVAL = 10.0, 1.0
"""Seconds. With the default session of 45 a run would take an hour longer."""
RELEASE = "orders"
_HANDLER = Path(handler.__file__).read_text()


@dataclass(frozen=True)
class Image:
    """A reference, as `kunicorn:new`."""

    reference: str

    @property
    def named(self) -> dict[str, str]:
        """As the chart takes it apart."""
        repository, _, tag = self.reference.rpartition(":")
        return {"repository": repository, "tag": tag}

    @property
    def values(self) -> dict[str, Any]:
        """For the chart."""
        return {"image": {**self.named, "pullPolicy": "IfNotPresent"}}


@dataclass(frozen=True)
class Given:
    """What a run was given."""

    cluster: Cluster
    brokers: Brokers | SecuredBrokers | GivenBrokers
    host: str
    """An address of this machine that pods can reach."""
    image: Image
    old_image: Image | None = None
    old_commit: str = ""
    pipeline_image: Image | None = None


class Scene:
    """A namespace of its own; everything in it is gone when the block ends. Logs and audit stay in `directory`."""

    def __init__(self, given: Given, name: str, directory: Path, labels: Mapping[str, str] | None = None) -> None:
        self.given = given
        self.cluster = given.cluster
        self.namespace = f"kunicorn-{name}-{secrets.token_hex(2)}"
        self.topic = self.namespace
        self.directory = directory / self.namespace
        self.audit = self.directory / "audit"
        self.audit.mkdir(parents=True)
        self.collector = Collector(given.host, self.audit)
        self.releases: list[Release] = []
        self.killed: set[int] = set()
        """Workers, by their numbers in the audit."""
        self.victims: set[str] = set()
        """Pods whose records since the last commit may be handled again."""
        self.in_hand = 0
        """So many records may be handled again because their workers were ended with them in hand."""
        self.round = 0
        """So many records may be handled again because the driver of a job was ended in a round."""
        self.hurt_at = 0
        """When the first of it happened, in nanoseconds of the audit's clock."""
        self.began = 0
        """From when on pauses count, in nanoseconds of the audit's clock."""
        self.ended = 0
        """Until when they do; 0: to the end."""
        self.notes: list[str] = []
        """What else was measured, in a few words."""
        self._labels = dict(labels or {})

    def __enter__(self) -> Self:
        metadata = {"name": self.namespace, "labels": self._labels}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.given.brokers.create_topic(self.topic, PARTITIONS)
        self.collector.__enter__()
        self.load = Load(self.given.brokers.bootstrap, self.topic, RATE, more={"message.timeout.ms": 900_000})
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")
        self.collector.__exit__()

    # -- releases

    def values(self, *more: Mapping[str, Any]) -> dict[str, Any]:
        """Of a release that handles the topic."""
        own: dict[str, Any] = {
            "replicaCount": PODS,
            "minReadySeconds": 3,
            "handlerFiles": {"handlers.py": _HANDLER},
            "config": {
                "kafka": {"bootstrap_servers": self.given.brokers.for_pods.split(",")},
                "group": {
                    "id": self.topic,
                    "topics": [self.topic],
                    "session_timeout_ms": int(SESSION * 1000),
                    "heartbeat_interval_ms": 1000,
                    "commit_interval_ms": int(COMMIT_INTERVAL * 1000),
                },
                "handler": {"entrypoint": "handlers:handle"},
                "workers": {"count": WORKERS, "memory_per_worker_mb": 64},
            },
            "resources": {"requests": {"cpu": "50m", "memory": "640Mi"}, "limits": {"memory": "640Mi"}},
            "extraEnv": [
                {"name": "AUDIT_COLLECTOR", "value": self.collector.address},
                {"name": "AUDIT_MEMBER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "HANDLER_MS", "value": str(HANDLER_MS)},
            ],
        }
        return over(own, self.given.image.values, *more)

    def release(self, *more: Mapping[str, Any], name: str = RELEASE, chart: Path = CHART) -> Release:
        """A release that is not installed yet; `more` values."""
        made = Release(self.cluster, self.namespace, name, self.values(*more), self.directory, chart)
        self.releases.append(made)
        return made

    def installed(self, *more: Mapping[str, Any]) -> Release:
        """A release that runs, under load."""
        made = self.release(*more)
        made.install()
        self.load.start()
        self.wait_whole()
        self.began = now_ns()
        return made

    # -- waiting

    def wait_whole(self, pods: int | None = None, within: float = WITHIN) -> None:
        """Until the ready pods of all releases share all partitions, and everything produced so far is handled."""
        wait_until(
            lambda: sum(each.partitions(pods) or 0 for each in self.releases) == PARTITIONS,
            "pods that share all partitions",
            within,
            0.5,
        )
        ends = {partition: len(times) for partition, times in self.load.appended.items()}
        wait_until(lambda: self._handled(ends), f"the records up to {ends} to be handled", within, 0.5)

    def wait_handled_on(self, records: int = RATE) -> None:
        """Until so many more records were handled."""
        before = self.count()
        wait_until(lambda: self.count() >= before + records, f"{records} more records", WITHIN, 0.3)

    def count(self) -> int:
        """Calls that have ended."""
        return sum(call.end is not None for calls in read_calls(self.audit).values() for call in calls)

    def _handled(self, ends: Mapping[int, int]) -> bool:
        done = {p: {c.offset for c in calls if c.end is not None} for p, calls in read_calls(self.audit).items()}
        return all(done.get(partition, set()).issuperset(range(end)) for partition, end in ends.items())

    def wait_committed(self) -> None:
        """Until the brokers say that the group has committed the end of every partition."""
        bootstrap = self.given.brokers.bootstrap
        ends = end_offsets(bootstrap, self.topic, PARTITIONS)

        def done() -> bool:
            committed = committed_offsets(bootstrap, self.topic, self.topic, PARTITIONS)
            return all(end == 0 or committed[tp] == end for tp, end in ends.items())

        wait_until(done, f"the committed offsets {ends}", 60, 0.5)

    # -- what is hurt

    def hurts(self, *pods: str) -> None:
        """From now on these pods' records since the last commit may be handled again."""
        self.hurt_at = self.hurt_at or now_ns()
        self.victims |= set(pods)
        for pod in pods:
            self.killed |= set(self.collector.numbers(pod))

    def last(self, seconds: float) -> None:
        """How long a fault lasts."""
        threading.Event().wait(seconds)
