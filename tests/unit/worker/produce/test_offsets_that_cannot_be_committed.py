"""In transactions the offsets of all partitions of a worker are committed together: what becomes of the others where
those of one are refused, and what each offset says of its topic.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kunicorn.handler.config import HandlerConfig
from kunicorn.ipc import bitmap
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart
from kunicorn.positions import NO_EPOCH
from kunicorn.worker import buffering
from tests.fakes.whole_worker import TOPIC, WholeWorker, record
from tests.unit.worker import sending_handlers
from tests.waiting import wait_until

CLOSED = "closed"
RECORDS = 600


@pytest.fixture(autouse=True)
def nothing_of_other_tests() -> Iterator[None]:
    sending_handlers.forget()
    yield
    sending_handlers.forget()


def handler() -> HandlerConfig:
    return HandlerConfig(f"{sending_handlers.__name__}:each", "record", {}, 1, 3, 1, 1, on_failure="halt", topics=[])


def test_a_topic_that_may_be_read_no_more_holds_up_no_other_partition_of_its_worker() -> None:
    log = [record(offset, topic=topic) for offset in range(RECORDS) for topic in (TOPIC, CLOSED)]
    with WholeWorker(handler(), log, "transactions", most_records=50) as worker:
        starts = [FetcherStart(n, n, topic, 0, 0, NO_EPOCH) for n, topic in ((1, TOPIC), (2, CLOSED))]
        worker.brokers.hold()
        worker.made.hooks.start(starts)
        wait_until(lambda: worker.ledger.read(2, 2).hand_offset > 0, "records of it to be handled")
        worker.brokers.denied.add(CLOSED)
        worker.brokers.answer()
        wait_until(lambda: worker.ledger.read(1, 1).consumed.offset == RECORDS, "the others to be committed")
        (failed,) = wait_until(lambda: [r for r in worker.reports if isinstance(r, Failed)], "its report")
    assert (failed.grant, failed.kind) == (2, FailureKind.DENIED)
    committed = worker.brokers.offsets.get((CLOSED, 0))
    assert failed.offset == (0 if committed is None else committed.offset), "what is not committed comes again"


def test_a_topic_that_may_be_read_no_more_holds_up_no_other_while_the_client_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As much is queued as may be, and goes on only when a transaction is committed: the client never says so."""
    monkeypatch.setattr(buffering, "_LOOK_NS", 0)
    log = [record(offset, topic=topic) for offset in range(RECORDS) for topic in (TOPIC, CLOSED)]
    with WholeWorker(handler(), log, "transactions", most_records=20, ahead_bytes=50_000) as worker:
        starts = [FetcherStart(n, n, topic, 0, 0, NO_EPOCH) for n, topic in ((1, TOPIC), (2, CLOSED))]
        worker.brokers.hold()
        worker.made.hooks.start(starts)
        assert worker.made.sending is not None
        outbox = worker.made.sending.outbox
        wait_until(lambda: worker.made.table.full and not outbox.room(), "all that may be kept")
        worker.brokers.denied.add(CLOSED)
        worker.brokers.answer()
        (failed,) = wait_until(lambda: [r for r in worker.reports if isinstance(r, Failed)], "its report")
        wait_until(lambda: worker.ledger.read(1, 1).consumed.offset == RECORDS, "the others to be committed")
    assert (failed.grant, failed.kind) == (2, FailureKind.DENIED)
    assert "READ" in failed.error


def test_each_offset_in_a_transaction_says_of_which_topic_of_which_cluster_it_is() -> None:
    with WholeWorker(handler(), map(record, range(10)), "transactions") as worker:
        worker.hand_out(topic_id="the-topic", began_with=3)
        worker.until_consumed(10)
    place = worker.brokers.offsets[TOPIC, 0]
    assert place.metadata == f"kunicorn:partitions:3 {bitmap.topic_word(10, 'cluster', 'the-topic')}"
