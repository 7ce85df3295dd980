"""What a worker says of its lease: that it ended, and that it is there again; nothing before the first one."""

from __future__ import annotations

from functools import partial

import pytest

from kunicorn.handler.config import HandlerConfig
from tests.fakes.whole_worker import WholeWorker, record
from tests.unit.worker import sending_handlers
from tests.waiting import wait_until

patiently = partial(wait_until, within=60.0)


@pytest.fixture
def worker() -> WholeWorker:
    sending_handlers.forget()
    order = HandlerConfig(f"{sending_handlers.__name__}:each", "record", {}, 1, 1, 1, 1)
    return WholeWorker(order, map(record, range(20)))


def test_before_its_first_lease_a_worker_starts_nothing_and_has_no_news_of_membership(
    worker: WholeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lease, worker.ledger.lease_ns = worker.ledger.lease_ns, 0
    with worker:
        worker.hand_out()
        patiently(lambda: worker.made.runner.progress > 3, "some turns of the loop")
        assert worker.consumed == 0
        worker.ledger.lease_ns = lease
        worker.until_consumed(20)
    assert "membership" not in caplog.text


def test_a_lease_that_ended_is_told_once_and_so_is_its_return(
    worker: WholeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with worker:
        lease, worker.ledger.lease_ns = worker.ledger.lease_ns, 1
        worker.hand_out()
        patiently(lambda: worker.made.runner.paused_by_lease, "the pause")
        worker.ledger.lease_ns = lease
        worker.until_consumed(20)
    told = [entry.message for entry in caplog.records if "membership" in entry.message]
    assert [line.partition(":")[0] for line in told] == [
        "membership is not certain any more",
        "membership is certain again",
    ]
