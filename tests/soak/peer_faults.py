"""What groups of other clients meet while ours meets a fault: the same, or what comes nearest. One flat table."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from tests.chaos.group import last_for
from tests.kafka.proxied import Direction
from tests.soak.faults import QUIET
from tests.soak.peers import Peer, PeerGroup

SHARED = frozenset(
    {
        *("kill-broker", "kill-coordinator", "freeze-broker", "restart-brokers"),
        *("quota", "fill-disk", "upgrade-brokers"),
    }
)
"""Faults of the brokers, which every group of theirs meets."""


def _nothing_more(group: PeerGroup) -> None:
    """The brokers are hurt, once for all groups; or nobody is."""


def _kill_and_start(group: PeerGroup) -> None:
    """A process manager starts it again at once."""
    member = group.any_member()
    group.kill(member)
    group.start(member)


def _kill(group: PeerGroup) -> None:
    """As ours: where ids are static, it is there again at once; else when the others have what it had."""
    member = group.any_member()
    group.kill(member)
    if not group.shape.static:
        group.wait_whole()
    group.start(member)


def _freeze(group: PeerGroup, seconds: float) -> None:
    member = group.any_member()
    member.process.send_signal(signal.SIGSTOP)
    last_for(seconds)
    member.process.send_signal(signal.SIGCONT)


def _add(group: PeerGroup) -> None:
    group.start()


def _restart_all(group: PeerGroup) -> None:
    for member in list(group.members):
        _replace(group, member)


def _replace(group: PeerGroup, member: Peer) -> None:
    group.stop(member)
    group.start(member)
    group.wait_whole()


def _move_leaders(group: PeerGroup) -> None:
    group.kafka.rotate_replicas(group.topic)
    group.kafka.elect_preferred(group.topic)


def _slow(group: PeerGroup) -> None:
    group.kafka.slow(group.link, 0.3)
    last_for(6)
    group.kafka.heal(group.link)


def _reset(group: PeerGroup) -> None:
    for _ in range(5):
        group.kafka.reset(group.link)
        last_for(1)


def _cut(group: PeerGroup, sessions: float, *directions: Direction) -> None:
    group.kafka.cut(group.link, *directions)
    last_for(sessions * group.shape.session)
    group.kafka.heal(group.link)


THEIRS: Mapping[str, Callable[[PeerGroup], None]] = {
    **dict.fromkeys((QUIET, *sorted(SHARED)), _nothing_more),
    "kill-worker": _kill_and_start,
    "freeze-worker": lambda group: _freeze(group, 3),
    "kill-supervisor": _kill,
    "freeze-member": lambda group: _freeze(group, 2 * group.shape.session),
    "scale-out": _add,
    "scale-in": lambda group: group.stop(group.any_member()),
    "rolling-restart": _restart_all,
    "rolling-static": _restart_all,
    "move-leaders": _move_leaders,
    "slow-network": _slow,
    "reset-connections": _reset,
    "cut-briefly": lambda group: _cut(group, 0.5, "to", "from"),
    "cut": lambda group: _cut(group, 1.5, "to", "from"),
    "cut-to": lambda group: _cut(group, 1.5, "to"),
    "cut-from": lambda group: _cut(group, 1.5, "from"),
}
"""By the name that the fault has in `tests.soak.faults`. What is not here means nothing to one process without a
supervisor, or takes something from our topic alone."""
