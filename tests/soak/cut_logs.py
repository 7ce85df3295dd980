"""Faults that take records from under a group: retention by time, an unclean election, a topic created anew.

What is gone is what the brokers say: where a log starts, where a leader's epoch begins, which id a topic has. A record
that is gone need not have been handled; a member that met the gap must have said where it went on.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from tests.chaos.calls import Repeat
from tests.chaos.faults import Hurt
from tests.chaos.group import PARTITIONS, Group, kill, last_for, now
from tests.kafka import Broker, KafkaCluster
from tests.kafka.leaders import answers_of_leaders
from tests.waiting import wait_until

CHECKED = {"log.retention.check.interval.ms": 1_000}
"""Of brokers under retention by time: they look each second. As shipped they look each five minutes, which is a leg."""
KEPT_MS = 1_000
"""A segment takes records for so long, and is deleted when the last of them is so old."""
CUT = 3
"""Partitions whose leader gets an heir that has not replicated it."""
SECONDS = 120.0
"""For brokers to do what they are told: a busy machine's are slow."""
_SAID = re.compile(r"-(\d+): position (\d+) is not in the log \(\d+-\d+\), going on at (\d+)")


class Said(NamedTuple):
    """What a member said of a position that was not in the log."""

    partition: int
    position: int
    target: int


def said(group: Group) -> set[Said]:
    """By any member so far."""
    logs = (member.output() for member in group.members.started)
    return {Said(*map(int, found.groups())) for log in logs for found in _SAID.finditer(log)}


def unsaid(gaps: Iterable[tuple[int, range]], told: Collection[Said]) -> list[tuple[int, range]]:
    """The gaps, by partition, that no member has said it went over: from position to position, where the log's start
    moved on while it was being looked up."""
    steps = {(each.partition, each.position): each.target for each in sorted(told)}
    found = []
    for number, gap in gaps:
        at = gap.start
        while at < gap.stop and steps.get((number, at), at) > at:
            at = steps[number, at]
        if at != gap.stop:
            found.append((number, gap))
    return found


# -- retention by time -----------------------------------------------------------------------------------------------


def retention_by_time(group: Group) -> Hurt:
    """Segments are deleted a second after their last record, while all members keep up; then one's workers freeze until
    the log starts behind all that they could have fetched."""
    victim = group.any_member()
    workers = group.worker_pids(victim)
    mine = frozenset(each["partition"] for each in victim.partitions("running"))
    hurt = Hurt(now(), victim=victim.name, partitions=mine)
    kept = {"retention.ms": KEPT_MS, "segment.ms": KEPT_MS}
    group.kafka.alter_topic(group.topic, kept)
    before = starts(group)
    group.wait_under_load(lambda: _start_behind(group, before), "each log to lose its start")
    for pid in workers:
        kill(pid, signal.SIGSTOP)
    last_for(1)
    ends = {each: len(group.load.appended[each]) for each in mine}
    group.wait_under_load(lambda: _start_behind(group, ends), f"the logs to start behind {ends}")
    for pid in workers:
        kill(pid, signal.SIGCONT)
    group.kafka.alter_topic(group.topic, dict.fromkeys(kept))
    group.deleted.update(_settled(group))
    return hurt


def retention_complaints(group: Group, hurt: Hurt) -> Iterator[str]:
    """Of the group that is whole again."""
    gaps = [
        (number, range(gap.start, min(gap.stop, start)))
        for number, start in group.deleted.items()
        for gap in group.audit.ended(number, len(group.cuts)).missing(start)
        if gap.start >= group.begins.get(number, 0) and not is_poison(number, gap, group.load.poison)
    ]
    if not {number for number, _ in gaps} & hurt.partitions:
        yield f"nothing was deleted before {hurt.victim} had handled it: this was no fault"
    if silent := unsaid(gaps, said(group)):
        yield f"left out, deleted or not, and no member said so: {silent[:5]}"


def is_poison(partition: int, gap: range, poison: Collection[tuple[int, int]]) -> bool:
    """Whether nothing is missing there but records that kill whoever handles them: letters tell of those."""
    return all((partition, offset) in poison for offset in gap)


def starts(group: Group) -> dict[int, int]:
    """Where the brokers' logs start."""
    return log_starts(group.kafka, group.topic, range(PARTITIONS))


