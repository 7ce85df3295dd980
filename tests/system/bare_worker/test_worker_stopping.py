"""StopFetcher, Drain, signals and the end of the pipe, against handlers that take their time."""

from __future__ import annotations

import signal
from pathlib import Path

from kunicorn.ipc.messages import Drain, DrainOver, FetcherStopped, Stopped
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import Rig, WorkerProcess, configuration
from tests.system.bare_worker.traffic import produce, seen
from tests.waiting import wait_until


def waiting_worker(
    processes: Rig, kafka: KafkaCluster, topic: str, handler: str = "wait_when_told", **overrides: object
) -> WorkerProcess:
    """A worker whose handler waits with offset 1 of partition 0 in hand; partition 1 is fetched, too."""
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, ["a", "wait", "b"], 0)
    produce(kafka.bootstrap, topic, ["c"], 1)
    worker = processes.worker(handler, kafka.bootstrap, [topic], **overrides)
    worker.start(topic, {0: 0, 1: 1})
    noted(processes.directory, "0@1 waits")
    wait_until(lambda: worker.slot(2).started, "partition 1 to be fetched")
    return worker


def noted(directory: Path, line: str) -> None:
    """Wait until a handler has noted that line."""
    wait_until(lambda: line in seen(directory), f"the handler to note {line!r}")


def test_a_partition_with_nothing_in_hand_stops_beside_a_handler_that_waits(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = waiting_worker(processes, kafka, topic)
    worker.stop(1, 2)
    assert worker.expect(FetcherStopped).partitions == [Stopped(2, 1, -1)]
    assert worker.slot(1).in_hand == 1
    (processes.directory / "go").touch()
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 2, 0)]
    assert "0@2=b" not in seen(processes.directory), "records after the one in hand belong to the next owner"


def test_an_idle_worker_lets_go_without_waiting_for_its_runner(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    """Were the runner waited for, it would have moved behind each stop; by chance it moves behind a few, and on a busy
    machine, where a stop takes as long as one of its turns, behind most."""
    kafka.create_topic(topic, 40)
    worker = processes.worker("see", kafka.bootstrap, [topic])
    worker.start(topic, dict.fromkeys(range(40), 0))
    moved = 0
    for grant in range(1, 41):
        before = worker.ping().runner
        worker.stop(grant)
        worker.expect(FetcherStopped)
        moved += worker.ping().runner != before
    assert moved < 40, "the runner has moved behind each stop"


def test_the_evidence_tells_what_is_in_hand_and_that_the_runner_does_not_move(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = waiting_worker(processes, kafka, topic)
    first = worker.ping()
    wait_until(lambda: (hand := worker.ping().in_hand) is not None and hand.age > 0.2, "the age to grow")
    second = worker.ping()
    assert first.in_hand is not None
    assert (first.in_hand.topic, first.in_hand.partition, first.in_hand.offset) == (topic, 0, 1)
    assert second.runner == first.runner
    (processes.directory / "go").touch()
    wait_until(lambda: worker.ping().runner > second.runner + 2, "the runner to move on")


def test_the_drain_deadline_interrupts_the_handler_and_its_record_is_not_counted(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = waiting_worker(processes, kafka, topic)
    worker.stop(1)
    worker.ping()
    worker.tell(DrainOver([1]))
    worker.signal(signal.SIGUSR1)
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 1, 0)]
    assert "0@1 left" in seen(processes.directory), "finally blocks run"
    assert worker.slot(2).started, "the other partition goes on"


def test_the_drain_deadline_cancels_an_async_handler_that_waits(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = waiting_worker(processes, kafka, topic, "wait_async")
    worker.stop(1)
    worker.ping()
    worker.tell(DrainOver([1]))
    worker.signal(signal.SIGUSR1)
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 1, 0)]
    assert "0@1 left" in seen(processes.directory)
    produce(kafka.bootstrap, topic, ["d"], 1)
    noted(processes.directory, "1@1=d")


