"""One leg from its brokers to its figures."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from kunicorn.ipc.clock import NANOSECONDS
from tests.chaos.calls import Repeat
from tests.chaos.faults import Repeats
from tests.chaos.group import LINKS, MEMBERS, PARTITIONS, Group, last_for, now
from tests.chaos.offsets import Offsets
from tests.chaos.stream import Found
from tests.chaos.stretches import Stretch
from tests.chaos.verdict import Bounds, Outcome, Step, judged
from tests.kafka import SMALL, ProxiedCluster
from tests.kafka.access import EVERYTHING, allow
from tests.kafka.cluster import VERSION
from tests.kafka.properties import AS_KAFKA_SHIPS
from tests.kafka.proxied import USER
from tests.soak import clocks, cut_logs, upgrades
from tests.soak.beside import Beside
from tests.soak.faults import ORDERLY, QUIET, held
from tests.soak.figures import Faulted, Figures
from tests.soak.outputs import Log, Outputs, Place, counted, of_database, of_topic
from tests.soak.peers import LINKS as LINKS_OF_PEERS
from tests.soak.peers import PeerGroup
from tests.soak.plan import QUIET_SECONDS, Leg
from tests.soak.resources import GROWN, Sampler
from tests.soak.terms import database, outputs_topic, terms
from tests.system.producing import end_offsets

JVM = (*SMALL, "-Xmx1G")
"""Not Kafka's own: brokers live for minutes, and the optimising compiler would take more of two cores than it gives."""
BROKER_SETTINGS = {**AS_KAFKA_SHIPS, "min.insync.replicas": 2}
"""As Kafka ships; that two of three replicas must have a record is every operator's choice."""


@dataclass
class Tally:
    """What a leg has come to so far; complete or not, it is told."""

    faults: list[Faulted] = field(default_factory=list)
    peers: Mapping[str, Sequence[Faulted]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    disorder: int = 0
    rebalances: int = 0
    restarts: int = 0
    again: dict[Place, int] = field(default_factory=dict)
    """When the last call began with an input that may be handled again as long as no transaction has its output."""


def run(leg: Leg, figures: Figures, directory: Path, tell: Callable[[str], None]) -> Figures:
    """Blocks for minutes. What is broken is among the figures; only `KafkaUnavailable` is raised, as that is no leg.

    Logs stay in `directory`; the brokers' data and the audit do so where a promise did not hold.
    """
    tell(str(leg))
    began, tally = time.monotonic(), Tally()
    try:
        figures = _driven(leg, figures, directory, tally, tell)
    except (AssertionError, RuntimeError, TimeoutError, KafkaException, subprocess.SubprocessError) as error:
        (directory / "ended.txt").write_text(traceback.format_exc())
        tally.broken.append(f"the leg was not gone through: {str(error) or repr(error)}")
    finally:
        shutil.rmtree(directory / "kafka" / "secrets", ignore_errors=True)
    figures = replace(
        figures,
        peers=tally.peers,
        seconds=round(time.monotonic() - began),
        busy=round(os.getloadavg()[1] / (os.cpu_count() or 1), 1),
        out_of_order=tally.disorder,
        handled_again=sum(each.repeated for each in tally.faults),
        twice_in_order=sum(each.repeated for each in tally.faults if each.fault in (*ORDERLY, QUIET)),
        rebalances=tally.rebalances,
        restarts=tally.restarts,
        faults=tally.faults,
        broken=tally.broken,
    )
    if not figures.complaints:
        shutil.rmtree(directory)
    return figures


def _driven(leg: Leg, figures: Figures, directory: Path, tally: Tally, tell: Callable[[str], None]) -> Figures:
    with _brokers(leg, directory) as kafka:
        topic = f"soak-{leg.seed}-{leg.number}"
        kafka.create_topic(outputs_topic(topic), PARTITIONS)
        _grow_into_work(leg, kafka)
        place = directory / "group"
        set_to = terms(leg.shape, topic, place, kafka.client_settings)
        set_to = replace(set_to, **_prepared(leg, place))
        group = Group(kafka, topic, leg.shape.static, random.Random(leg.seed + leg.number), place, set_to)
        try:
            peers = _peers(leg, kafka, topic, directory)
            with Sampler(group.alive, GROWN[leg.lasts]) as sampler, Beside(peers) as beside:
                _live_through(leg, group, tally, beside, tell)
                tally.peers = beside.faults
                beside.end()
                group.load.stop()
                group.wait_whole()
            for member in list(group.alive):
                group.stop(member)
            if set_to.commits:
                group.wait_all_committed()
            return _accounted(leg, group, replace(figures, resources=sampler.sums()), tally)
        finally:
            group.close()


def _grow_into_work(leg: Leg, kafka: ProxiedCluster) -> None:
    """As brokers are that have been there for a day. The first transactional producer of a new cluster has a topic of
    fifty partitions made: beside other legs brokers may be silent for longer than a session meanwhile, and members lose
    their partitions with outputs that no transaction has committed, before any fault."""
    if leg.shape.delivery == "transactions":
        Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "warm-up"}).init_transactions(180)
    kafka.wait_until_whole(180)


