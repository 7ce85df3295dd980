"""Every scenario: what is done, what it needs, and what may be handled again for it. One flat table, best first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.chaos.faults import Repeats
from tests.kubernetes import commands, credentials, faults, jobs, lifecycle, network
from tests.kubernetes.needs import Need
from tests.kubernetes.scene import Scene


@dataclass(frozen=True)
class Scenario:
    """`play` returns when the release is whole again; it raises `AssertionError` or `Refused` where it is not."""

    title: str
    play: Callable[[Scene], None]
    needs: frozenset[Need] = frozenset()
    repeats: Repeats = Repeats.NOTHING
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the namespace."""
    group: bool = True
    """Whether at the end members share all partitions, and have committed everything."""
    secured: bool = False
    """On brokers of its own that ask for logins and certificates."""


_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

SCENARIOS: Mapping[str, Scenario] = {
    "install": Scenario("`helm install`", lifecycle.install),
    "test": Scenario("`helm test`", lifecycle.helm_test),
    "rollout": Scenario("every pod replaced (`kubectl rollout restart`)", lifecycle.rollout),
    "upgrade": Scenario("other settings by `helm upgrade`, and `helm rollback`", lifecycle.upgrade_and_rollback),
    "scale": Scenario("scaled to 3 pods, to 1, to 2", lifecycle.scale),
    "delete": Scenario("a pod deleted", faults.deleted),
    "delete-now": Scenario("a pod deleted without grace", faults.deleted_at_once, repeats=Repeats.SINCE_COMMIT),
    "worker-oom": Scenario(
        "a worker killed by the kernel for its memory", faults.worker_out_of_memory, repeats=Repeats.IN_HAND
    ),
    "supervisor": Scenario(
        "a supervisor (PID 1) killed", faults.supervisor_killed, frozenset({Need.PROCESSES}), Repeats.SINCE_COMMIT
    ),
    "supervisor-oom": Scenario(
        "a supervisor killed by the kernel for its pod's memory",
        faults.supervisor_out_of_memory,
        repeats=Repeats.SINCE_COMMIT,
    ),
    "brokers": Scenario(
        "brokers away, pods scheduled anew meanwhile",
        faults.brokers_away,
        frozenset({Need.BROKERS}),
        Repeats.SINCE_COMMIT,
    ),
    "config": Scenario("the ConfigMap changed, and SIGHUP", lifecycle.config_map),
    "static": Scenario("static members rolled", lifecycle.static_rolled),
    "switch": Scenario("a Deployment made a StatefulSet, and back", lifecycle.switched),
    "drain": Scenario("a node drained through the PodDisruptionBudget", faults.drained),
    "throttle": Scenario("pods held to a tenth of a processor for a minute", faults.throttled),
    "password": Scenario(
        "a password changed in its Secret",
        credentials.password_changed,
        frozenset({Need.BROKERS}),
        Repeats.SINCE_COMMIT,
        secured=True,
    ),
    "certificate": Scenario(
        "a client's certificate changed in its Secret",
        credentials.certificate_changed,
        frozenset({Need.BROKERS}),
        Repeats.SINCE_COMMIT,
        secured=True,
    ),
    "http-tls": Scenario(
        "TLS on the HTTP port, its certificate changed in its Secret", credentials.port_certificate_renewed
    ),
    "two-releases": Scenario("a second release in the namespace comes and goes", lifecycle.two_releases),
    "restricted": Scenario("restricted Pod Security enforced", lifecycle.restricted, labels=_RESTRICTED),
    "kunicorn": Scenario(
        "kunicorn itself upgraded and rolled back", lifecycle.kunicorn_upgraded, frozenset({Need.OLD_IMAGE})
    ),
    "autoscaler": Scenario("an autoscaler's scaling, by hand: 3 pods, none, 2", lifecycle.autoscaled),
    "commands": Scenario(
        "every command of the runbooks, as it is written there",
        commands.typed,
        frozenset({Need.BROKERS, Need.PROCESSES}),
        Repeats.SINCE_COMMIT,
    ),
    "network": Scenario("NetworkPolicy on", network.policed),
    "job": Scenario(
        "a backfill in a Job, Spark's executors in pods, its driver killed",
        jobs.backfill_resumed,
        frozenset({Need.SPARK, Need.PROCESSES}),
        Repeats.ROUND,
        group=False,
    ),
    "cronjob": Scenario(
        "live, then a catch-up of a CronJob whose pod is deleted, then live",
        jobs.handed_over,
        frozenset({Need.SPARK}),
    ),
}
