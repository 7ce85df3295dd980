"""Every fault of `make chaos`, and those that need a leg of their own. One flat table."""

from __future__ import annotations

import resource
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import AclOperation, ResourceType

from tests.chaos import faults as chaos
from tests.chaos.faults import Fault, Hurt, Kind, Repeats
from tests.chaos.group import Group, kill, last_for, now
from tests.golden.make import COMMIT
from tests.kafka.access import Right, admit, deny
from tests.kafka.cluster import VERSION
from tests.kafka.proxied import USER
from tests.soak import clocks, cut_logs, upgrades
from tests.system.earlier import NotInHistory, check_history
from tests.waiting import wait_until

QUIET = "quiet"
"""The time without a fault, as it stands among the figures: what pauses there are anyway."""
QUOTA = 100_000
"""Bytes a second from each broker, to each client: a fraction of what the group needs."""
LASTS = 15.0
"""Seconds for which a quota is in force, or a right is gone."""
ROOM = 256 * 1024
"""Bytes by which a file may still grow on the disk that is about to be full."""


def _reload(group: Group) -> Hurt:
    """All members at once; each replaces its workers one after the other."""
    hurt = Hurt(now())
    before = {member: group.worker_pids(member) for member in group.alive}
    for member in group.alive:
        kill(member.pid, signal.SIGHUP)
    for member, pids in before.items():
        member.wait(lambda: not pids & group.worker_pids(member), "workers of the new code", 120)  # noqa: B023
    return hurt


def _quota(group: Group) -> Hurt:
    hurt = Hurt(now())
    _configure(group, "--add-config", f"consumer_byte_rate={QUOTA}")
    last_for(LASTS)
    _configure(group, "--delete-config", "consumer_byte_rate")
    return hurt


def _configure(group: Group, *change: str) -> None:
    where = ("--bootstrap-server", group.kafka.bootstrap, "--entity-type", "clients", "--entity-default")
    group.kafka.tool("kafka.admin.ConfigCommand", *where, "--alter", *change)


def _move_leaders(group: Group) -> Hurt:
    """Every partition to the next broker of its replicas, as a balancer does it, while all of them are there."""
    hurt = Hurt(now())
    group.kafka.lead_anew(group.topic)
    return hurt


def _retention(group: Group) -> Hurt:
    """The log's beginning moves past what a member whose workers are frozen would have fetched next."""
    victim = group.any_member()
    workers = group.worker_pids(victim)
    hurt = Hurt(now())
    for pid in workers:
        kill(pid, signal.SIGSTOP)
    last_for(3)
    ends = {partition: len(times) for partition, times in group.load.appended.items()}
    group.deleted.update(group.kafka.delete_records(group.topic, ends))
    for pid in workers:
        kill(pid, signal.SIGCONT)
    return hurt


def _take_right(group: Group) -> Hurt:
    right: Right = (ResourceType.TOPIC, group.topic, AclOperation.READ)
    hurt = Hurt(now())
    deny(group.kafka, USER, right)
    last_for(LASTS)
    admit(group.kafka, USER, right)
    return hurt


def largest_log(data: Path) -> int:
    """Bytes of the largest log below it that still grows. A deleted topic's directory is there for another minute."""
    return max(log.stat().st_size for log in data.glob("*/*.log") if not log.parent.name.endswith("-delete"))


def _fill_disk(group: Group) -> Hurt:
    """No file of a broker may grow beyond what its largest log has, and a little: to the broker, its disk is full."""
    victim = chaos.another_broker(group)
    size = largest_log(victim.node.directory / "data") + ROOM
    hurt = Hurt(now())
    resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (size, size))
    wait_until(lambda: not victim.alive, f"broker {victim.id} to give up its disk", 120, 0.1)
    assert "File too large" in victim.log_tail(400), victim.log_tail()
    # The next process has the room that was made meanwhile.
    victim.start()
    group.kafka.wait_until_whole()
    return hurt


N = Repeats.NOTHING

