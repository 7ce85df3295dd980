"""Every fault of `make chaos`, and those that need a leg of their own. One flat table."""

from __future__ import annotations

import resource
import signal
from collections.abc import Mapping
from dataclasses import replace

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from tests.chaos import faults as chaos
from tests.chaos.faults import Fault, Hurt, Kind, Repeats
from tests.chaos.group import Group, kill, last_for, now
from tests.kafka.access import Right, admit, deny
from tests.kafka.proxied import USER
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
    group.kafka.tool("kafka.admin.ConfigCommand", *where, "--alter", *change, timeout=180)


def _move_leaders(group: Group) -> Hurt:
    """Every partition to the next broker of its replicas, as a balancer does it, while all of them are there."""
    hurt = Hurt(now())
    group.kafka.rotate_replicas(group.topic)
    group.kafka.admin().elect_leaders(ElectionType.PREFERRED).result(60)
    wait_until(lambda: group.kafka.preferred_lead(group.topic), "each partition to be led by its new first", 60, 0.2)
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
    places = [TopicPartition(group.topic, partition, end) for partition, end in ends.items()]
    for place, done in group.kafka.admin().delete_records(places).items():
        group.deleted[place.partition] = done.result(60).low_watermark
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


def _fill_disk(group: Group) -> Hurt:
    """No file of a broker may grow beyond what its largest log has, and a little: to the broker, its disk is full."""
    victim = chaos.another_broker(group)
    logs = (victim.node.directory / "data").glob("*/*.log")
    size = max(log.stat().st_size for log in logs) + ROOM
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
}

ORDERLY: Mapping[str, str] = {
    "scale-out": "rebalances",
    "scale-in": "rebalances",
    "rolling-restart": "restarts",
    "rolling-static": "restarts",
}
"""What members do in order, and what it is counted as: nothing may be handled twice because of it."""

AWAY = frozenset(
    {"kill-broker", "kill-coordinator", "freeze-broker", "restart-brokers", "fill-disk", "cut-briefly", "take-right"}
)
"""Faults that keep a worker from its brokers for about as long as a transaction may be open."""


def held(name: str, delivery: str) -> Fault:
    """The fault as a group of that delivery is held to it.

    With transactions it is the outputs that are there once. A transaction whose brokers were away for longer than it
    may be open leaves a producer that is of no use; its worker ends, and its successor calls the handler again with
    what no transaction had committed.
    """
    fault = FAULTS[name]
    return replace(fault, repeats=Repeats.UNCOMMITTED) if delivery == "transactions" and name in AWAY else fault


MISSING = (
    "a topic that is deleted and created again under load (`tests/system/group/test_recreated_topics.py` does it "
    "with one member)",
    "leaders whose log is cut off by an unclean election (`tests/system/group/test_logs_that_shrink.py` does it "
    "with one member)",
    "retention by time and size: records are deleted by the request that `kafka-delete-records` sends",
    "a wall clock that steps for one process: a library that is preloaded can shift what a process reads, but not "
    "what the kernel waits for, so that it would try something that no machine does",
    "a rolling upgrade of brokers from Kafka 3.9 to 4.4, and of members from commit 645c62f "
    "(`tests/system/service/test_members_of_645c62f.py` does the latter with two members)",
)
"""Faults that the soak does not have."""
