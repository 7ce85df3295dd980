"""The group that is hurt: members as real processes, and when it is whole again."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kunicorn.handler.dead_letters import read
from kunicorn.ipc import clock
from tests.chaos.crowds import CROWDS, ONE, Crowd
from tests.chaos.load import Load, customers
from tests.chaos.stream import AuditStream, Written
from tests.chaos.stretches import Stretch
from tests.kafka import Broker, ProxiedCluster
from tests.system import procfs
from tests.system.members import MemberProcess, Members, group_settings, merged
from tests.system.producing import committed_offsets, consumed_so_far, end_offsets, headers_of
from tests.waiting import wait_until

MEMBERS, WORKERS, PARTITIONS = 3, 2, 12
HANDLER_MS = 200
"""With one record in hand all workers manage three times the load, and one member left alone just about does."""
LINKS = tuple(f"link{number}" for number in range(MEMBERS + 1))
"""To the brokers, one for each member that may live at a time."""
SESSION = 10.0
"""Seconds, the least that the settings permit; with the default of 45 a run would take an hour. A killed coordinator
is replaced after 7 to 12 (broker.session.timeout.ms): here, unlike with the default, workers may pause by that."""
COMMIT_INTERVAL = 1.0
PATIENCE = 300.0
"""Seconds for which a group is waited for: a machine that is busy with something else may take long."""
BEHIND = 30.0
"""Seconds of load that may be unhandled before it is held back."""
DEATHS = 2
"""With the same record in hand, and it goes to the dead letters. Our own kills hit no record twice: between them the
group becomes whole, which takes the record's end."""

SETTINGS: dict[str, dict[str, Any]] = {
    "group": {
        "session_timeout_ms": int(SESSION * 1000),
        "commit_interval_ms": int(COMMIT_INTERVAL * 1000),
        "heartbeat_interval_ms": 1000,
    },
    "workers": {"max_crashes": DEATHS},
    "handler": {"entrypoint": "tests.system.handlers.lethal:handle", "on_failure": "dead_letter"},
}
BROKER_SETTINGS = {
    "min.insync.replicas": 2,
    # The consumer protocol's session is the brokers' to choose (KIP-848).
    "group.consumer.min.session.timeout.ms": int(SESSION * 1000),
    "group.consumer.session.timeout.ms": int(SESSION * 1000),
}
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "cooperative-sticky": {"partition_assignment_strategy": ["cooperative-sticky"]},
    "range": {"partition_assignment_strategy": ["range"]},
    "consumer": {"group_protocol": "consumer"},
}
FETCHERS = ("librdkafka", "own")
"""Values of `kafka.fetcher`, the default first."""


