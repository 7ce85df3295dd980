"""Scenario of the demo: a group is fed, hurt, extended, shrunk and stopped, and then audited.

Every act waits for its own effect before the next one disturbs anything; the schedule only says when an act begins at
the earliest.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from kunicorn.commands.demo import one_worker
from kunicorn.commands.demo.judge import Audit, Outcome, kept, verdict
from kunicorn.commands.demo.member import Feed, Member, MemberConfig
from kunicorn.commands.demo.mock_cluster import MockUnavailable, mock_cluster_process
from kunicorn.commands.demo.view import Picture, View
from kunicorn.commands.sigterm import sigterm_interrupts
from kunicorn.errors import ConfigError
from kunicorn.handler.decode.forms import need_arrow
from kunicorn.librdkafka.errors import UNREACHED, fault_of
from kunicorn.linux import IS_LINUX
from kunicorn.positions import TopicPartition
from kunicorn.text import as_json_text

PARTITIONS = 8
WORKERS = 2
RATE = 120.0
"""Records a second; two workers at 0–20 ms a record manage 200, so that a restart's backlog is soon worked off."""
HANDLER_MS = 20
PATIENCE = 60.0
"""Seconds an act may take to show its effect; a free machine needs two or three."""
POLL = 0.2

SESSION_TIMEOUT_MS, MOCK_SESSION_TIMEOUT_MS = 10_000, 6_000
"""The mock cluster takes as long as the session timeout, less a second, for every rebalance."""

KILL_AT, JOIN_AT, LEAVE_AT, FINISH_AT = 0.15, 0.3, 0.8, 1.0
"""When the acts begin at the earliest, as a share of the demo's time."""
LULL = 2.0
"""Seconds between the end of one act and the beginning of the next, at least: time to look, and to handle records."""


class DemoFailed(Exception):
    """The scenario cannot go on; the message says what was waited for and what the members logged."""


def run_demo(
    bootstrap: str | None = None,
    seconds: float = 25.0,
    console: Console | None = None,
    *,
    arrow: bool = False,
    as_json: bool = False,
) -> int:
    """Play the scenario and print the audit; 0 if every promise was kept, 1 if not, 130 after Ctrl-C.

    With `arrow` the handler gets columns. Raises `HandlerLoadError` if pyarrow is not there for that, `ConfigError`
    where the broker at `bootstrap` does not answer or refuses.
    Without `bootstrap` a mock cluster is started. The demo lasts for about `seconds`, or as long as its acts take.
    With `as_json` nothing but the result goes to standard output. Blocks; Ctrl-C and SIGTERM end everything that was
    started. What the members logged is kept where something went wrong.
    """
    if arrow:
        need_arrow()
    console = console or Console(highlight=False, stderr=as_json)
    directory = Path(tempfile.mkdtemp(prefix="kunicorn-demo-"))
    topic = f"kunicorn-demo-{time.time_ns():x}"
    try:
        with sigterm_interrupts(), _cluster(bootstrap, topic) as address:
            session = MOCK_SESSION_TIMEOUT_MS if bootstrap is None else SESSION_TIMEOUT_MS
            config = MemberConfig(address, topic, topic, WORKERS, HANDLER_MS, session, directory, arrow)
            if IS_LINUX:
                lines = verdict(_Demo(config, seconds, View(console)).play())
            else:
                lines = one_worker.play(config, RATE, seconds * one_worker.FED, View(console))
    except (DemoFailed, MockUnavailable) as error:
        console.print(f"The demo could not be played: {error}", markup=False)
        console.print(f"Logs and audit: {directory}", markup=False)
        return 1
    except ConfigError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        console.print("interrupted; everything the demo had started is stopped")
        shutil.rmtree(directory, ignore_errors=True)
        return 128 + signal.SIGINT
    View(console).result(lines)
    if as_json:
        print(as_json_text({"kept": kept(lines), "audit": [asdict(line) for line in lines]}))
    if not kept(lines):
        console.print(f"Logs and audit: {directory}", markup=False)
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    return 0


