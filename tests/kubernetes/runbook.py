"""Runbooks, followed by a script: for each alert the sentences of its page that can be acted upon, and nothing else.

The script sees which alerts fire, and what the page tells to look at. What went wrong it is not told.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.credentials import LOGIN, USER
from tests.kubernetes.mishaps import Day
from tests.kubernetes.release import WITHIN
from tests.kubernetes.scene import PARTITIONS, PODS

PAGES = Path(__file__).parents[2] / "docs" / "runbooks"


@dataclass(frozen=True)
class Step:
    """`words` are on the page; `act` does what they say, and returns whether there was anything to do."""

    words: str
    act: Callable[[Day], bool]
    again: bool = False
    """Whether it is done whenever there is something to do for it: what it ends may begin anew in another pod."""


def _roll_back(day: Day) -> bool:
    revision = len(day.release.history())
    if revision < 2:
        return False
    day.release.rollback(revision - 1)
    return True


def _end_worker(day: Day) -> bool:
    oldest = [
        (worker["pid"], pod)
        for pod in day.release.names()
        for worker in day.release.status(pod).get("workers", [])
        if (worker["in_hand_age"] or 0) > 60
    ]
    for pid, pod in oldest:
        day.release.execute(pod, "sh", "-c", f"kill -ABRT {pid}")
    return bool(oldest)


def _ask_for_brokers(day: Day) -> bool:
    """Whoever runs them looks whether the broker is there, and whether it answers."""
    broker = day.brokers.broker(1)
    if not broker.alive:
        broker.start()
    elif not day.frozen:
        return False
    else:
        broker.thaw()
        day.frozen = False
    day.brokers.wait_until_ready(WITHIN)
    return True


def _give_rights(day: Day) -> bool:
    if "AUTHORIZATION_FAILED" not in day.release.logs() + day.release.last_words():
        return False
    day.brokers.allow_group(USER, day.scene.topic)
    return True


def _correct_secret(day: Day) -> bool:
    if "authentication" not in day.release.logs().lower():
        return False
    data = f'{{"data": {{"password": "{base64.b64encode(day.password.encode()).decode()}"}}}}'
    day.release.kubectl("patch", "secret", LOGIN, "--patch", data)
    return True


def _scale_up_again(day: Day) -> bool:
    if day.release.names():
        return False
    day.release.scale(PODS)
    return True


def _more_pods(day: Day) -> bool:
    """All partitions run, and are behind: nothing else is wrong."""
    if day.release.partitions() != PARTITIONS:
        return False
    day.release.scale(PODS + 1)
    return True


def _roll_back_what_does_not_start(day: Day) -> bool:
    if not any(waiting.startswith(("Crash", "Image", "Create", "Error")) for waiting in day.release.waiting()):
        return False
    return _roll_back(day)


RUNBOOK: Mapping[str, Sequence[Step]] = {
    "KunicornPartitionHalted": (Step("The handler is wrong: deploy a corrected one.", _roll_back),),
    "KunicornHandlerStuck": (Step("Now: end the worker", _end_worker, again=True),),
    "KunicornWorkersDying": (Step("A rollout that began it: `helm rollback`", _roll_back),),
    "KunicornNoMembers": (
        Step("No pods, and none wanted: scale the workload to `replicaCount`", _scale_up_again),
        Step("the group's rights", _give_rights),
    ),
    "KunicornPodSilent": (
        Step("A rollout whose pods do not start: `helm rollback`", _roll_back_what_does_not_start),
        Step("the group's rights", _give_rights),
    ),
    "KunicornHeartbeatLate": (
        Step("Brokers: whoever runs them", _ask_for_brokers),
        Step("a corrected Secret is read again by itself", _correct_secret),
    ),
    "KunicornPartitionsLost": (Step("As for [KunicornHeartbeatLate]", _ask_for_brokers),),
    "KunicornCommitsFailing": (Step("Repair the cluster or the rights", _give_rights),),
    "KunicornNotReady": (Step("a corrected Secret is read again by itself", _correct_secret),),
    "KunicornRestarting": (
        Step("the group's rights", _give_rights),
        Step("A rollout that caused it: `helm rollback`", _roll_back_what_does_not_start),
    ),
    "KunicornLagHigh": (Step("then `replicaCount`", _more_pods),),
}
"""Alerts whose pages tell nobody what to do are not here."""
