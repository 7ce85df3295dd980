"""The alerts and the dashboard on a real Prometheus over a real group: silent while all is well, and each fires for
what is really done to it. A minute of the rules is a second here.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kunicorn.observe.generate import expressions
from tests.deploy.prometheus import Prometheus, hurried, rules_of
from tests.deploy.tools import Tools
from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

THRESHOLDS = {
    "}) > 300": "}) > 5",
    "}) > 60": "}) > 3",
    "}[10m])) > 6": "}[40m])) > 3",
    "} > 120": "} > 8",
    "} < 900": "} < 15",
}
SETTINGS = {
    "kafka": {"statistics_interval_ms": 1000},
    "group": {"commit_interval_ms": 500, "session_timeout_ms": 10_000},
    "handler": {"on_failure": "dead_letter", "max_attempts": 2, "retry_backoff_ms": 10},
}
NEVER_SEEN = {
    "kunicorn_skipped_records_total",
    "kunicorn_filtered_records_total",
    "kunicorn_circuit_breaker_opened_total",
    "kunicorn_rate_limit_per_second",
    "kunicorn_unencoded_outputs_total",
    "kunicorn_worker_recycles_total",
    "kunicorn_handler_timeouts_total",
    "kunicorn_hook_failures_total",
    "kunicorn_retry_topic_records_total",
    "messaging_client_sent_messages_total",
    "kunicorn_transactions_total",
    "kunicorn_tls_certificate_expiry_timestamp_seconds",
}
"""Nothing is skipped, filtered, limited, recycled, encoded or sent here, and no hook is called: absent, or 0."""


@pytest.fixture
def scene(kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path) -> Scene:
    """Six partitions and a handler that does what the records say."""
    kafka.create_topic(topic, 6)
    kafka.create_topic(f"{topic}.dead-letters", 1)
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint="tests.system.handlers.moody:handle",
        settings=SETTINGS,
        env={"MARKS_DIRECTORY": str(tmp_path)},
    )
    return Scene(kafka, topic, 6, members, tmp_path)


def test_alerts_are_silent_in_health_and_fire_for_what_is_done(scene: Scene, tools: Tools, tmp_path: Path) -> None:
    rules = hurried(rules_of(scene.topic), THRESHOLDS)
    member = scene.members.start()
    member.wait_running(6)
    with Prometheus(tools, tmp_path, rules) as prometheus, Flow(scene.kafka.bootstrap, scene.topic, 50):

        def fires(*alerts: str, within: float = 60.0) -> None:
            wait_until(lambda: set(alerts) <= prometheus.firing(), f"{alerts} to fire", within, every=0.5)

        def passes() -> None:
            wait_until(lambda: not prometheus.firing(), "all alerts to end", 120, every=0.5)

        prometheus.scrape([member.port])
        passes()
        # An hour of the rules' time.
        wait_until(lambda: len(prometheus.query(_SCRAPED_FOR_A_MINUTE)) == 1, "a healthy minute", 240, every=1)
        assert prometheus.firing(within="55s") == set()

        scene.send(0, *["poison"] * 3)
        fires("KunicornDeadLetters")
        passes()

        _come_and_go(scene, prometheus)
        passes()

        _kill_workers(scene, fires)
        passes()

        scene.send(1, "hang")
        fires("KunicornHandlerStuck", "KunicornPartitionStalled", "KunicornLagHigh", within=90)
        _look_at_the_dashboard(prometheus)
        (scene.marks / "go on").touch()
        passes()

        member.kill()
        prometheus.scrape([])
        fires("KunicornNoMembers")


_SCRAPED_FOR_A_MINUTE = "min_over_time(up[60s]) == 1 and count_over_time(up[60s]) >= 57"
"""Without one scrape that failed: hurried, an alert on a pod that is silent waits for two of them."""


def _come_and_go(scene: Scene, prometheus: Prometheus) -> None:
    """Another member joins and leaves, again and again, until that is noticed."""

    def once() -> bool:
        other = scene.members.start()
        other.wait(lambda: other.partitions("running"), "partitions of its own")
        assert other.stop() == 0
        return "KunicornRebalanceStorm" in prometheus.firing()

    wait_until(once, "KunicornRebalanceStorm", 180, every=0)


def _kill_workers(scene: Scene, fires: Callable[..., None]) -> None:
    """Six deaths, each of a worker that is there."""
    member = scene.members.started[0]
    killed: set[int] = set()
    while len(killed) < 6:
        pids = member.wait(lambda: {w["pid"] for w in member.workers() if w["state"] == "ready"} - killed, "a worker")
        os.kill(pid := min(pids), signal.SIGKILL)
        killed.add(pid)
    fires("KunicornWorkersDying")


def _look_at_the_dashboard(prometheus: Prometheus) -> None:
    """Every expression is one, and shows something."""
    empty = []
    for expression in expressions():
        # Panels of what is wrong are empty where nothing is: asked for is what they compare.
        asked = re.sub(r" (> 0|== 0)\b", "", expression.replace("$__rate_interval", "30s"))
        for variable in ("$job", "$instance", "$group"):
            asked = asked.replace(variable, ".*")
        if not prometheus.query(asked) and not any(name in expression for name in NEVER_SEEN):
            empty.append(expression)
    assert empty == []
