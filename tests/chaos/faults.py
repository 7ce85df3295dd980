"""Every fault: what is done, and what may be handled twice because of it. One flat table."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from tests.chaos.calls import Repeat
from tests.chaos.group import Group, kill, last_for, now
from tests.kafka import Broker, ProxiedCluster
from tests.kafka.proxied import Direction
from tests.system import procfs
from tests.system.members import MemberProcess
from tests.waiting import wait_until

DEAD_BROKER = 10.0
"""Seconds for which a killed broker stays away: its coordinator is replaced after 7 to 12."""
FROZEN = 3.0
"""Seconds, of a worker."""
FROZEN_SESSIONS, BRIEFLY, LONG = 2, 0.5, 1.5
"""Sessions for which a member is frozen, or cut off."""
POISONED = 3
"""Records, of different customers."""


class Repeats(Enum):
    """What a fault may cause to be handled again; the value is how docs/delivery.md says it."""

    NOTHING = "0"
    IN_HAND = "the record in hand"
    SINCE_COMMIT = "since the last commit"
    ROUND = "the round underway"
    UNCOMMITTED = "what no transaction had committed"
    POISON = "each poison once"


class Kind(Enum):
    """In which groups a fault has its meaning."""

    ANY = "any"
    DYNAMIC = "dynamic"
    STATIC = "static"
    LOGGED_IN = "logged in"
    """Whose members log in, and have rights that can be taken from them."""
    CLASSIC = "classic"
    """Of the classic protocol, the only one that brokers before Kafka 4 offer."""
    KEYED = "keyed"
    """In which a record's key tells its log from the one before, wherever its effects are: no offsets beside effects,
    no poison."""
    EARLIER = "earlier"
    """That members of an earlier commit can be in."""


@dataclass(frozen=True)
class Hurt:
    """Who was hurt, and when it began (nanoseconds of the audit's clock)."""

    at: int
    killed: frozenset[int] = frozenset()
    """Workers' pids."""
    victim: str = ""
    """The member that may have handled what another one handles again."""
    poison: frozenset[tuple[int, int]] = frozenset()
    """Partition and offset of records that kill whoever handles them."""
    partitions: frozenset[int] = frozenset()
    """Those of whose logs something was taken."""
    again: Sequence[Repeat] = ()
    """What was handled again since, as complaints may have to know."""


def _no_complaint(group: Group, hurt: Hurt) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True)
class Fault:
    """One way to hurt the group. `inflict` returns when the fault is over, or nothing more is to be done about it."""

    title: str
    repeats: Repeats
    inflict: Callable[[Group], Hurt]
    kind: Kind = Kind.ANY
    rebalances: bool = False
    """Whether it may cause any: members come, go, or are taken for dead."""
    overlaps: bool = False
    """Another member may begin while a worker of the victim still has the record in hand of when its lease ran out."""
    seconds: float = 5.0
    """About how long it takes until the group is whole again, on an idle machine."""
    sessions: float = 0.0
    """And so many sessions."""
    complaints: Callable[[Group, Hurt], Iterator[str]] = _no_complaint
    """Of the group that is whole again: what it was promised beside that, and whether the fault has happened."""


def _kill_worker(group: Group) -> Hurt:
    pid = group.any_worker(group.any_member())
    hurt = Hurt(now(), frozenset({pid}))
    kill(pid, signal.SIGKILL)
    return hurt


def _freeze_worker(group: Group) -> Hurt:
    pid = group.any_worker(group.any_member())
    hurt = Hurt(now())
    freeze([pid], FROZEN)
    return hurt


def _poison(group: Group) -> Hurt:
    """Returns when each of them is in the dead-letter topic."""
    hurt = Hurt(now(), poison=frozenset(group.send_poison(POISONED)))
    group.wait_letters()
    return hurt


