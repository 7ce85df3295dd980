"""A client's call that never ends is told from one that is slow, and from a process that stood still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kunicorn.ipc.messages import CommitAs, CommitWanted, FromWorker
from kunicorn.worker.produce import transactions
from kunicorn.worker.produce.outbox import Limits, Outbox, Step, TransactionOrder
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.produce.transactions import CallWatch, GroupMetadata, Shared, Transactions
from kunicorn.worker.stats import Counters
from tests.fakes.origins import FakeOrigin
from tests.fakes.transactional_brokers import TransactionalBrokers, TransactionalProducer
from tests.unit.worker.produce.output_batches import entry
from tests.waiting import wait_until

TIMEOUT = 15.0
LONG = int(TIMEOUT)


def test_a_call_has_lasted_for_as_long_as_it_was_looked_at() -> None:
    watch = CallWatch()
    assert watch.look(0.0) is None
    watch.begun(Step.OFFSETS)
    assert [watch.look(float(now)) for now in (7, 8, 9)] == [
        (Step.OFFSETS, 0.0),
        (Step.OFFSETS, 1.0),
        (Step.OFFSETS, 2.0),
    ]
    watch.ended()
    assert watch.look(10.0) is None


def test_the_same_step_once_more_is_another_call() -> None:
    watch = CallWatch()
    for now in range(50):
        watch.begun(Step.OFFSETS)
        assert watch.look(float(now)) == (Step.OFFSETS, 0.0)
        assert watch.look(now + 0.5) == (Step.OFFSETS, 0.5)


def test_a_process_that_stood_still_has_no_call_that_hangs() -> None:
    watch = CallWatch()
    watch.begun(Step.COMMIT)
    watch.look(0.0)
    assert watch.look(3_600.0) == (Step.COMMIT, transactions._LOOK_SECONDS)


class _Deaf(TransactionalProducer):
    """Its call does not end before the test does."""

    def __init__(self, brokers: TransactionalBrokers, over: threading.Event) -> None:
        super().__init__(brokers)
        self._over = over

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        self._over.wait()


class _Table:
    def places(self, *_: object) -> list[Any]:
        return []

    def delivered(self, reached: object) -> None: ...

    def rewind(self, refusals: object) -> None: ...


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_of_offsets_that_are_never_sent_it_says_so_when_the_brokers_may_end_the_transaction(
    over: threading.Event,
) -> None:
    outbox, group_metadata = Outbox(Limits(1, 1 << 20, 0.0)), GroupMetadata()

    def hear(message: FromWorker) -> None:
        if isinstance(message, CommitWanted):
            group_metadata.answered(CommitAs(message.number, 1, "m", None))

    shared = Shared(
        "group",
        outbox,
        cast(Any, _Table()),
        SendTelemetry(Counters()),
        group_metadata,
        TransactionOrder(),
        hear,
        TIMEOUT,
        RequestSizes({}),
    )
    sender = Transactions(cast(Any, _Deaf(TransactionalBrokers(), over)), shared)
    assert sender.hangs(0.0) is None
    outbox.put([entry(FakeOrigin(), 0)], 1, 1)
    batch = outbox.take()
    assert batch is not None
    thread = threading.Thread(target=sender.deliver, args=(batch,), daemon=True)
    thread.start()
    wait_until(lambda: sender._watch.look(0.0) == (Step.OFFSETS, 0.0), "the call")
    told = [sender.hangs(float(now)) for now in range(1, LONG + 1)]
    assert told[:-1] == [None] * (LONG - 1)
    assert told[-1] is not None
    assert f"for the step 'offsets' of a transaction, has not ended for {LONG} s" in told[-1]
    over.set()
    thread.join(60)
    assert sender.hangs(LONG + 1.0) is None
