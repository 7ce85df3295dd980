"""Killing each of three brokers under groups of all contestants, for `bench.handover`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.contestants import PARTITIONS, Contestant, Entry
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from tests.chaos.calls import longest_waits, repeats
from tests.kafka import Broker, KafkaCluster
from tests.waiting import wait_until

RATE = 60
"""Records a second for each group: there are several at a time."""
DEAD_SECONDS = 30.0
"""A dead broker's partitions and groups have moved after nine to twelve seconds (broker.session.timeout.ms)."""
LIVING_GOAL = 1.0


class Kill(NamedTuple):
    """One dead broker. Nanoseconds of the audit's clock."""

    start: int
    end: int
    led: frozenset[int]
    """Partitions of the entry that it led."""
    coordinated: bool


class BrokerCost(NamedTuple):
    """What killing each broker once cost one contestant: the longest pauses in seconds."""

    who: Contestant
    living: float
    """Of partitions whose leader lived, while the coordinator lived, too."""
    living_without_coordinator: float
    led: float
    """Of partitions whose leader was killed."""
    repeated: int

    @property
    def good(self) -> bool:
        """Whether ours reached the goal; theirs have none."""
        longest = max(self.living, self.living_without_coordinator)
        return self.who.client != "kunicorn" or (longest <= LIVING_GOAL and not self.repeated)


COLUMNS: tuple[tuple[str, Callable[[BrokerCost], str]], ...] = (
    ("client", lambda c: c.who.title),
    ("leader lives: longest pause s", lambda c: f"{c.living:.2f}"),
    ("leader lives, coordinator killed", lambda c: f"{c.living_without_coordinator:.2f}"),
    ("leader killed", lambda c: f"{c.led:.2f}"),
    ("repeated", lambda c: str(c.repeated)),
)


def kill_each_broker(kafka: KafkaCluster, chosen: Iterable[Contestant], directory: Path) -> list[BrokerCost]:
    """All groups at a time; of the reference clients those that commit themselves."""
    entries = []
    taking_part = [who for who in chosen if who.client == "kunicorn" or who.commits == "synchronous"]
    with ExitStack() as stack:
        for number, who in enumerate(taking_part):
            topic = f"brokers-{number}"
            entry = Entry(who, kafka, topic, directory / topic, RATE)
            stack.callback(entry.close)
            entries.append(entry)
        for entry in entries:
            for _ in range(2):
                entry.start()
            entry.load.start()
        for entry in entries:
            wait_until(partial(handled_by_two, entry), f"{entry.who.title}: two members at work", 90, 0.5)
        kills = [kill(kafka, broker, entries) for broker in kafka.brokers]
        for entry in entries:
            entry.load.stop()
        costs = [judge(entry, [each[number] for each in kills]) for number, entry in enumerate(entries)]
    for cost in costs:
        print(" · ".join(f"{name} {show(cost)}" for name, show in COLUMNS), flush=True)
    return costs


def handled_by_two(entry: Entry) -> bool:
    """Whether all partitions are handled, by two members."""
    latest = [calls[-1] for calls in entry.calls().values()]
    return len(latest) == PARTITIONS and len({call.member for call in latest}) == 2


def kill(kafka: KafkaCluster, broker: Broker, entries: Sequence[Entry]) -> list[Kill]:
    """One broker, until all is as it was; what each entry had there."""
    led = [led_by(kafka, entry.topic, broker) for entry in entries]
    coordinated = [coordinator(kafka, entry.topic) == broker.id for entry in entries]
    start = now_ns()
    broker.kill()
    threading.Event().wait(DEAD_SECONDS)
    end = now_ns()
    broker.start()
    kafka.wait_until_whole()
    return [Kill(start, end, *each) for each in zip(led, coordinated, strict=True)]


def led_by(kafka: KafkaCluster, topic: str, broker: Broker) -> frozenset[int]:
    """The topic's partitions that the broker leads."""
    partitions = kafka.admin().list_topics(topic, timeout=10).topics[topic].partitions
    return frozenset(number for number, each in partitions.items() if each.leader == broker.id)


def coordinator(kafka: KafkaCluster, group: str) -> int:
    """The id of the broker that coordinates the group; waits while it moves."""
    return wait_until(lambda: _coordinator(kafka, group), f"a coordinator of {group}", 60, 0.5)


def _coordinator(kafka: KafkaCluster, group: str) -> int | None:
    # A client of its own each time: librdkafka goes on asking the broker that was the coordinator before.
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    try:
        described = admin.describe_consumer_groups([group], request_timeout=10)[group].result(20)
    except KafkaException:
        return None
    return int(described.coordinator.id)


def judge(entry: Entry, kills: Sequence[Kill]) -> BrokerCost:
    """Sort the pauses by what lived."""
    calls = entry.calls()
    living: Mapping[bool, list[float]] = {False: [0.0], True: [0.0]}
    led = [0.0]
    for each in kills:
        waits = longest_waits(calls, entry.load.appended, each.start, each.end)
        for number, wait in zip(sorted(calls), waits, strict=True):
            place = led if number in each.led else living[each.coordinated]
            place.append(wait / NANOSECONDS)
    again = [each for each in repeats(calls) if each.again.begin >= kills[0].start]
    return BrokerCost(entry.who, max(living[False]), max(living[True]), max(led), len(again))
