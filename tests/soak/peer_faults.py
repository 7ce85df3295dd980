"""What groups of other clients meet while ours meets a fault: the same, or what comes nearest. One flat table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.chaos import faults as chaos
from tests.kafka.proxied import Direction
from tests.soak.faults import QUIET
from tests.soak.peers import PeerGroup

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
    chaos.freeze([group.any_member().process.pid], seconds)


def _add(group: PeerGroup) -> None:
    group.start()


def _restart_all(group: PeerGroup) -> None:
    for slot in [member.slot for member in group.members]:
        # One that ends by itself meanwhile is another process by now.
        member = next(each for each in group.members if each.slot == slot)
        group.stop(member)
        group.start(member)
        group.wait_whole()


def _cut(group: PeerGroup, sessions: float, *directions: Direction) -> None:
    chaos.cut(group.kafka, group.link, sessions * group.shape.session, *directions)


THEIRS: Mapping[str, Callable[[PeerGroup], None]] = {
    **dict.fromkeys((QUIET, *sorted(SHARED)), _nothing_more),
    "kill-worker": _kill_and_start,
    "freeze-worker": lambda group: _freeze(group, chaos.FROZEN),
    "kill-supervisor": _kill,
    "freeze-member": lambda group: _freeze(group, chaos.FROZEN_SESSIONS * group.shape.session),
    "scale-out": _add,
    "scale-in": lambda group: group.stop(group.any_member()),
    "rolling-restart": _restart_all,
    "rolling-static": _restart_all,
    "move-leaders": lambda group: group.kafka.lead_anew(group.topic),
    "slow-network": lambda group: chaos.slow(group.kafka, group.link),
    "reset-connections": lambda group: chaos.reset(group.kafka, group.link),
    "cut-briefly": lambda group: _cut(group, chaos.BRIEFLY, "to", "from"),
    "cut": lambda group: _cut(group, chaos.LONG, "to", "from"),
    "cut-to": lambda group: _cut(group, chaos.LONG, "to"),
    "cut-from": lambda group: _cut(group, chaos.LONG, "from"),
}
"""By the name that the fault has in `tests.soak.faults`. What is not here means nothing to one process without a
supervisor, or takes something from our topic alone."""