def _kill_template(group: Group) -> Hurt:
    member = group.any_member()
    children = procfs.children(member.pid)
    (template,) = [child.pid for child in children if child.name == "kunicorn-tmpl"]
    hurt = Hurt(now())
    kill(template, signal.SIGKILL)
    member.wait(lambda: member.status()["template"] == "ready" and procfs.info(template) is None, "its successor")
    return hurt


def _kill_supervisor(group: Group) -> Hurt:
    """A dynamic member's partitions are free when its session ends; a static one's successor has them at once."""
    victim = group.any_member()
    workers = group.worker_pids(victim)
    hurt = Hurt(now(), workers, victim.name)
    victim.kill()
    group.alive.remove(victim)
    wait_until(lambda: not procfs.living_in_session(victim.pid), "the workers to follow their supervisor")
    if not group.static:
        group.wait_whole()
    group.start(instead_of=victim)
    return hurt


def _freeze(group: Group, victim: MemberProcess, pids: list[int]) -> Hurt:
    hurt = Hurt(now(), victim=victim.name)
    freeze(pids, FROZEN_SESSIONS * group.terms.session)
    return hurt


def _freeze_supervisor(group: Group) -> Hurt:
    victim = group.any_member()
    return _freeze(group, victim, [victim.pid])


def _freeze_member(group: Group) -> Hurt:
    victim = group.any_member()
    return _freeze(group, victim, [process.pid for process in procfs.living_in_session(victim.pid)])


def _scale_out(group: Group) -> Hurt:
    hurt = Hurt(now())
    group.start()
    return hurt


def _scale_in(group: Group) -> Hurt:
    hurt = Hurt(now())
    group.stop(group.any_member())
    return hurt


def _rolling_restart(group: Group) -> Hurt:
    hurt = Hurt(now())
    for member in list(group.alive):
        replace_member(group, member)
    return hurt


def replace_member(
    group: Group, member: MemberProcess, version: Mapping[str, Any] = MappingProxyType({})
) -> MemberProcess:
    """Stop it in order, and have another one in its place, of that version (arguments of `Members.start`)."""
    group.stop(member)
    successor = group.start(member, version)
    group.wait_whole()
    return successor


def another_broker(group: Group) -> Broker:
    """One that is not the group's coordinator."""
    coordinator = group.coordinator()
    return group.rng.choice([broker for broker in group.kafka.brokers if broker is not coordinator])


def _kill_broker(group: Group, victim: Broker) -> Hurt:
    hurt = Hurt(now())
    victim.kill()
    last_for(DEAD_BROKER)
    victim.start()
    group.kafka.wait_until_whole()
    return hurt


def _freeze_broker(group: Group) -> Hurt:
    victim = group.rng.choice(group.kafka.brokers)
    hurt = Hurt(now())
    victim.freeze()
    last_for(6)
    victim.thaw()
    group.kafka.wait_until_whole()
    return hurt


def _restart_brokers(group: Group) -> Hurt:
    hurt = Hurt(now())
    for broker in group.kafka.brokers:
        restart_broker(group, broker)
    return hurt


def restart_broker(group: Group, broker: Broker) -> None:
    """In order; returns when it is back and has replicated what it had missed."""
    broker.stop()
    broker.start()
    group.kafka.wait_until_whole()


def _slow_network(group: Group) -> Hurt:
    link = group.link(group.any_member())
    hurt = Hurt(now())
    slow(group.kafka, link)
    return hurt


def _reset_connections(group: Group) -> Hurt:
    link = group.link(group.any_member())
    hurt = Hurt(now())
    reset(group.kafka, link)
    return hurt


def _cut(group: Group, sessions: float, *directions: Direction) -> Hurt:
    victim = group.any_member()
    hurt = Hurt(now(), victim=victim.name)
    cut(group.kafka, group.link(victim), sessions * group.terms.session, *directions)
    return hurt


# -- what other clients' groups meet, too ------------------------------------------------------------------------------


def freeze(pids: Sequence[int], seconds: float) -> None:
    """These processes, from the first to the last; the last goes on first."""
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    last_for(seconds)
    for pid in reversed(pids):
        kill(pid, signal.SIGCONT)


