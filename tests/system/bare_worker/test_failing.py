"""Handlers that raise, partitions that break, configurations that cannot be served."""

from __future__ import annotations

from kunicorn.ipc.messages import Drain, Failed, FailureKind, FetcherStopped, Stopped, WorkerFailed
from tests.fakes.counts import counts
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import Rig, configuration
from tests.system.bare_worker.traffic import produce, seen
from tests.waiting import wait_until


def test_a_record_that_always_fails_ends_its_grant_and_no_other(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, ["a", "fail", "b"], 0)
    produce(kafka.bootstrap, topic, (f"v{i}" for i in range(100)), 1)
    worker = processes.worker("fail_when_told", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0, 1: 0})
    failed = worker.expect(Failed)
    assert (failed.grant, failed.kind, failed.offset, failed.leader_epoch) == (1, FailureKind.HANDLER, 1, 0)
    assert failed.error.startswith("ValueError: no such customer")
    assert "in fail_when_told" in failed.error
    assert seen(processes.directory).count("0@1 fails") == 3
    assert "0@2=b" not in seen(processes.directory)
    worker.handled(2, 100)
    (told,) = counts(worker.ping())
    assert (told.records, told.failures, told.retries) == (101, 3, 2)


def test_the_wait_for_the_next_try_holds_up_nobody(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, ["fail"], 0)
    worker = processes.worker(
        "fail_when_told", kafka.bootstrap, [topic], retry_backoff_ms=60_000, retry_backoff_max_ms=60_000
    )
    worker.start(topic, {0: 0, 1: 0})
    wait_until(lambda: "0@0 fails" in seen(processes.directory), "the failure")
    produce(kafka.bootstrap, topic, ["v"], 1)
    worker.handled(2, 1)
    assert worker.ping().in_hand is None
    worker.stop(1)
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 0, 0)], "long before the minute is over"


def test_sys_exit_in_a_handler_fails_its_record_at_once_and_not_the_worker(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, ["exit"], 0)
    produce(kafka.bootstrap, topic, ["v"], 1)
    worker = processes.worker("fail_when_told", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0, 1: 0})
    failed = worker.expect(Failed)
    assert (failed.offset, failed.error.splitlines()[0]) == (0, "SystemExit: 7")
    worker.consumed(2, 1)


def test_an_offset_outside_the_log_ends_the_grant_and_another_one_works(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, ["a", "b"])
    worker = processes.worker("see", kafka.bootstrap, [topic])
    worker.start(topic, {0: 1000}, grant=1)
    failed = worker.expect(Failed)
    assert (failed.kind, failed.offset) == (FailureKind.OUT_OF_RANGE, 1000)
    worker.start(topic, {0: 0}, grant=2)
    worker.consumed(2, 2)


def test_client_properties_that_librdkafka_refuses_are_reported(processes: Rig, kafka: KafkaCluster) -> None:
    worker = processes.unconfigured("see")
    configure = configuration(kafka.bootstrap, "handlers_under_test:see", [])
    configure.client["no.such.property"] = 1
    worker.tell(configure)
    failed = worker.expect(WorkerFailed)
    assert failed.stage == "client"
    assert "no.such.property" in failed.error
    assert worker.exit_status() == 2


def test_options_that_nobody_reads_are_refused(processes: Rig, kafka: KafkaCluster) -> None:
    worker = processes.unconfigured("see")
    worker.tell(configuration(kafka.bootstrap, "handlers_under_test:see", [], options={"colour": "red"}))
    failed = worker.expect(WorkerFailed)
    assert failed.stage == "import"
    assert "has no setup(options)" in failed.error
    assert worker.exit_status() == 3


def test_a_worker_drains_while_no_broker_answers(processes: Rig) -> None:
    worker = processes.worker("see", "127.0.0.1:9", ["nowhere"])
    worker.start("nowhere", {0: 0})
    worker.tell(Drain(0.0))
    assert worker.expect(FetcherStopped).partitions == [Stopped(1, 0, -1)]
    assert worker.exit_status() == 0
