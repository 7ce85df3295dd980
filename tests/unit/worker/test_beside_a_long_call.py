"""What ends in a thread or a task is out of hand at once, however long the main thread is in another handler's call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kunicorn.handler.config import CircuitBreaking, HandlerConfig, RateLimiting
from kunicorn.ipc.channel import BlockingChannel
from kunicorn.ipc.messages import ToWorker
from kunicorn.testing import record
from kunicorn.worker.control import Control
from kunicorn.worker.stats import Collecting
from tests.unit.worker import long_handlers
from tests.unit.worker.long_handlers import begun, goes_on, held
from tests.unit.worker.whole import Worker
from tests.waiting import wait_until

AT_A_TIME = 2
BREAKER = CircuitBreaking(
    ["builtins.ValueError"], failure_share=0.5, window_ms=60_000, min_calls=4, open_ms=1, probes=1
)


@pytest.fixture(autouse=True)
def _forget() -> None:
    long_handlers.forget()


def handler(name: str, topic: str, **more: Any) -> HandlerConfig:
    place = f"{long_handlers.__name__}:{name}"
    return HandlerConfig(
        place, more.pop("mode", "record"), {}, 100, 1, 1, 10, on_failure="skip", topics=[topic], **more
    )


def beside(name: str, **more: Any) -> Worker:
    """A worker whose main thread is in a batch handler's call, and that has this one beside it."""
    several = {"ordering": "none", "concurrency": AT_A_TIME, **more}
    return Worker(handler(name, "beside", **several), handler("long", "long", mode="batch"))


def in_hand(worker: Worker) -> int:
    """Records of the one beside it, as the supervisor sees it."""
    return worker.ledger.read(1, 1).hand_count


def handle(worker: Worker, count: int, watch: Callable[[], None]) -> None:
    """So many records beside the long call, which lasts as long as `watch` does."""
    failed: list[AssertionError] = []

    def meanwhile() -> None:
        try:
            watch()
        except AssertionError as error:
            failed.append(error)
        finally:
            goes_on.set()

    given = [*(record(b"v", topic="beside") for _ in range(count)), record(b"v", topic="long")]
    worker.handle(given, meanwhile=meanwhile)
    assert not failed


def all_begun(records: int) -> bool:
    return {("long", 0), *(("beside", offset) for offset in range(records))} <= set(begun)


@pytest.mark.parametrize("name", ["wait", "wait_async"])
def test_a_record_that_is_timed_out_is_out_of_hand_while_another_handler_has_the_main_thread(name: str) -> None:
    worker = beside(name)

    def watch() -> None:
        wait_until(lambda: all_begun(1), "both calls")
        worker.time_out(1, 0)
        wait_until(lambda: in_hand(worker) == 0, "the one that is timed out to be out of hand")

    handle(worker, 1, watch)


@pytest.mark.parametrize("name", ["wait", "wait_async", "fail", "fail_async"])
def test_a_partition_is_let_go_of_at_its_drain_deadline_while_another_handler_has_the_main_thread(name: str) -> None:
    worker = beside(name)

    def watch() -> None:
        wait_until(lambda: all_begun(1), "both calls")
        if name.startswith("fail"):
            wait_until(lambda: in_hand(worker) == 0, "the failure")
        worker.revoke(1)
        wait_until(lambda: worker.stopped == {1: 0}, "its report")

    handle(worker, 1, watch)


def test_a_circuit_breaker_is_told_of_failures_before_their_slots_begin_what_it_is_to_spare() -> None:
    worker = beside("fail", circuit_breaker=BREAKER)

    def watch() -> None:
        wait_until(lambda: all_begun(AT_A_TIME) and in_hand(worker) == 0, "the first to fail")
        assert not all_begun(AT_A_TIME + 1)

    handle(worker, 2 * AT_A_TIME, watch)


@pytest.mark.parametrize("name", ["hold", "hold_async"])
@pytest.mark.parametrize("ends", [True, False], ids=["calls that end", "calls that last"])
def test_what_waits_for_a_rate_limit_begins_in_its_time_while_another_handler_has_the_main_thread(
    name: str, ends: bool
) -> None:
    worker = beside(name, concurrency=10, rate_limit=RateLimiting(20.0, 1.0, "worker", "records"))

    def watch() -> None:
        try:
            wait_until(lambda: ("long", 0) in begun, "the long call", within=30)
            if ends:
                held.set()
            wait_until(lambda: all_begun(10), "all to begin, one after the other", within=30)
        finally:
            held.set()

    handle(worker, 10, watch)


class Silence(BlockingChannel):
    """A supervisor that says nothing."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def receive(self, timeout: float | None = None) -> ToWorker | None:
        """Nothing, after that time."""
        self._over.wait(timeout)
        return None


@pytest.mark.parametrize("name", ["hold", "hold_async"])
def test_records_go_on_when_the_lease_is_there_again_while_another_handler_has_the_main_thread(name: str) -> None:
    worker = beside(name)

    def watch() -> None:
        try:
            wait_until(lambda: all_begun(AT_A_TIME), "all slots to be taken", within=30)
            lease, worker.ledger.lease_ns = worker.ledger.lease_ns, 1
            Control(Silence(), worker.ledger, worker.made, lambda: 0, Collecting(None)).start()
            held.set()
            wait_until(lambda: in_hand(worker) == 0, "the calls to end", within=30)
            assert not all_begun(AT_A_TIME + 1)
            worker.ledger.lease_ns = lease
            wait_until(lambda: all_begun(3 * AT_A_TIME), "the rest", within=30)
        finally:
            held.set()

    handle(worker, 3 * AT_A_TIME, watch)