def _peers(leg: Leg, kafka: ProxiedCluster, topic: str, directory: Path) -> list[PeerGroup]:
    """Of the clients that the leg has beside ours."""
    if not leg.has_peers:
        return []
    return [
        PeerGroup(client, kafka, leg.shape, f"{topic}-{link}", topic, directory / link)
        for client, link in LINKS_OF_PEERS.items()
    ]


def _prepared(leg: Leg, place: Path) -> dict[str, Any]:
    """What a leg's faults need of its members from their start on, as fields of `Terms`."""
    needed: dict[str, Any] = {}
    if "step-clock" in leg.faults:
        needed["environment"] = clocks.environment(clocks.directory_of(place))
    if "upgrade-members" in leg.faults:
        needed["then"] = upgrades.then(leg.shape.way, place.with_name("earlier"))
    return needed


def settings_of(leg: Leg) -> Mapping[str, object]:
    """What the brokers are told beside what Kafka ships."""
    return {**BROKER_SETTINGS, **(cut_logs.CHECKED if "retention-by-time" in leg.faults else {})}


def version_of(leg: Leg) -> str:
    """Of Kafka, with which the brokers begin."""
    return upgrades.OLD if "upgrade-brokers" in leg.faults else VERSION


def cluster(leg: Leg, directory: Path) -> ProxiedCluster:
    """The brokers that a leg begins with."""
    security = leg.shape.security
    links = (*LINKS, *(LINKS_OF_PEERS.values() if leg.has_peers else ()))
    return ProxiedCluster(
        links, overrides=settings_of(leg), security=security, workdir=directory, jvm=JVM, version=version_of(leg)
    )


@contextmanager
def _brokers(leg: Leg, directory: Path) -> Iterator[ProxiedCluster]:
    kafka = cluster(leg, directory / "kafka")
    with kafka:
        if leg.shape.security == "SASL_SSL":
            allow(kafka, USER, *EVERYTHING)
        try:
            yield kafka
        finally:
            # A fault that was cut short has left its broker frozen: that hears no end.
            for broker in kafka.brokers:
                if broker.alive:
                    broker.thaw()
    # Gigabytes, and what they tell is in the audit.
    for broker in kafka.brokers:
        shutil.rmtree(broker.node.directory / "data", ignore_errors=True)


def _live_through(leg: Leg, group: Group, tally: Tally, beside: Beside, tell: Callable[[str], None]) -> None:
    for _ in range(MEMBERS):
        group.start(version=group.terms.then)
    group.load.start()
    group.wait_whole()
    beside.begin()
    bounds = Bounds(group.crowd.in_hand, group.terms.commit_interval)
    started = now()
    _quiet(group, tally, beside)
    for place, name in enumerate(leg.faults, 1):
        fault = held(name, leg.shape.delivery)
        before, members, began = group.generation(), len(group.members.started), now()
        with beside.hurt(name):
            hurt = fault.inflict(group)
            group.wait_whole()
            step = Step(name, hurt, now(), group.generation() - before)
            found = _read(group)
        if fault.repeats is Repeats.UNCOMMITTED:
            group.wait_committed()
        left = left_of_hour(leg, now() - started) if place == len(leg.faults) else 0
        last_for(max(QUIET_SECONDS, left))
        # What happens until the next fault is this one's, but for pauses.
        later = _read(group)
        outcome = judged(step, fault, found + replace(later, waits={}), bounds)
        known = replace(hurt, again=found.repeats + later.repeats)
        more = [f"{name}: {complaint}" for complaint in fault.complaints(group, known)]
        _note(tally, replace(outcome, broken=(*outcome.broken, *more)), fault.repeats.value, found, later)
        _count(tally, name, len(group.members.started) - members)
        if fault.repeats is Repeats.UNCOMMITTED:
            _note_again(tally, found.repeats + later.repeats)
        tell(
            f"  {name}: whole again after {(step.settled - began) / NANOSECONDS:.1f} s, {outcome.repeated} again, "
            f"longest pause {max(outcome.pauses, default=0):.2f} s"
        )


def left_of_hour(leg: Leg, lived_ns: int) -> float:
    """Seconds for which a leg that lasts has to live on. A quick machine is through with its faults in half an hour."""
    return max(0.0, 3600 - lived_ns / NANOSECONDS) if leg.lasts else 0.0