@contextmanager
def _cluster(bootstrap: str | None, topic: str) -> Iterator[str]:
    """The bootstrap address of a cluster in which `topic` exists; on the user's cluster it is removed afterwards."""
    if bootstrap is None:
        with mock_cluster_process([(topic, PARTITIONS)]) as address:
            yield address
        return
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)], request_timeout=10)[topic].result(15)
    except (KafkaException, TimeoutError) as error:
        raise _refused(bootstrap, topic, error) from error
    try:
        yield bootstrap
    finally:
        within = {"request_timeout": 10}
        removals = admin.delete_topics([topic], **within), admin.delete_consumer_groups([topic], **within)
        for future in [future for each in removals for future in each.values()]:
            with suppress(TimeoutError):  # Brokers that are gone by now: why the demo ended is to be said, not this.
                future.exception(15)


def _refused(bootstrap: str, topic: str, error: KafkaException | TimeoutError) -> ConfigError:
    code = KafkaError._TIMED_OUT if isinstance(error, TimeoutError) else error.args[0].code()
    if code in UNREACHED:
        return ConfigError(
            f"--bootstrap {bootstrap}: no broker that makes topics answers within 10 s; start a Kafka there (that of "
            f"kunicorn broker makes none), or leave --bootstrap out"
        )
    found = fault_of(code)
    remedy = found.remedy(topic=f"topic {topic}", rights="CREATE")
    return ConfigError(f"--bootstrap {bootstrap}: {found}: {remedy}")