def log_starts(kafka: KafkaCluster, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Likewise, of any topic."""
    earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    admin, asked = kafka.admin(), {TopicPartition(topic, number): earliest for number in partitions}
    found = answers_of_leaders(admin, topic, lambda: admin.list_offsets(asked, request_timeout=60))
    return {partition: answer.offset for partition, answer in found.items()}


def _start_behind(group: Group, offsets: Mapping[int, int]) -> bool:
    """What is deleted is nothing that the group is behind with."""
    group.deleted.update(starts(group))
    return all(group.deleted[number] > offset for number, offset in offsets.items())


def _settled(group: Group) -> dict[int, int]:
    """Where logs start once nothing is deleted any more: a look that began under the old settings may still end."""
    seen = [starts(group)]

    def settled() -> bool:
        last_for(3 * CHECKED["log.retention.check.interval.ms"] / 1000)
        seen.append(starts(group))
        return seen[-1] == seen[-2]

    wait_until(settled, "retention to be over", SECONDS)
    return seen[-1]


# -- an unclean election ---------------------------------------------------------------------------------------------


def unclean_election(group: Group) -> Hurt:
    """Some partitions' only leader dies with records that nobody has replicated, and a broker that lacks them leads.

    All of the partitions' other replicas have to be behind: they get two, neither of which is on the coordinator.
    """
    stays = group.coordinator()
    heir, leader = group.rng.sample([broker for broker in group.kafka.brokers if broker is not stays], 2)
    mine = frozenset(group.rng.sample(range(PARTITIONS), CUT))
    hurt = Hurt(now(), partitions=mine)
    group.kafka.alter_topic(group.topic, {"unclean.leader.election.enable": "true", "min.insync.replicas": 1})
    before = group.kafka.replicas(group.topic)
    group.kafka.reassign(group.topic, {**before, **{number: [leader.id, heir.id] for number in mine}})
    group.kafka.elect_preferred(group.topic)
    heir.stop()
    wait_until(lambda: _in_sync(group, mine) == {leader.id}, f"broker {leader.id} to be alone", SECONDS, 0.1)
    alone = {each: len(group.load.appended[each]) for each in mine}
    _wait_handled_beyond(group, alone)
    group.load.stop()
    leader.kill()
    group.load_anew()
    heir.start()
    wait_until(lambda: _led(group, mine) == {heir.id}, f"an unclean election of broker {heir.id}", SECONDS, 0.1)
    # A leader writes down where its epoch begins with the first record of it.
    _wait_everywhere(group)
    left = {number: _epoch_start(heir, f"{group.topic}-{number}") for number in mine}
    ends = {number: len(times) for number, times in group.loads[-2].appended.items()}
    _cut(group, {**ends, **left}, {**ends, **left})
    leader.start()
    group.kafka.wait_until_whole()
    group.kafka.reassign(group.topic, before)
    group.kafka.alter_topic(group.topic, dict.fromkeys(("unclean.leader.election.enable", "min.insync.replicas")))
    group.kafka.wait_until_whole()
    return hurt


def unclean_complaints(group: Group, hurt: Hurt) -> Iterator[str]:
    """Of the group that is whole again."""
    cut, before = group.cuts[-1], len(group.cuts) - 1
    left = cut.left or {}
    anew = taken_up_anew(hurt.again, before, left)
    told = {(each.partition, each.target) for each in said(group)}
    for number in sorted(hurt.partitions):
        position = group.audit.ended(number, before).end
        if left[number] >= min(position, cut.ends[number]):
            yield f"partition {number}: nobody had handled what the new leader lacks: this was no fault"
        elif number not in anew and (number, left[number]) not in told:
            yield f"partition {number}: no member said that it goes on at {left[number]}, where the logs part"


def taken_up_anew(again: Iterable[Repeat], load: int, left: Mapping[int, int]) -> set[int]:
    """Partitions in which a process began again what another one had begun, before the place where the logs part: it
    took them up where they were committed, and met no gap. So does the successor of a worker whose producer the brokers
    took no more, as nothing of an aborted transaction is committed."""
    return {
        each.again.partition
        for each in again
        if each.again.load == load
        and each.again.pid != each.before.pid
        and each.again.offset < left.get(each.again.partition, 0)
    }


def _epoch_start(broker: Broker, partition: str) -> int:
    """Where the records of the broker's own leadership begin, as the file says that followers are answered from."""
    lines = (broker.node.directory / "data" / partition / "leader-epoch-checkpoint").read_text().splitlines()
    _, start = lines[-1].split()
    return int(start)


def _in_sync(group: Group, partitions: Collection[int]) -> set[int]:
    described = group.kafka.admin().list_topics(group.topic, timeout=60).topics[group.topic].partitions
    return {replica for number in partitions for replica in described[number].isrs}


def _led(group: Group, partitions: Collection[int]) -> set[int]:
    described = group.kafka.admin().list_topics(group.topic, timeout=60).topics[group.topic].partitions
    return {described[number].leader for number in partitions}


def _wait_handled_beyond(group: Group, ends: Mapping[int, int]) -> None:
    def beyond() -> bool:
        return all(group.audit.ended(number, len(group.cuts)).end > end for number, end in ends.items())

    group.wait_under_load(beyond, f"records to be handled beyond {ends}")


# -- a topic that is created anew ------------------------------------------------------------------------------------


def recreation(group: Group) -> Hurt:
    """The topic is deleted while it is written to and read, and created again while members still have its records."""
    old, committed = topic_id(group), group.committed()
    hurt = Hurt(now(), partitions=frozenset(range(PARTITIONS)))
    group.kafka.admin().delete_topics([group.topic])[group.topic].result(60)
    group.load.abandon()
    _create(group)
    group.load_anew()
    _wait_everywhere(group)
    assert topic_id(group) != old, "the topic is the old one: this was no fault"
    _cut(group, dict.fromkeys(range(PARTITIONS), 0), None, committed)
    return hurt


def topic_id(group: Group) -> str:
    """As the brokers have it."""
    described = group.kafka.admin().describe_topics(TopicCollection([group.topic]), request_timeout=60)
    return str(described[group.topic].result(60).topic_id)


def _create(group: Group) -> None:
    """Brokers hear of a deletion one after the other."""
    wanted = NewTopic(group.topic, PARTITIONS, min(3, len(group.kafka.brokers)))

    def gone() -> bool:
        return group.topic not in group.kafka.admin().list_topics(timeout=60).topics

    wait_until(gone, f"{group.topic} to be gone", SECONDS)
    group.kafka.admin().create_topics([wanted])[group.topic].result(60)


# -- common ----------------------------------------------------------------------------------------------------------


def _cut(
    group: Group,
    begins: Mapping[int, int],
    left: Mapping[int, int] | None,
    committed: Mapping[int, int] | None = None,
) -> None:
    """Two words of brokers on where the new load begins must agree: where they cut the log, and what they answered its
    producer."""
    assert begins == group.load.first, f"the new load begins at {group.load.first}, and logs were cut at {begins}"
    group.cut(begins, left, committed)


def _wait_everywhere(group: Group) -> None:
    group.wait_under_load(lambda: len(group.load.first) == PARTITIONS, "records of the new load in each partition")