def _quiet(group: Group, tally: Tally, beside: Beside) -> None:
    """Of the beginning, when members come and nothing else happens; then a while in which nothing does."""
    start = _read(group)
    with beside.hurt(QUIET):
        last_for(QUIET_SECONDS)
        found = _read(group)
    both = start + found
    broken = [f"{both.repeated} records were handled again before any fault: {both.repeats[0]}"] if both.repeats else []
    outcome = Outcome(QUIET, both.repeated, 0, _seconds(found), 0, tuple(broken))
    _note(tally, outcome, "0", start, found)


def _read(group: Group) -> Found:
    group.audit.read()
    return group.audit.take()


def _seconds(found: Found) -> tuple[float, ...]:
    return tuple(wait / NANOSECONDS for _, wait in sorted(found.waits.items()))


def _note(tally: Tally, outcome: Outcome, allowed: str, *found: Found) -> None:
    disorder = [each for part in found for each in part.disorder]
    tally.disorder += len(disorder)
    broken = [*outcome.broken, *(f"{outcome.fault}: {each}" for each in disorder[:5])]
    pauses = [round(1000 * pause) for pause in outcome.pauses]
    tally.faults.append(Faulted(outcome.fault, allowed, outcome.repeated, outcome.rebalances, pauses, broken))


def _note_again(tally: Tally, repeats: Sequence[Repeat]) -> None:
    for _, again in repeats:
        place = (again.partition, again.load), again.offset
        tally.again[place] = max(again.begin, tally.again.get(place, 0))


def _count(tally: Tally, name: str, started: int) -> None:
    kind = ORDERLY.get(name)
    tally.rebalances += kind == "rebalances"
    tally.restarts += started if kind == "restarts" else 0


def _accounted(leg: Leg, group: Group, figures: Figures, tally: Tally) -> Figures:
    """Every record of the topic, and every output; of topics and logs that are gone, too."""
    group.audit.read()
    ends = {tp.partition: end for tp, end in end_offsets(group.kafka.bootstrap, group.topic, PARTITIONS).items()}
    stretches = group.stretches(ends)
    poison = {partition: [at for number, at in group.load.poison if number == partition] for partition in ends}
    logs = [(number, stretch, partition) for number, stretch in enumerate(stretches) for partition in ends]
    lost = {
        (partition, number): stretch.lost(partition, group.audit.ended(partition, number), poison[partition])
        for number, stretch, partition in logs
    }
    gone = sum(
        stretch.gone(partition, group.audit.ended(partition, number), poison[partition])
        for number, stretch, partition in logs
    )
    records = sum(stretch.records(partition) for _, stretch, partition in logs)
    figures = replace(figures, records=records, lost=sum(lost.values()), deleted=gone)
    if figures.lost:
        gaps = [
            (log, list(group.audit.ended(*log).missing(group.audit.ended(*log).end))[:5]) for log in lost if lost[log]
        ]
        tally.broken.append(f"{figures.lost} records were lost, by partition and load: {gaps}")
    if beyond := [p for p, end in ends.items() if group.audit.begun(p, len(group.cuts)).end > end]:
        tally.broken.append(f"handled, but never produced, of partitions {beyond}")
    if group.load.poison ^ group.letters():
        tally.broken.append(f"poison and dead letters differ: {sorted(group.load.poison ^ group.letters())[:5]}")
    if leg.shape.delivery == "none":
        return figures
    return _with_outputs(leg, group, figures, stretches, tally)


def _with_outputs(leg: Leg, group: Group, figures: Figures, stretches: Sequence[Stretch], tally: Tally) -> Figures:
    if leg.shape.delivery == "database":
        made = counted(of_database(database(group.directory)))
    else:
        topic = outputs_topic(group.topic)
        made = counted(of_topic(group.kafka.bootstrap, topic, PARTITIONS, group.audit.load_of), tally.again)
    # An input that was handled and is gone since may have lost its transaction with its log.
    owed = {
        (partition, number): range(stretch.begins.get(partition, 0), (stretch.left or {}).get(partition, 0))
        for number, stretch in enumerate(stretches)
        for partition in range(PARTITIONS)
    }
    missing = made.missing({log: group.audit.ended(*log) for log in owed}, owed)
    if missing:
        tally.broken.append(f"{missing} inputs have no output: {_first_missing(made, owed)}")
    if made.early:
        tally.broken.append(
            f"{len(made.early)} inputs were handled again although a transaction had their output, by partition and "
            f"load: {made.early[:5]}"
        )
    if made.twice and leg.shape.delivery != "at least once":
        tally.broken.append(f"{made.twice} inputs have their output twice")
    return replace(figures, outputs=made.made, outputs_missing=missing, outputs_twice=made.twice)


def _first_missing(made: Outputs, owed: Mapping[Log, range]) -> tuple[Log, range]:
    return next((log, gap) for log, each in owed.items() for gap in made.found.get(log, Offsets()).missing(each.stop))