class _Demo:
    """One run of the scenario. The acts are methods, in the order in which they are played."""

    def __init__(self, config: MemberConfig, seconds: float, view: View) -> None:
        self._config = config
        self._seconds = seconds
        self._view = view
        self._members = [Member(1, config), Member(2, config)]
        self._feed = Feed(config.bootstrap, config.topic, RATE)
        self._killed: set[int] = set()
        self._began = time.monotonic()
        #: (time, records handled) at the last polls, for the throughput.
        self._samples: deque[tuple[float, int]] = deque(maxlen=10)

    def play(self) -> Outcome:
        """All acts, from the first member's start to the last one's exit."""
        try:
            with self._view:
                for act in (self._start, self._kill, self._join, self._leave, self._finish):
                    act()
        finally:
            self._feed.stop(timeout=5)
            for member in self._members:
                member.end()
        return self._outcome()

    def _start(self) -> None:
        first = self._members[0]
        self._view.happened(f"{first.name} starts with {WORKERS} workers")
        first.start()
        self._until(lambda: _running(first) == PARTITIONS, f"{first.name} to fetch all partitions")
        self._view.happened(f"{first.name} has all {PARTITIONS} partitions; {RATE:.0f} records a second are produced")
        self._feed.start()
        self._until(lambda: _handled(first) > 0, f"{first.name} to handle records")

    def _kill(self) -> None:
        first = self._members[0]
        self._not_before(KILL_AT)
        victim = first.kill_worker()
        if victim is None or victim.pid is None:
            raise DemoFailed(f"{first.name} shows no worker with partitions to kill")
        self._killed.add(victim.pid)
        self._view.happened(f"SIGKILL to worker {victim.worker} (pid {victim.pid}) of {first.name}")
        self._until(
            lambda: _restarts(first) > 0 and _running(first) == PARTITIONS and victim.pid not in _pids(first),
            "the killed worker's successor",
        )
        self._view.happened("its partitions are handled again; the group never noticed")

    def _join(self) -> None:
        first, second = self._members
        self._not_before(JOIN_AT)
        self._view.happened(f"{second.name} starts; partitions move to it without a pause for the others")
        second.start()
        self._until(
            lambda: _running(first) > 0 and _running(second) > 0 and _running(first) + _running(second) == PARTITIONS,
            "both members to share the partitions",
        )
        self._until(lambda: _handled(second) > 0, f"{second.name} to handle records")
        self._view.happened(f"{first.name} has {_running(first)} partitions, {second.name} has {_running(second)}")

    def _leave(self) -> None:
        first, second = self._members
        self._not_before(LEAVE_AT)
        self._view.happened(f"SIGTERM to {second.name}: drain, commit, leave")
        second.ask_to_stop()
        self._until(lambda: not second.alive, f"{second.name} to exit")
        self._view.happened(f"{second.name} exited {second.exit_code}")
        self._until(lambda: _running(first) == PARTITIONS, f"{first.name} to take over all partitions")
        self._view.happened(f"{first.name} handles all {PARTITIONS} partitions again")

    def _finish(self) -> None:
        first = self._members[0]
        self._not_before(FINISH_AT)
        self._feed.stop()
        if self._feed.failure:
            raise DemoFailed(self._feed.failure)
        self._view.happened(f"nothing more is produced; {first.name} handles what is left")
        ends = _ends(self._feed.produced)
        self._until(lambda: ends.items() <= _committed(first).items(), "everything to be handled and committed")
        self._view.happened(f"everything is committed; SIGTERM to {first.name}")
        first.ask_to_stop()
        self._until(lambda: not first.alive, f"{first.name} to exit")
        self._view.happened(f"{first.name} exited {first.exit_code}")

    def _outcome(self) -> Outcome:
        status = self._members[0].status
        committed = _ask_committed(self._config, self._feed.produced)
        ends = _ends(self._feed.produced)
        return Outcome(
            report=Audit(self._config.audit).check(self._feed.produced, self._killed),
            exit_codes={member.name: member.exit_code for member in self._members},
            rebalances=status.group.rebalances if status and status.group else 0,
            worker_restarts=_restarts(self._members[0]),
            uncommitted=[str(p) for p, end in sorted(ends.items()) if committed.get(p) != end],
            in_hand=self._config.in_hand,
        )

    def _not_before(self, share: float) -> None:
        """Watch until that share of the time has passed, and then for a moment without a rebalance."""
        until = max(share * self._seconds, self._elapsed() + LULL)
        self._until(lambda: self._elapsed() >= until, "the next act", within=until + PATIENCE)

    def _until(self, condition: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
        """Watch and show the members until `condition`; raises `DemoFailed` if one dies or it takes too long."""
        deadline = time.monotonic() + within
        while True:
            self._watch()
            if condition():
                return
            dead = [member for member in self._members if member.exit_code not in (None, 0)]
            if dead or time.monotonic() > deadline:
                why = f"{dead[0].name} exited {dead[0].exit_code}" if dead else f"it took more than {within:.0f} s"
                raise DemoFailed(f"waiting for {what}, {why}\n{(dead or self._members)[0].log_tail()}")
            time.sleep(POLL)

    def _watch(self) -> None:
        """Ask every member for its status and draw it."""
        for member in self._members:
            member.refresh()
        handled = sum(map(_handled, self._members))
        self._samples.append((time.monotonic(), handled))
        (since, before), (now, _) = self._samples[0], self._samples[-1]
        throughput = (handled - before) / (now - since) if now > since else 0.0
        started = [member for member in self._members if member.alive or member.status]
        self._view.show(Picture(self._elapsed(), self._feed.acknowledged, throughput, started))

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def _running(member: Member) -> int:
    """Number of partitions that are being handled now."""
    status = member.status if member.alive else None
    return sum(partition.state == "running" for partition in status.partitions) if status else 0


def _handled(member: Member) -> int:
    return sum(worker.handled for worker in member.status.workers) if member.status else 0


def _restarts(member: Member) -> int:
    return sum(worker.restarts for worker in member.status.workers) if member.status else 0


def _pids(member: Member) -> set[int | None]:
    return {worker.pid for worker in member.status.workers} if member.status else set()


def _committed(member: Member) -> dict[TopicPartition, int | None]:
    """Committed offsets as the member shows them."""
    partitions = member.status.partitions if member.status else ()
    return {TopicPartition(each.topic, each.partition): each.committed for each in partitions}


def _ends(produced: Mapping[TopicPartition, set[int]]) -> dict[TopicPartition, int]:
    """Offset behind the last record of every partition."""
    return {partition: max(offsets) + 1 for partition, offsets in produced.items() if offsets}


def _ask_committed(config: MemberConfig, produced: Mapping[TopicPartition, set[int]]) -> dict[TopicPartition, int]:
    """Committed offsets as the broker has them, by a client of its own."""
    client = Consumer({"bootstrap.servers": config.bootstrap, "group.id": config.group, "log_level": 0})
    try:
        answers = client.committed([ClientPartition(*partition) for partition in produced], timeout=20)
    except KafkaException as error:
        raise DemoFailed(f"the committed offsets of {config.group} could not be read back: {error}") from error
    finally:
        client.close()
    return {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}