FAULTS: Mapping[str, Fault] = {
    **chaos.FAULTS,
    "reload": Fault("all members reload their code (SIGHUP)", N, _reload, seconds=20),
    "quota": Fault(
        f"brokers throttle every client to {QUOTA // 1000} kB/s, for {LASTS:.0f} s", N, _quota, seconds=LASTS + 25
    ),
    "move-leaders": Fault("every partition's leader is moved to another broker", N, _move_leaders, seconds=25),
    "retention": Fault(
        "records are deleted before a frozen member's workers have fetched them", N, _retention, seconds=10
    ),
    "take-right": Fault(
        f"the right to read the topic is taken, and given back after {LASTS:.0f} s",
        N,
        _take_right,
        Kind.LOGGED_IN,
        seconds=LASTS + 10,
    ),
    "fill-disk": Fault("a broker's disk is full, until its next start", N, _fill_disk, seconds=30),
    "retention-by-time": Fault(
        f"retention deletes what is {cut_logs.KEPT_MS / 1000:.0f} s old, and overtakes a frozen member's workers",
        N,
        cut_logs.retention_by_time,
        seconds=35,
        complaints=cut_logs.retention_complaints,
    ),
    "unclean-election": Fault(
        f"{cut_logs.CUT} partitions' leaders die with what nobody replicated, and others lead (unclean election)",
        N,
        cut_logs.unclean_election,
        Kind.KEYED,
        seconds=75,
        complaints=cut_logs.unclean_complaints,
    ),
    "recreate-topic": Fault(
        "the topic is deleted and created anew, under load",
        N,
        cut_logs.recreation,
        Kind.KEYED,
        rebalances=True,
        seconds=30,
    ),
    "step-clock": Fault(
        f"a member's wall clock steps {clocks.AHEAD // 60} minutes ahead, and back after {clocks.LASTS:.0f} s",
        N,
        clocks.step_clock,
        seconds=2 * clocks.LASTS + 5,
        complaints=clocks.complaints,
    ),
    "upgrade-brokers": Fault(
        f"brokers are upgraded one by one from Kafka {upgrades.OLD} to {VERSION}, then their features",
        N,
        upgrades.upgrade_brokers,
        Kind.CLASSIC,
        seconds=90,
        complaints=upgrades.broker_complaints,
    ),
    "upgrade-members": Fault(
        f"all members of commit {COMMIT} are replaced one by one with today's; one goes back, and forth again",
        N,
        upgrades.upgrade_members,
        Kind.EARLIER,
        rebalances=True,
        seconds=60,
        complaints=upgrades.member_complaints,
    ),
}

FIRST = ("upgrade-members", "upgrade-brokers")
"""Faults that a leg begins with, in this order: its brokers and members then are what they were before the upgrade, and
only today's members are to meet other faults."""


def unavailable(name: str) -> str:
    """Why this machine or this clone cannot have the fault; empty if it can."""
    if name == "step-clock":
        return clocks.unavailable()
    if name == "upgrade-members":
        try:
            check_history()
        except NotInHistory as error:
            return str(error)
    return ""


ORDERLY: Mapping[str, str] = {
    "scale-out": "rebalances",
    "scale-in": "rebalances",
    "rolling-restart": "restarts",
    "rolling-static": "restarts",
    "upgrade-members": "restarts",
}
"""What members do in order, and what it is counted as: nothing may be handled twice because of it."""


def held(name: str, delivery: str) -> Fault:
    """The fault as a group of that delivery is held to it.

    With transactions it is the outputs that are there once. Brokers that are busy or away for longer than a transaction
    may be open leave a producer that is of no use, and so does a client that waits for a group's coordinator without
    end (confluentinc/librdkafka 5456), whatever hurts the group meanwhile. Its worker ends, and its successor calls the
    handler again with what no transaction had committed. What members do in order has no such excuse.
    """
    excused = delivery == "transactions" and name not in ORDERLY
    return replace(FAULTS[name], repeats=Repeats.UNCOMMITTED) if excused else FAULTS[name]
