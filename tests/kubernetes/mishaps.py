"""Twelve faults of a game day: what goes wrong in a running release, which the one who is called is not told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.kafka.secured import PASSWORDS
from tests.kubernetes import handler
from tests.kubernetes.brokers import SecuredBrokers
from tests.kubernetes.credentials import USER
from tests.kubernetes.faults import node_pid
from tests.kubernetes.release import WITHIN, Release
from tests.kubernetes.scene import Scene
from tests.system.producing import produce

_BROKEN = {"HANDLER_IS": "broken"}


@dataclass
class Day:
    """A scene with one release on brokers that ask for logins, and who owns what the release's owner does not."""

    scene: Scene
    release: Release
    brokers: SecuredBrokers
    values: Mapping[str, object] = field(default_factory=dict)
    """Of the release as it is when all is well."""
    password: str = PASSWORDS[USER]
    """What the brokers want now, as their owner would say it."""
    frozen: bool = False
    """Whether the broker is; its owner sees that."""
    excused: dict[int, int] = field(default_factory=dict)
    """By partition: offsets below were deleted before anybody could handle them."""

    def upgrade(self, more: Mapping[str, object]) -> None:
        """What somebody rolls out, and does not wait for."""
        environment = self.release.values["extraEnv"]
        own = [*environment, *({"name": name, "value": value} for name, value in more.items())]
        self.release.roll_out(self.values, {"extraEnv": own})

    def send(self, value: bytes) -> None:
        """One record among the others."""
        produce(self.brokers.bootstrap, self.scene.topic, 1, value=value)


@dataclass(frozen=True)
class Mishap:
    """`inflict` returns when it is done. `pages` is the alert that was made for it."""

    title: str
    inflict: Callable[[Day], None]
    pages: str


def _handler_fails(day: Day) -> None:
    day.upgrade(_BROKEN)
    # Before that a pod of the old revision could handle it.
    day.release.rolled_out()
    day.send(handler.FAULTY)


def _handler_hangs(day: Day) -> None:
    day.send(handler.HANGING)


def _handler_leaks(day: Day) -> None:
    day.upgrade({"HANDLER_IS": "leaking"})


def _brokers_away(day: Day) -> None:
    day.brokers.broker(1).stop()


def _brokers_frozen(day: Day) -> None:
    day.brokers.broker(1).freeze()
    day.frozen = True


def _rights_taken(day: Day) -> None:
    day.brokers.forbid(USER)


def _password_changed(day: Day) -> None:
    day.password = "distinctive-th1rd"
    day.brokers.set_password(USER, day.password)
    day.brokers.broker(1).stop()
    day.brokers.broker(1).start()
    day.brokers.wait_until_ready(WITHIN)


def _scaled_away(day: Day) -> None:
    day.release.scale(0)


def _supervisor_frozen(day: Day) -> None:
    pod = day.release.pods()[0]
    day.scene.hurts(pod["metadata"]["name"])
    os.kill(node_pid(pod["metadata"]["uid"], 1, b"kunicorn"), signal.SIGSTOP)


def _wrong_setting(day: Day) -> None:
    day.upgrade({"KUNICORN_GROUP__HEARTBEAT_INTERVAL_MS": "soon"})


def _records_deleted(day: Day) -> None:
    """Nobody has handled them: the pods are away while they are deleted."""
    day.release.scale(0)
    day.release.wait_pods(0)
    produce(day.brokers.bootstrap, day.scene.topic, 60)
    day.excused.update(day.brokers.delete_records(day.scene.topic, {0: -1}))
    day.release.scale(2)


def _overload(day: Day) -> None:
    produce(day.brokers.bootstrap, day.scene.topic, 60_000)


MISHAPS: Mapping[str, Mishap] = {
    "handler-fails": Mishap(
        "a handler rolled out that cannot handle some records", _handler_fails, "KunicornPartitionHalted"
    ),
    "handler-hangs": Mishap("a handler call that does not end", _handler_hangs, "KunicornHandlerStuck"),
    "handler-leaks": Mishap("a handler rolled out that takes all memory", _handler_leaks, "KunicornWorkersDying"),
    "brokers-away": Mishap("the broker is stopped", _brokers_away, "KunicornHeartbeatLate"),
    "brokers-frozen": Mishap("the broker answers nobody", _brokers_frozen, "KunicornHeartbeatLate"),
    "rights": Mishap("the group's rights are taken away", _rights_taken, "KunicornNoMembers"),
    "password": Mishap("the password is changed at the brokers alone", _password_changed, "KunicornHeartbeatLate"),
    "scaled-away": Mishap("somebody scales the release to nothing", _scaled_away, "KunicornNoMembers"),
    "supervisor-frozen": Mishap("a supervisor freezes", _supervisor_frozen, "KunicornPodSilent"),
    "wrong-setting": Mishap("a setting that is wrong is rolled out", _wrong_setting, "KunicornPodSilent"),
    "records-deleted": Mishap("records are deleted before they are handled", _records_deleted, "KunicornOffsetsReset"),
    "overload": Mishap("a thousand times the records of a minute arrive", _overload, "KunicornLagHigh"),
}
