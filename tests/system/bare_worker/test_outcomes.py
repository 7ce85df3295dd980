"""What becomes of records that fail, with a real worker and a real dead-letter topic."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from kunicorn.handler.config import FailureRule
from kunicorn.handler.dead_letters import read
from kunicorn.ipc.messages import Failed, FetcherStart, StartFetcher, TimedOut, WorkerFailed
from tests.fakes.counts import counts
from tests.kafka import KafkaCluster
from tests.system.bare_worker.letters import letter_target, letters, letters_topic
from tests.system.bare_worker.outcomes_handlers import HANDLERS
from tests.system.bare_worker.rig import OVER_BOTH_FETCHERS, OWN_AT_LENGTH, Rig, WorkerProcess, configuration
from tests.system.bare_worker.traffic import produce, seen
from tests.system.producing import headers_of
from tests.waiting import wait_until

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(processes: Rig, kafka: KafkaCluster, topic: str) -> Start:
    """Starts a worker that has every partition: `start(2, on_failure="skip", handler="say")`."""
    processes.module(HANDLERS)

    def make(
        partitions: int = 1, handler: str = "say", delivery_timeout_ms: int = 3000, **configure: Any
    ) -> WorkerProcess:
        target = letter_target(kafka, topic, delivery_timeout_ms)
        worker = processes.worker(handler, kafka.bootstrap, [topic], dead_letters=target, **configure)
        worker.start(topic, dict.fromkeys(range(partitions), 0))
        return worker

    return make


@OVER_BOTH_FETCHERS
def test_a_failed_record_becomes_a_dead_letter_with_all_it_had_and_the_partition_goes_on(
    start: Start, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    kafka.create_topic(letters_topic(topic), 1)
    sender = Producer({"bootstrap.servers": kafka.bootstrap})
    sender.produce(topic, b"fail", b"key", headers=[("trace", b"1"), ("trace", b"2")], timestamp=1_700_000_000_000)
    sender.produce(topic, b"fine", b"key")
    assert sender.flush(60) == 0
    worker = start(max_attempts=2, on_failure="dead_letter")
    worker.consumed(1, 2)
    (letter,) = letters(kafka, topic, 1)
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"key", b"fail", 1_700_000_000_000)
    told = read(headers_of(letter))
    assert (told.topic, told.partition, told.offset, told.group) == (topic, 0, 0, "rig")
    assert (told.cause.type, told.cause.message, told.cause.attempts) == ("ValueError", "no such customer", 2)
    assert "in say" in told.cause.stack
    assert told.headers == [("trace", b"1"), ("trace", b"2")]
    (counted,) = counts(worker.ping())
    assert (counted.records, counted.failures, counted.retries, counted.dead_letters) == (1, 2, 1, {"attempts": 1})


@OWN_AT_LENGTH
def test_what_handlers_say_and_rules_by_exception_decide_in_order_within_the_partition(
    start: Start, processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    kafka.create_topic(letters_topic(topic), 1)
    said = ["skip", "raise skip", "letter", "raise letter", "done", "raise done", "gone", "fail", "retry", "a", "halt"]
    produce(kafka.bootstrap, topic, said)
    rule = FailureRule(["handlers_under_test.Permanent"], 1, 20, 100, None, "dead_letter")
    worker = start(max_attempts=2, on_failure="skip", failures=[rule])
    failed = worker.expect(Failed)
    assert (failed.offset, failed.error.splitlines()[0]) == (10, "Halt: wait for me")
    # Tried twice: what no rule is about, and what asks for it.
    tried = [number for number, value in enumerate(said) for _ in range(1 + (value in ("fail", "retry")))]
    assert [int(line.split("@")[1].split("=")[0]) for line in seen(processes.directory)] == tried
    causes = [read(headers_of(letter)).cause for letter in letters(kafka, topic, 3)]
    assert [(cause.type, cause.message) for cause in causes] == [
        ("kunicorn.DeadLetter", "a negative total"),
        ("kunicorn.DeadLetter", "a negative total"),
        ("handlers_under_test.Gone", "it is gone"),
    ]
    (counted,) = counts(worker.ping())
    assert (counted.records, counted.skipped) == (3, 4)
    assert counted.dead_letters == {"handler": 2, "attempts": 1}


@OWN_AT_LENGTH
def test_while_the_dead_letter_topic_is_away_its_partition_waits_with_a_reason_and_the_others_go_on(
    start: Start, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, ["fail", "b"], 0)
    worker = start(2, max_attempts=1, on_failure="dead_letter", delivery_timeout_ms=1000)
    wait_until(lambda: worker.ping().parked_count == {"dead_letter": 1}, "the partition to wait")
    produce(kafka.bootstrap, topic, (f"v{i}" for i in range(100)), 1)
    worker.consumed(2, 100)
    # Not told at the instants at which the letter is tried again.
    (parked,) = wait_until(lambda: worker.ping().parked, "the reason")
    assert parked.grant == 1
    assert parked.why.startswith(f"offset 0 waits for the dead-letter topic '{letters_topic(topic)}': ")
    assert worker.slot(1).consumed.offset == 0
    kafka.create_topic(letters_topic(topic), 1)
    worker.consumed(1, 2)
    assert len(letters(kafka, topic, 1)) == 1
    assert worker.ping().parked == []


@OWN_AT_LENGTH
def test_a_record_too_large_for_the_dead_letter_topic_halts_its_partition_and_says_which_limit(
    start: Start, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    kafka.create_topic(letters_topic(topic), 1, {"max.message.bytes": "1000"})
    produce(kafka.bootstrap, topic, ["fail" + os.urandom(2000).hex()])
    failed = start(max_attempts=1, on_failure="dead_letter").expect(Failed)
    assert failed.offset == 0
    assert f"too large for the dead-letter topic '{letters_topic(topic)}'" in failed.error
    assert "max.message.bytes" in failed.error


@OWN_AT_LENGTH
def test_each_way_into_the_dead_letter_topic_is_counted_by_its_reason(
    start: Start, processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    kafka.create_topic(letters_topic(topic), 1)
    produce(kafka.bootstrap, topic, ["killed", "letter", "fail", "exit", "later", "wait"])
    rule = FailureRule(["kunicorn.Retry"], 5, 20, 100, 1000, "dead_letter")
    worker = start(0, max_attempts=1, on_failure="dead_letter", failures=[rule])
    worker.tell(
        StartFetcher([FetcherStart(1, 1, topic, 0, 0, -1, poison="2 workers died", poison_deaths=2, poison_offset=0)])
    )
    wait_until(lambda: "0@5=wait" in seen(processes.directory), "the last record to be in hand")
    worker.tell(TimedOut(1, 5))
    worker.consumed(1, 6)
    (counted,) = counts(worker.ping())
    reasons = ("poison", "handler", "attempts", "exit", "retry_timeout", "handler_timeout")
    assert counted.dead_letters == dict.fromkeys(reasons, 1)


def test_an_exception_that_settings_name_and_nobody_knows_is_refused(processes: Rig, kafka: KafkaCluster) -> None:
    processes.module(HANDLERS)
    worker = processes.unconfigured("say")
    rule = FailureRule(["handlers_under_test.Permament"], 1, 20, 100, None, "skip")
    worker.tell(configuration(kafka.bootstrap, "handlers_under_test:say", [], failures=[rule]))
    failed = worker.expect(WorkerFailed)
    assert failed.stage == "settings"
    assert "handler.failures names the exception 'handlers_under_test.Permament'" in failed.error
    assert worker.exit_status() == 2