@dataclass(frozen=True)
class Terms:
    """What the members of a group are set to, and what faults and their judge need to know of it. Seconds."""

    settings: Mapping[str, Mapping[str, Any]]
    """Beside brokers, topic and group."""
    crowd: Crowd
    session: float = SESSION
    commit_interval: float = COMMIT_INTERVAL
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of its members, for their handler."""
    commits: bool = True
    """Whether what was handled is committed to Kafka."""
    then: Mapping[str, Any] = field(default_factory=dict)
    """What makes a member one of an earlier version, as arguments of `Members.start`."""


def terms(protocol: str, crowd: Crowd = CROWDS[ONE], fetcher: str = FETCHERS[0]) -> Terms:
    """Of the groups that `make chaos` hurts."""
    own = {"group": PROTOCOLS[protocol], "handler": crowd.handler, "kafka": {"fetcher": fetcher}}
    return Terms(merged(SETTINGS, own), crowd, environment={"KUNICORN_HANDLER_MS": str(HANDLER_MS)})


@dataclass
class Group:
    """Members of one group on one topic, under load. `static` members have instance ids (KIP-345)."""

    kafka: ProxiedCluster
    topic: str
    static: bool
    rng: random.Random
    directory: Path
    terms: Terms
    alive: list[MemberProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kafka.create_topic(self.topic, PARTITIONS)
        self.kafka.create_topic(self.letters_topic, 1)
        self.directory.mkdir(parents=True)
        needed = group_settings(self.kafka.bootstrap, [self.topic], self.topic, workers=WORKERS)
        settings = merged(needed, self.terms.settings)
        self.members = Members(self.directory, settings, self.terms.environment)
        self.crowd = self.terms.crowd
        self.loads: list[Load] = []
        self._written: list[Written] = []
        self._add_load()
        self.audit = AuditStream(self.members.audit, self._written, self.crowd.ordering, together=self.crowd.together)
        self.deleted: dict[int, int] = {}
        """Where the log of a partition begins since records were deleted: those below need not be handled any more."""
        self.begins: dict[int, int] = {}
        self._begun_before = self.begins
        """Where the records of the present load begin, by partition."""
        self.cuts: list[Stretch] = []
        """Of the loads before it, each of which ended as logs were cut."""
        self._instances: dict[MemberProcess, str] = {}
        self._links: dict[MemberProcess, str] = {}
        for link in LINKS:
            self.kafka.heal(link)

    @property
    def letters_topic(self) -> str:
        """Where poison ends; the name that the settings give by themselves."""
        return f"{self.topic}.dead-letters"

    # -- load ----------------------------------------------------------------------------------------------------

    @property
    def load(self) -> Load:
        """The present one."""
        return self.loads[-1]

    def _add_load(self) -> None:
        keys = customers(self.crowd.keys, len(self.loads))
        load = Load(self.kafka.bootstrap, self.topic, self.crowd.rate, keys, self.crowd.linger_ms)
        self.loads.append(load)
        self._written.append(Written(load.marks, load.appended))

    def load_anew(self) -> None:
        """Another load, whose records are told by their keys; the one before has ended. `cut` then says where: until
        then its producer's answers are taken for it."""
        self._begun_before = self.begins
        self._add_load()
        self.begins = self.load.first
        self.load.start()

    def cut(
        self, begins: Mapping[int, int], left: Mapping[int, int] | None, committed: Mapping[int, int] | None = None
    ) -> None:
        """The present load writes from `begins` on. Of the one before it the brokers have what is below `left`; None:
        nothing, as its topic is gone. `committed`: by the group, before that."""
        ends = {partition: len(times) for partition, times in self.loads[-2].appended.items()}
        in_order = self.crowd.ordering == "partition"
        self.cuts.append(Stretch(self._begun_before, ends, dict(self.deleted), left, None if in_order else committed))
        self.begins = dict(begins)
        if left is None:
            self.deleted.clear()

    def stretches(self, ends: Mapping[int, int]) -> list[Stretch]:
        """Of all loads, the present one's up to `ends`."""
        return [*self.cuts, Stretch(self.begins, ends, dict(self.deleted), ends)]

    # -- poison --------------------------------------------------------------------------------------------------

    def send_poison(self, count: int) -> set[tuple[int, int]]:
        """So many records that kill whoever handles them; partition and offset of each, as the brokers confirmed."""
        before = frozenset(self.load.poison)
        for customer in self.rng.sample(range(self.crowd.keys), count):
            self.load.send_poison(customer)
        wait_until(lambda: len(self.load.poison) == len(before) + count, f"{count} poisoned records in the log")
        return self.load.poison - before

    def letters(self) -> set[tuple[int, int]]:
        """Partition and offset of every record that is in the dead-letter topic."""
        told = [read(headers_of(letter)) for letter in consumed_so_far(self.kafka.bootstrap, self.letters_topic)]
        return {(each.partition, each.offset) for each in told if each.topic == self.topic}

    def wait_letters(self, within: float = 60.0) -> None:
        """Until all poison sent so far is in the dead-letter topic."""
        poison = frozenset(self.load.poison)
        wait_until(lambda: self.letters() >= poison, f"dead letters of {sorted(poison)}", within, 0.3)

    # -- members -------------------------------------------------------------------------------------------------

    def start(
        self, instead_of: MemberProcess | None = None, version: Mapping[str, Any] = MappingProxyType({})
    ) -> MemberProcess:
        """One more member; a static one takes over the instance id of the one that has ended. `version`: arguments of
        `Members.start` that make it one of another version."""
        instance = f"{self.topic}-{len(self._instances)}"
        if instead_of is not None:
            instance = self._instances[instead_of]
        link = next(link for link in LINKS if link not in {self._links[member] for member in self.alive})
        own: dict[str, dict[str, Any]] = {"group": {"group_instance_id": instance}} if self.static else {}
        own = merged(
            own, {"kafka": {"bootstrap_servers": self.kafka.bootstrap_over(link)}}, version.get("settings", {})
        )
        member = self.members.start(**{**version, "settings": own})
        self._instances[member], self._links[member] = instance, link
        self.alive.append(member)
        return member

    def stop(self, member: MemberProcess) -> None:
        """Ask it to stop; what it handled must be committed when it has (invariant 8)."""
        self.alive.remove(member)
        code = member.stop()
        assert code == 0, f"{member.name} exited with {code}\n{member.output()[-3000:]}"

    def any_member(self) -> MemberProcess:
        """One of the living."""
        return self.rng.choice(self.alive)

    def any_worker(self, member: MemberProcess) -> int:
        """The pid of one of its workers."""
        return int(self.rng.choice(member.wait(member.workers, "workers"))["pid"])

    def worker_pids(self, member: MemberProcess) -> frozenset[int]:
        """Of all its workers now."""
        return frozenset(worker["pid"] for worker in member.workers())

    def link(self, member: MemberProcess) -> str:
        """What it reaches the brokers by."""
        return self._links[member]

    def coordinator(self) -> Broker:
        """The broker that coordinates the group, as a member says."""
        member = self.alive[0]
        where = member.wait(lambda: self._told_by(member)["coordinator"], "a coordinator")
        return self.kafka.broker(int(where.split()[0]))

    # -- waiting -------------------------------------------------------------------------------------------------

    def generation(self) -> int:
        """The newest that a member knows of; with the consumer protocol the member epoch."""
        return max(int(self._told_by(member)["generation"] or 0) for member in self.alive)

    def _told_by(self, member: MemberProcess) -> Mapping[str, Any]:
        """What a member says of the group; a busy one may say nothing at first."""
        told: Mapping[str, Any] = member.wait(lambda: member.status().get("group"), "its group")
        return told

    def wait_whole(self, within: float = PATIENCE) -> None:
        """Until the living members share all partitions evenly, and everything is handled that was appended by then: of
        each partition something that came after the call, while there is load. A group that goes on may take as long
        as its machine does; one that handles nothing for `within` seconds does not become whole."""
        began = now()
        wait_until(self._shared_out, f"{len(self.alive)} members that share {PARTITIONS} partitions", within, 0.1)
        self.wait_under_load(lambda: self.load.has_confirmed_since(began), "records in each partition", within)
        ends = {partition: len(times) for partition, times in self.load.appended.items()}
        while left := self._unhandled_below(ends):
            self._wait_progress(ends, left, within)
        # Nobody looks while a fault goes on: a load that is held back by then would be none until the fault is over.
        self.wait_under_load(lambda: not self.load.is_held, "the load to go on", within)

    def _wait_progress(self, ends: Mapping[int, int], left: int, within: float) -> None:
        what = f"any of the {left} records below {ends} that are not handled"
        self.wait_under_load(lambda: self._unhandled_below(ends) < left, what, within)

    def wait_under_load(self, condition: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
        """Until that; meanwhile the audit is read, and the load held back where the group is far behind."""

        def looked() -> bool:
            self._look()
            return condition()

        wait_until(looked, what, within, 0.3)

    def _shared_out(self) -> bool:
        shares = []
        for member in self.alive:
            code = member.process.poll()
            assert code is None, f"{member.name} exited with {code}\n{member.output()[-3000:]}"
            status = member.status()
            if not status or status["group"]["state"] != "stable":
                return False
            if any(partition["state"] != "running" for partition in status["partitions"]):
                return False
            shares.append(len(status["partitions"]))
        return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1

    def _look(self) -> None:
        self.audit.read()
        ends = {partition: len(times) for partition, times in list(self.load.appended.items())}
        self.load.hold_back_beyond(BEHIND, self._unhandled_below(ends))

    def _unhandled_below(self, ends: Mapping[int, int]) -> int:
        return sum(self.unhandled(partition, end) for partition, end in ends.items())

    def unhandled(self, partition: int, end: int) -> int:
        """How many records below `end` no call has ended with, as far as the audit was read. Neither poison nor what
        was deleted is among them."""
        poison = [offset for number, offset in self.load.poison if number == partition]
        present = self.stretches({partition: end})[-1]
        return present.lost(partition, self.audit.ended(partition, len(self.loads) - 1), poison)

    def wait_committed(self, within: float = PATIENCE) -> None:
        """Until the brokers say that the group has committed what was appended by now, under load."""
        ends = {partition: len(times) for partition, times in self.load.appended.items()}

        def done() -> bool:
            committed = self.committed()
            return all(committed[partition] >= end for partition, end in ends.items())

        self.wait_under_load(done, f"commits of what lies below {ends}", within)

    def committed(self) -> dict[int, int]:
        """What the brokers say of each partition by now; a negative number for nothing."""
        found = committed_offsets(self.kafka.bootstrap, self.topic, self.topic, PARTITIONS, stable=False)
        return {tp.partition: offset for tp, offset in found.items()}

    def wait_all_committed(self) -> None:
        """Until the brokers say that the group has committed the end of every partition."""
        ends = end_offsets(self.kafka.bootstrap, self.topic, PARTITIONS)

        def done() -> bool:
            committed = committed_offsets(self.kafka.bootstrap, self.topic, self.topic, PARTITIONS)
            return all(end == 0 or committed[tp] == end for tp, end in ends.items())

        wait_until(done, f"the committed offsets {ends}", 120, 0.5)

    # -- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill whatever is left: frozen workers hear no EOF, so they are killed one by one."""
        for member in self.members.started:
            left = procfs.living_in_session(member.pid)
            member.close()
            for process in left:
                kill(process.pid, signal.SIGKILL)


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal; harmless where the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def last_for(seconds: float) -> None:
    """How long a fault lasts."""
    threading.Event().wait(seconds)


def now() -> int:
    """Nanoseconds of the clock that the audit uses."""
    return clock.now_ns()
