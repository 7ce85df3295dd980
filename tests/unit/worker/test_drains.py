"""Each partition's drain budget is its own: its end interrupts nothing of the others that a worker is to let go of.
Where several calls take too long, as where a worker has no time left, every one is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from kunicorn.handler.config import HandlerConfig
from kunicorn.ipc.clock import now_ns
from kunicorn.ipc.messages import DrainOver, TimedOut
from kunicorn.testing import record
from kunicorn.worker.control import apply
from tests.unit.worker import long_handlers
from tests.unit.worker.long_handlers import begun, goes_on
from tests.unit.worker.whole import Worker
from tests.waiting import wait_until

MEANT, OTHER = 1, 2
"""Grants."""
BOTH = {("meant", 0), ("meant", 1)}
"""Records of one partition, each in a call of its own."""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    long_handlers.forget()
    yield
    goes_on.set()


def handler(name: str, topic: str) -> HandlerConfig:
    """`long` in the main thread, the others in threads or tasks."""
    place, long = f"{long_handlers.__name__}:{name}", name == "long"
    several: dict[str, Any] = {} if long else {"ordering": "none", "concurrency": 2}
    return HandlerConfig(
        place, "batch" if long else "record", {}, 100, 1, 1, 10, on_failure="skip", topics=[topic], **several
    )


@pytest.mark.parametrize(
    ("meant", "other"),
    [("wait", "wait"), ("wait", "stay_async"), ("wait", "long"), ("wait_async", "long"), ("long", "wait")],
)
def test_the_end_of_a_drain_budget_leaves_alone_what_is_in_hand_of_a_partition_that_has_none(
    meant: str, other: str
) -> None:
    """As of one that moves to another worker: that may take its time."""
    worker = Worker(handler(meant, "meant"), handler(other, "other"))

    def meanwhile() -> None:
        try:
            wait_until(lambda: {("meant", 0), ("other", 0)} <= set(begun), "both calls")
            worker.give_up(OTHER)
            worker.revoke(MEANT)
            wait_until(lambda: worker.stopped == {MEANT: 0}, "the one that is meant to be given up")
        finally:
            goes_on.set()

    worker.handle([record(b"v", topic="meant"), record(b"v", topic="other")], meanwhile=meanwhile)
    assert worker.stopped == {MEANT: 0, OTHER: 1}, "the other one was handled to its end"


@pytest.mark.parametrize("name", ["wait", "wait_async", "long"])
def test_the_end_of_a_whole_workers_drain_budget_interrupts_all_that_it_has(name: str) -> None:
    worker = Worker(handler(name, "meant"))

    def meanwhile() -> None:
        wait_until(lambda: (BOTH if name != "long" else {("meant", 0)}) <= set(begun), "the calls")
        worker.give_up(MEANT)
        apply(worker.made, DrainOver(None))
        wait_until(lambda: worker.stopped == {MEANT: 0}, "its report")

    worker.handle([record(b"v", topic="meant")] * 2, meanwhile=meanwhile)


@pytest.mark.parametrize("name", ["wait", "wait_async"])
def test_all_calls_that_take_too_long_are_interrupted_together(name: str) -> None:
    worker = Worker(handler(name, "meant"))

    def meanwhile() -> None:
        wait_until(lambda: set(begun) >= BOTH, "both calls")
        apply(worker.made, TimedOut(MEANT, 0, now_ns()))

    worker.handle([record(b"v", topic="meant")] * 2, meanwhile=meanwhile)


def test_a_signal_alone_interrupts_nothing() -> None:
    """It may come before the message is read, and be meant for another partition."""
    worker = Worker(handler("long", "other"))

    def meanwhile() -> None:
        wait_until(lambda: ("other", 0) in begun, "the call")
        worker.give_up(MEANT)
        signal.raise_signal(signal.SIGUSR1)
        goes_on.set()

    worker.handle([record(b"v", topic="other")], meanwhile=meanwhile)
    assert worker.stopped == {MEANT: 1}