def slow(kafka: ProxiedCluster, link: str) -> None:
    """For a while, everything on the link takes longer in each direction."""
    kafka.slow(link, 0.3)
    last_for(6)
    kafka.heal(link)


def reset(kafka: ProxiedCluster, link: str) -> None:
    """All connections of the link, again and again."""
    for _ in range(5):
        kafka.reset(link)
        last_for(1)


def cut(kafka: ProxiedCluster, link: str, seconds: float, *directions: Direction) -> None:
    """Nothing gets through on the link for so long."""
    kafka.cut(link, *directions)
    last_for(seconds)
    kafka.heal(link)


N, H, C, P = Repeats.NOTHING, Repeats.IN_HAND, Repeats.SINCE_COMMIT, Repeats.POISON

FAULTS: dict[str, Fault] = {
    "kill-worker": Fault("a worker is killed (SIGKILL)", H, _kill_worker),
    "freeze-worker": Fault("a worker is frozen for 3 s", N, _freeze_worker, seconds=8),
    "poison": Fault(f"{POISONED} records kill every worker that handles them", P, _poison, seconds=15),
    "kill-template": Fault("the template is killed", N, _kill_template),
    "kill-supervisor": Fault("a supervisor is killed", C, _kill_supervisor, rebalances=True, seconds=10, sessions=1),
    "freeze-supervisor": Fault(
        "a supervisor is frozen for two sessions",
        C,
        _freeze_supervisor,
        rebalances=True,
        overlaps=True,
        sessions=FROZEN_SESSIONS,
    ),
    "freeze-member": Fault(
        "a whole member is frozen for two sessions",
        C,
        _freeze_member,
        rebalances=True,
        overlaps=True,
        sessions=FROZEN_SESSIONS,
    ),
    "scale-out": Fault("a member is added", N, _scale_out, Kind.DYNAMIC, rebalances=True),
    "scale-in": Fault("a member is stopped for good", N, _scale_in, Kind.DYNAMIC, rebalances=True),
    "rolling-restart": Fault(
        "all members are restarted one by one", N, _rolling_restart, Kind.DYNAMIC, rebalances=True, seconds=30
    ),
    "rolling-static": Fault(
        "all static members are restarted one by one", N, _rolling_restart, Kind.STATIC, rebalances=True, seconds=30
    ),
    "kill-broker": Fault("a broker is killed", N, lambda group: _kill_broker(group, another_broker(group)), seconds=30),
    "kill-coordinator": Fault(
        "the coordinator is killed", N, lambda group: _kill_broker(group, group.coordinator()), seconds=30
    ),
    "freeze-broker": Fault("a broker is frozen for 6 s", N, _freeze_broker, seconds=15),
    "restart-brokers": Fault("all brokers are restarted one by one", N, _restart_brokers, seconds=60),
    "slow-network": Fault("0.6 s more to a member and back, for 6 s", N, _slow_network, seconds=10),
    "reset-connections": Fault("all connections of a member are reset, five times", N, _reset_connections, seconds=10),
    "cut-briefly": Fault(
        "a member is cut off for half a session", N, lambda g: _cut(g, BRIEFLY, "to", "from"), sessions=BRIEFLY
    ),
    "cut": Fault(
        "a member is cut off for longer than a session",
        C,
        lambda g: _cut(g, LONG, "to", "from"),
        rebalances=True,
        overlaps=True,
        sessions=LONG,
    ),
    "cut-to": Fault(
        "what a member sends is held back for longer than a session",
        C,
        lambda g: _cut(g, LONG, "to"),
        rebalances=True,
        overlaps=True,
        sessions=LONG,
    ),
    "cut-from": Fault(
        "what a member is sent is held back for longer than a session",
        C,
        lambda g: _cut(g, LONG, "from"),
        rebalances=True,
        overlaps=True,
        sessions=LONG,
    ),
}
