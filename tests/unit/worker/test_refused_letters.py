"""What becomes of dead letters that the brokers refuse, and of what waits for room, is lost, or fails behind its
outputs: a whole worker, on brokers whose answers the test chooses. Of refused outputs `tests/contract/worker` tells, in
every way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kunicorn.backoff import Backoff
from kunicorn.handler.config import HandlerConfig
from kunicorn.ipc import bitmap
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.messages import FetcherStopped
from kunicorn.worker.produce import sender, transactions
from tests.fakes.counts import counts_of
from tests.fakes.whole_worker import LETTERS, WholeWorker, record
from tests.unit.worker import sending_handlers
from tests.waiting import wait_until

DELIVERIES = ["at_least_once", "transactions"]
patiently = partial(wait_until, within=60.0)
TOO_LARGE, NO_SUCH_TOPIC = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), KafkaError(KafkaError._UNKNOWN_TOPIC)


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> None:
    sending_handlers.forget()
    for module in (sender, transactions):
        monkeypatch.setattr(module, "BACKOFF", Backoff(0.001, 0.001))


def order(handler: str = "each", **more: Any) -> HandlerConfig:
    rules = {"mode": "record", "batch_max_records": 4, "max_attempts": 2, "on_failure": "halt", **more}
    return HandlerConfig(
        f"{sending_handlers.__name__}:{handler}", options={}, retry_backoff_ms=1, retry_backoff_max_ms=1, **rules
    )


@contextmanager
def refusing(
    config: HandlerConfig, records: int, delivery: str | None, *hopeless: int, error: KafkaError = NO_SUCH_TOPIC
) -> Iterator[WholeWorker]:
    """A worker that has so many records, some of them hopeless, and brokers that refuse its letters so."""
    with WholeWorker(config, map(record, range(records)), delivery) as worker:
        worker.brokers.letters_refused = error
        sending_handlers.hopeless |= {*hopeless}
        worker.hand_out()
        yield worker


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_after_a_wait_for_room_no_record_is_begun_past_the_lease(delivery: str) -> None:
    with WholeWorker(order(), map(record, range(60)), delivery, most_records=5) as worker:
        worker.brokers.hold()
        worker.hand_out()
        worker.until_still(lambda: len(sending_handlers.calls))
        lease, begun = worker.ledger.lease_ns, len(sending_handlers.calls)
        worker.ledger.lease_ns = 1
        worker.brokers.answer()
        patiently(lambda: worker.made.runner.paused_by_lease, "the runner to see that the lease is over")
        assert len(sending_handlers.calls) == begun
        worker.ledger.lease_ns = lease
        worker.until_consumed(60)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("several", [False, True], ids=["one in hand", "several"])
def test_a_dead_letter_whose_topic_is_away_waits_for_it_and_the_handler_is_not_asked_again(
    several: bool, delivery: str
) -> None:
    more: dict[str, Any] = {"ordering": "key", "concurrency": 4} if several else {}
    with refusing(order(on_failure="dead_letter", **more), 6, delivery, 2) as worker:
        why = f"offset 2 waits for the dead-letter topic 'letters': {NO_SUCH_TOPIC.name()}"
        told = patiently(
            lambda: [each for each in worker.made.table.parked()[0] if each.why.startswith(why)], "what it waits for"
        )
        assert told[0].waits_for == "dead_letter"
        worker.until_consumed(2)
        worker.brokers.letters_refused = None
        worker.until_consumed(6)
        assert worker.brokers.values(LETTERS) == [b"2"]
        assert set(worker.brokers.values()) == {b"0", b"1", b"3", b"4", b"5"}
        assert sending_handlers.handled().count(2) == 2, "its tries, and no more"
        (counted,) = counts_of(*worker.made.counters.take())
        assert counted.dead_letters == {"attempts": 1}


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_where_outputs_are_sent_at_least_once_none_waits_for_a_letter_that_is_not_acknowledged(ordering: str) -> None:
    more: dict[str, Any] = {"ordering": "key", "concurrency": 4} if ordering == "key" else {}
    with WholeWorker(order(on_failure="dead_letter", **more), map(record, range(300))) as worker:
        worker.brokers.letters_held = True
        sending_handlers.hopeless.add(2)
        worker.hand_out()
        others = {b"%d" % offset for offset in range(300 if ordering == "key" else 2) if offset != 2}
        patiently(lambda: others <= set(worker.brokers.values()), "the outputs of the others")
        patiently(lambda: worker.made.table.parked()[1] == {"dead_letter": 1}, "the partition to say what it waits for")
        worker.until_consumed(2)
        worker.brokers.letters_held = False
        worker.until_consumed(300)
        assert worker.brokers.values(LETTERS) == [b"2"]
        assert sending_handlers.handled().count(2) == 2, "its tries, and no more"


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_of_a_partition_that_is_lost_no_output_goes_out_that_the_client_did_not_have(delivery: str) -> None:
    with WholeWorker(order(), map(record, range(100)), delivery, most_records=10) as worker:
        worker.brokers.hold()
        worker.hand_out()
        patiently(lambda: worker.brokers.given and len(sending_handlers.calls) > 10, "a batch to be under way")
        worker.made.hooks.stop([1], lost=True)
        worker.brokers.answer()
        worker.hand_out(90)
        worker.until_consumed(100)
        assert sum(int(value) < 90 for value in worker.brokers.given) <= 10, "the batch that was under way"


def one_by_one(delivery: str | None) -> HandlerConfig:
    """A handler that gets one record at a time, and gives up what is hopeless."""
    if delivery is None:
        return order("giving_up", mode="batch", batch_max_records=1, on_failure="dead_letter")
    return order(on_failure="dead_letter")


@pytest.mark.parametrize("delivery", [None, *DELIVERIES])
def test_a_letter_that_is_not_acknowledged_in_time_has_its_record_wait_and_is_sent_anew(delivery: str | None) -> None:
    with refusing(one_by_one(delivery), 6, delivery, 2, error=KafkaError(KafkaError._MSG_TIMED_OUT)) as worker:
        patiently(lambda: worker.brokers.refusals >= 3, "the letter to be sent again and again")
        patiently(
            lambda: any("no acknowledgement in time" in each.why for each in worker.made.table.parked()[0]),
            "the record to wait, and to say for what",
        )
        worker.brokers.letters_refused = None
        worker.until_consumed(6)
        assert worker.brokers.values(LETTERS) == [b"2"]


@pytest.mark.parametrize("delivery", [None, "at_least_once"])
def test_a_stop_waits_for_no_letter_that_is_not_acknowledged(delivery: str | None) -> None:
    with WholeWorker(one_by_one(delivery), map(record, range(6)), delivery) as worker:
        worker.brokers.letters_held = True
        sending_handlers.hopeless.add(2)
        worker.hand_out()
        patiently(lambda: worker.made.table.parked()[1].get("dead_letter"), "the letter to be on its way")
        worker.made.hooks.stop([1])
        patiently(lambda: worker.ended, "its report")
        assert worker.consumed == 2


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_stop_while_a_dead_letter_waits_leaves_its_record_unfinished(delivery: str) -> None:
    with refusing(order(on_failure="dead_letter"), 6, delivery, 2) as worker:
        patiently(lambda: worker.made.table.parked()[1].get("dead_letter"), "the partition to wait for the topic")
        worker.made.hooks.stop([1])
        patiently(lambda: worker.ended, "its report")
        assert worker.consumed == 2


@pytest.mark.parametrize("several", [False, True], ids=["one in hand", "several"])
def test_a_partition_that_is_stopped_before_its_record_fails_waits_for_no_letter_that_does_not_arrive(
    several: bool,
) -> None:
    more: dict[str, Any] = {"ordering": "key", "concurrency": 4} if several else {}
    failing = order("late", on_failure="dead_letter", max_attempts=1, **more)
    with WholeWorker(failing, [record(0)], delivery=None) as worker:
        worker.brokers.hold()
        worker.hand_out()
        patiently(lambda: sending_handlers.calls, "the call")
        worker.made.hooks.stop([1])
        sending_handlers.goes_on.set()
        wait_until(lambda: worker.ended, "its report")
        assert worker.consumed == 0
        worker.brokers.answer()


@pytest.mark.parametrize(("budget_is_over", "done"), [(False, {1}), (True, set())])
def test_a_record_in_hand_beside_a_letter_that_does_not_arrive_is_waited_for_within_the_drain_budget(
    budget_is_over: bool, done: set[int]
) -> None:
    failing = order("each_late", on_failure="dead_letter", max_attempts=1, ordering="key", concurrency=4)
    with WholeWorker(failing, [record(0, b"a"), record(1, b"b")]) as worker:
        worker.brokers.letters_held = True
        sending_handlers.hopeless.add(0)
        worker.hand_out()
        patiently(lambda: worker.made.table.parked()[1].get("dead_letter"), "the letter to be on its way")
        patiently(lambda: len(sending_handlers.calls) == 2, "the call with the other record")
        late = now_ns() + NANOSECONDS // 4
        worker.made.hooks.stop([1])
        patiently(lambda: now_ns() > late, "nobody to wait for the letter any more")
        if budget_is_over:
            worker.made.table.let_go([1])
        sending_handlers.goes_on.set()
        report = patiently(lambda: worker.ended, "its report")
        assert isinstance(report, FetcherStopped)
        (stopped,) = report.partitions
        assert (stopped.offset, set(bitmap.read(stopped.offset, stopped.done))) == (0, done)
        assert worker.brokers.values() == [b"%d" % offset for offset in done]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_dead_letter_that_is_too_large_halts_its_partition(delivery: str) -> None:
    with refusing(order(on_failure="dead_letter"), 6, delivery, 2, error=TOO_LARGE) as worker:
        halted = worker.halted()
        assert halted.offset == 2
        assert "too large for the dead-letter topic 'letters'" in halted.error
        assert "max.message.bytes" in halted.error


@pytest.mark.parametrize("delivery", [None, *DELIVERIES])
def test_a_row_whose_letter_is_refused_waits_and_the_handler_is_not_asked_again_where_rows_behind_it_are_done(
    delivery: str | None,
) -> None:
    batches = order("giving_up", mode="batch", batch_max_records=10, on_failure="dead_letter")
    with refusing(batches, 20, delivery, 3) as worker:
        patiently(lambda: worker.brokers.refusals >= 3, "the letter to be refused again and again")
        assert worker.consumed == 3
        worker.brokers.letters_refused = None
        worker.until_consumed(20)
        assert sending_handlers.handled().count(3) == 1, "its letter was sent again, and no handler called"
        assert worker.brokers.values(LETTERS) == [b"3"]


def giving_up_together(handler: str, delivery: str | None, error: KafkaError) -> AbstractContextManager[WholeWorker]:
    """A worker with ten records in a batch, of which three are hopeless."""
    batches = order(handler, mode="batch", batch_max_records=10, on_failure="dead_letter")
    return refusing(batches, 10, delivery, 3, 4, 5, error=error)


TOGETHER = pytest.mark.parametrize(
    ("handler", "tries"), [("refusing", 2), ("giving_up", 1)], ids=["a failed batch", "neighbouring rows"]
)


@pytest.mark.parametrize("delivery", [None, *DELIVERIES])
@TOGETHER
def test_records_that_were_given_up_together_wait_for_the_topic_of_their_letters_and_the_handler_is_not_asked_again(
    handler: str, tries: int, delivery: str | None
) -> None:
    with giving_up_together(handler, delivery, NO_SUCH_TOPIC) as worker:
        patiently(lambda: worker.brokers.refusals >= 30, "the letters to be refused again and again")
        patiently(
            lambda: any("create it" in each.why for each in worker.made.table.parked()[0]),
            "the partition to wait for the topic, and not to send at once",
        )
        given_up = range(10) if handler == "refusing" else range(3, 6)
        assert worker.consumed == given_up[0]
        worker.brokers.letters_refused = None
        worker.until_consumed(10)
        assert sending_handlers.handled().count(3) == tries, "its tries, and no more"
        assert worker.brokers.values(LETTERS) == [b"%d" % offset for offset in given_up]
        (counted,) = counts_of(*worker.made.counters.take())
        assert sum(counted.dead_letters.values()) == len(given_up)


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_TOPIC, KafkaError._MSG_TIMED_OUT])
@pytest.mark.parametrize("delivery", [None, *DELIVERIES])
@TOGETHER
def test_of_records_that_were_given_up_together_only_the_letters_that_have_not_arrived_are_sent_again(
    handler: str, tries: int, delivery: str | None, code: int
) -> None:
    with giving_up_together(handler, delivery, KafkaError(code)) as worker:
        worker.brokers.refused_values = frozenset({b"4", b"5"})
        given_up = range(10) if handler == "refusing" else range(3, 6)
        patiently(lambda: worker.brokers.refusals >= 6, "two letters to be refused again and again")
        worker.brokers.refused_values = frozenset({b"5"})
        patiently(lambda: worker.brokers.refusals >= 12, "one letter to be refused again and again")
        assert worker.consumed == given_up[0]
        worker.brokers.letters_refused = None
        worker.until_consumed(10)
        assert sorted(worker.brokers.values(LETTERS)) == [b"%d" % offset for offset in given_up]
        assert sending_handlers.handled().count(3) == tries, "its tries, and no more"
        (counted,) = counts_of(*worker.made.counters.take())
        assert counted.dead_letters == {"attempts" if handler == "refusing" else "handler": len(given_up)}


@pytest.mark.parametrize("delivery", [None, *DELIVERIES])
@TOGETHER
def test_letters_of_several_records_that_are_too_large_halt_their_partition(
    handler: str, tries: int, delivery: str | None
) -> None:
    with giving_up_together(handler, delivery, TOO_LARGE) as worker:
        assert worker.halted().offset == (0 if handler == "refusing" else 3)
        assert sending_handlers.handled().count(3) == tries


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_record_that_killed_workers_waits_for_the_topic_of_its_letter_and_never_comes_to_the_handler(
    delivery: str,
) -> None:
    with WholeWorker(order(on_failure="dead_letter"), map(record, range(3)), delivery) as worker:
        worker.brokers.letters_refused = NO_SUCH_TOPIC
        worker.hand_out(poison="2 workers died", poison_deaths=2, poison_offset=1)
        patiently(lambda: worker.brokers.refusals >= 3, "the letter to be refused again and again")
        patiently(
            lambda: any("create it" in each.why for each in worker.made.table.parked()[0]),
            "the record to wait for the topic, and not to be sent at once",
        )
        worker.brokers.letters_refused = None
        worker.until_consumed(3)
        assert set(sending_handlers.handled()) == {0, 2}
        assert worker.brokers.values(LETTERS) == [b"1"]


def test_a_row_whose_output_is_refused_has_its_tries_where_rows_behind_it_are_done() -> None:
    batches = order("sending_alone", mode="batch", batch_max_records=10, max_attempts=3, on_failure="skip")
    with refusing(batches, 10, "at_least_once", 3) as worker:
        worker.until_consumed(10)
        assert sending_handlers.handled().count(3) == 3
