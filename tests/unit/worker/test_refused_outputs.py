"""What becomes of records whose outputs the brokers refuse: a whole worker, on brokers whose answers the test chooses.

Nothing is lost and nothing stays where it is, whatever waited, filled up or halted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError

from kunicorn.backoff import Backoff
from kunicorn.handler.config import Batching, HandlerConfig
from kunicorn.worker.produce import sender, transactions
from tests.fakes.counts import counts_of
from tests.fakes.whole_worker import LETTERS, WholeWorker, record
from tests.unit.worker import sending_handlers
from tests.waiting import wait_until

DELIVERIES = ["at_least_once", "transactions"]
patiently = partial(wait_until, within=60.0)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


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


LAST, BAD = 12, 5
"""So many records, and the one whose output is refused."""


class Situation(NamedTuple):
    """How records are handled, and what the partition is at when the refusal is known."""

    order: HandlerConfig
    most_records: int = 1000
    keys: int = LAST
    """So many, in turns."""
    hopeless: int | None = None
    """A record behind the refused one that the handler cannot handle."""


def situations(on_failure: str) -> Iterator[tuple[str, Situation]]:
    """Every one of them, by name."""
    batches = {"mode": "batch", "batch_max_records": 4}
    gathering = Batching(batch_max_ms=20, memory_bytes=10**6)
    handlings: dict[str, dict[str, Any]] = {
        "one": {},
        "one async": {"handler": "each_async"},
        "batches": {"handler": "batch", **batches},
        "fuller batches": {"handler": "batch", "batching": gathering, **batches},
        "several by key": {"ordering": "key", "concurrency": 4},
        "several in no order": {"handler": "each_async", "ordering": "none", "concurrency": 4},
    }
    for name, handling in handlings.items():
        whole = order(**{"on_failure": on_failure, **handling})
        yield name, Situation(whole)
        yield f"{name}, outbox full", Situation(whole, most_records=3)
        yield f"{name}, hopeless behind it", Situation(whole, hopeless=BAD + 3)
        if handling.get("ordering") == "key":
            yield f"{name}, of one key", Situation(whole, keys=1)
            yield f"{name}, of one key, outbox full", Situation(whole, keys=1, most_records=3)


Refusals = dict[str, KafkaError | None]

REFUSALS: Refusals = {
    "too large": KafkaError(KafkaError.MSG_SIZE_TOO_LARGE),
    "no such topic": KafkaError(KafkaError._UNKNOWN_TOPIC),
    "no right": KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
    "larger than the buffer": None,
}


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("situation", [pytest.param(each, id=name) for name, each in situations("dead_letter")])
def test_of_refused_outputs_nothing_is_lost_and_nothing_stays_where_it_is(
    situation: Situation, refusal: str, delivery: str
) -> None:
    with refusing(situation, refusal, delivery) as worker:
        worker.until_consumed(LAST)
        given_up = {int(value) for value in worker.brokers.values(LETTERS)}
        assert delivered(worker, delivery) | given_up == set(range(LAST))
        assert delivered(worker, delivery).isdisjoint({BAD, situation.hopeless})
        if situation.order.mode == "record" or situation.hopeless is None:
            assert given_up == {BAD, situation.hopeless} - {None}, "else it is the hopeless one's whole batch"


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("situation", [pytest.param(each, id=name) for name, each in situations("halt")])
def test_where_a_refused_output_halts_its_partition_all_is_there_once_the_topic_is_mended(
    situation: Situation, delivery: str
) -> None:
    with refusing(situation, "no such topic", delivery) as worker:
        halted = worker.halted()
        assert halted.offset <= BAD
        assert halted.offset == worker.place(delivery)
        assert delivered(worker, delivery) >= set(range(halted.offset))
        worker.brokers.refused.clear()
        sending_handlers.hopeless.clear()
        worker.hand_out(halted.offset, halted.done)
        worker.until_consumed(LAST)
        assert delivered(worker, delivery) == set(range(LAST))


@contextmanager
def refusing(situation: Situation, refusal: str, delivery: str) -> Iterator[WholeWorker]:
    """A worker that hears of the refusal when it has come as far as it can without an answer."""
    log = [record(offset, key=b"%d" % (offset % situation.keys)) for offset in range(LAST)]
    worker = WholeWorker(situation.order, log, delivery, situation.most_records)
    value, error = b"%d" % BAD, REFUSALS[refusal]
    if error is None:
        worker.brokers.too_large_for_client.add(value)
    else:
        worker.brokers.refused[value] = error
    if situation.hopeless is not None:
        sending_handlers.hopeless.add(situation.hopeless)
    worker.brokers.hold()
    with worker:
        worker.hand_out()
        worker.until_still(lambda: len(sending_handlers.calls))
        worker.brokers.answer()
        yield worker


def delivered(worker: WholeWorker, delivery: str) -> set[int]:
    """The records whose outputs are there; in transactions each once."""
    values = worker.brokers.values()
    if delivery == "transactions":
        assert len(values) == len(set(values))
    return {int(value) for value in values}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_refused_output_is_not_lost_while_records_of_its_partition_wait_for_a_fuller_batch(delivery: str) -> None:
    batches = order("batch", mode="batch", batching=Batching(batch_max_ms=10**6, memory_bytes=10**6))
    with WholeWorker(batches, map(record, range(6)), delivery) as worker:
        worker.brokers.refused[b"1"] = TOO_LARGE
        worker.brokers.hold()
        worker.hand_out()
        patiently(lambda: sending_handlers.calls == [[0, 1, 2, 3]], "the first batch")
        turns = worker.made.runner.progress
        patiently(lambda: worker.made.runner.progress > turns + 2, "the others to wait for a fuller batch")
        worker.brokers.answer()
        assert worker.halted().offset == 1
        assert all(call == sorted(call) for call in sending_handlers.calls), "each batch is in the partition's order"
        assert b"0" in worker.brokers.values()
        assert b"1" not in worker.brokers.values()


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_partition_does_not_halt_behind_an_output_that_is_refused_later(delivery: str) -> None:
    with WholeWorker(order(), map(record, range(6)), delivery) as worker:
        worker.brokers.refused[b"1"] = TOO_LARGE
        sending_handlers.hopeless.add(3)
        worker.brokers.hold()
        worker.hand_out()
        patiently(lambda: sending_handlers.handled().count(3) == 2, "the last try of record 3")
        turns = worker.made.runner.progress
        patiently(lambda: worker.made.runner.progress > turns + 2, "the partition to be given up")
        worker.brokers.answer()
        assert worker.halted().offset == worker.consumed == 1
        assert b"0" in worker.brokers.values()


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("handler", ["each", "each_async"])
def test_an_output_that_is_refused_while_the_outbox_is_full_holds_nothing_up(handler: str, delivery: str) -> None:
    several = {"ordering": "none", "concurrency": 4} if handler == "each_async" else {}
    skipping = order(handler, on_failure="skip", **several)
    with WholeWorker(skipping, map(record, range(60)), delivery, most_records=5) as worker:
        worker.brokers.refused[b"0"] = TOO_LARGE
        worker.brokers.hold()
        worker.hand_out()
        sending = worker.made.sending
        assert sending is not None
        patiently(lambda: sending.outbox.room() == 0, "the outbox to fill")
        worker.brokers.answer()
        worker.until_consumed(60)
        assert sorted(set(worker.brokers.values()), key=int) == [b"%d" % offset for offset in range(1, 60)]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_of_a_record_that_fails_behind_its_outputs_none_is_sent(ordering: str, delivery: str) -> None:
    skipping = order("slipping", on_failure="skip", ordering=ordering, concurrency=1 if ordering == "partition" else 4)
    with WholeWorker(skipping, map(record, range(5)), delivery) as worker:
        sending_handlers.hopeless.add(2)
        worker.hand_out()
        worker.until_consumed(5)
        assert sending_handlers.handled().count(2) == 2
        assert sorted(worker.brokers.values()) == [b"0", b"1", b"3", b"4"]


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
    with WholeWorker(order(on_failure="dead_letter", **more), map(record, range(6)), delivery) as worker:
        worker.brokers.letters_refused = REFUSALS["no such topic"]
        sending_handlers.hopeless.add(2)
        worker.hand_out()
        patiently(lambda: worker.made.table.parked()[1].get("dead_letter"), "the partition to wait for the topic")
        ((told,), _) = worker.made.table.parked()
        assert "offset 2 waits for the dead-letter topic 'letters'" in told.why
        assert worker.consumed == 2
        worker.brokers.letters_refused = None
        worker.until_consumed(6)
        assert worker.brokers.values(LETTERS) == [b"2"]
        assert delivered(worker, delivery) == {0, 1, 3, 4, 5}
        assert sending_handlers.handled().count(2) == 2, "its tries, and no more"
        (counted,) = counts_of(*worker.made.counters.take())
        assert sum(counted.dead_letters.values()) == 1


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_stop_while_a_dead_letter_waits_leaves_its_record_unfinished(delivery: str) -> None:
    with WholeWorker(order(on_failure="dead_letter"), map(record, range(6)), delivery) as worker:
        worker.brokers.letters_refused = REFUSALS["no such topic"]
        sending_handlers.hopeless.add(2)
        worker.hand_out()
        patiently(lambda: worker.made.table.parked()[1].get("dead_letter"), "the partition to wait for the topic")
        worker.made.hooks.stop([1])
        patiently(lambda: worker.ended, "its report")
        assert worker.consumed == 2


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_dead_letter_that_is_too_large_halts_its_partition(delivery: str) -> None:
    with WholeWorker(order(on_failure="dead_letter"), map(record, range(6)), delivery) as worker:
        worker.brokers.letters_refused = TOO_LARGE
        sending_handlers.hopeless.add(2)
        worker.hand_out()
        assert worker.halted().offset == 2