def test_the_drain_deadline_of_another_partition_leaves_the_handler_alone(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = waiting_worker(processes, kafka, topic)
    worker.stop(1)
    worker.stop(2)
    worker.expect(FetcherStopped)
    worker.tell(DrainOver([2]))
    worker.signal(signal.SIGUSR1)
    worker.ping()
    assert "0@1 left" not in seen(processes.directory)
    (processes.directory / "go").touch()
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 2, 0)]


def test_drain_reports_everything_and_exits_0(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    worker = waiting_worker(processes, kafka, topic)
    worker.tell(Drain(0.0))
    assert worker.expect(FetcherStopped).partitions == [Stopped(2, 1, -1)]
    (processes.directory / "go").touch()
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 2, 0)]
    assert worker.exit_status() == 0


def test_a_worker_drains_while_no_broker_answers(processes: Rig) -> None:
    worker = processes.worker("see", "127.0.0.1:9", ["nowhere"])
    worker.start("nowhere", {0: 0})
    worker.tell(Drain(0.0))
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 0, -1)]
    assert worker.exit_status() == 0


def test_signals_meant_for_the_supervisor_do_not_stop_a_worker(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    worker = waiting_worker(processes, kafka, topic)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        worker.signal(number)
        worker.ping()
    (processes.directory / "go").touch()
    worker.consumed(1, 3)


def test_programs_started_by_a_handler_can_be_terminated(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, ["v"])
    worker = processes.worker("see_childs_signals", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0})
    worker.consumed(1, 1)
    assert seen(processes.directory) == ["SIG_DFL SIG_DFL"]


def test_a_stuck_handler_does_not_make_an_orphan(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, ["v"])
    worker = processes.worker("spin", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0})
    noted(processes.directory, "spins")
    worker.hang_up()
    assert worker.exit_status() == 1
    assert worker.slot(1).in_hand == 0


def test_a_sibling_forked_later_does_not_hide_the_end_of_the_pipe(processes: Rig) -> None:
    older, _younger = processes.unconfigured("see"), processes.unconfigured("see")
    older.hang_up()
    assert older.exit_status() == 1


def test_nonsense_on_the_pipe_ends_the_worker(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    worker = waiting_worker(processes, kafka, topic)
    worker.tell_bytes(b"\0\0\0\4{}{}")
    assert worker.exit_status() == 1


def test_a_partition_opened_again_behind_its_old_place_skips_nothing(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, (str(i) for i in range(20_000)))
    worker = processes.worker("see", kafka.bootstrap, [topic])
    grant = 1
    for _ in range(8):
        start = len(seen(processes.directory))
        worker.start(topic, {0: 0}, grant=grant, slot=0)
        wait_until(lambda g=grant: worker.slot(g, 0).consumed.offset > 100, "some records")  # type: ignore[misc]
        worker.stop(grant)
        (stopped,) = worker.expect(FetcherStopped).partitions
        offsets = [int(line.partition("=")[2]) for line in seen(processes.directory)[start:]]
        assert offsets == list(range(stopped.offset)), f"under grant {grant}"
        grant += 1


def test_a_grant_opened_in_the_same_breath_as_the_old_one_stops_starts_where_it_is_told(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = waiting_worker(processes, kafka, topic)
    worker.stop(1)
    worker.start(topic, {0: 0}, grant=3)
    wait_until(lambda: worker.slot(3).started, "the slot to open at once")
    (processes.directory / "go").touch()
    worker.expect(FetcherStopped)
    worker.consumed(3, 3)
    assert [line for line in seen(processes.directory) if "=" in line] == [
        "0@0=a",
        "0@1=wait",
        "0@0=a",
        "0@1=wait",
        "0@2=b",
    ]


def test_sigabrt_dumps_every_stack(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, ["v"])
    template = processes.template("spin")
    template.ready()
    worker = processes.fork(template).configure(configuration(kafka.bootstrap, "handlers_under_test:spin", [topic]))
    worker.start(topic, {0: 0})
    noted(processes.directory, "spins")
    worker.signal(signal.SIGABRT)
    assert worker.exit_status() == -signal.SIGABRT
    template.socket.close()
    assert template.process.stderr is not None
    dump = template.process.stderr.read().decode()
    assert "handlers_under_test.py" in dump
    assert "in spin" in dump
    assert "in _patience" in dump or "in receive" in dump, "the control thread, too"
