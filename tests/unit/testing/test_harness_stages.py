"""Kills, revokes and lost sessions under the testing kit: at the moment that a test names, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kunicorn import Done, DrainDeadline, Halt, Record, Send, Skip, TopicPartition
from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.testing import HandlerTest, Run, record

P0 = TopicPartition("test", 0)
SENDS = {"producing": {"delivery": "at_least_once"}}
WITH_KEY = [{"on": "key", "exists": True}]


@dataclass
class Order:
    """A model."""

    total: int


class Payments:
    """A table without any guard against the same payment twice, and the connection of the call under way."""

    path: Path
    connection: sqlite3.Connection


@pytest.fixture
def payments(tmp_path: Path) -> Callable[[], list[bytes]]:
    """All that was paid so far."""
    Payments.path = tmp_path / "payments.db"
    with closing(sqlite3.connect(Payments.path)) as made:
        made.execute("CREATE TABLE payments (value BLOB)")

    def paid() -> list[bytes]:
        with closing(sqlite3.connect(Payments.path)) as read:
            return [value for (value,) in read.execute("SELECT value FROM payments")]

    return paid


def pay_at_once(given: Record) -> None:
    with closing(sqlite3.connect(Payments.path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO payments VALUES (?)", (given.value,))


def in_a_transaction(call: Any) -> Iterator[None]:
    with closing(sqlite3.connect(Payments.path, isolation_level=None)) as Payments.connection:
        Payments.connection.execute("BEGIN")
        yield
        Payments.connection.execute("COMMIT")


def pay_in_it(given: Record) -> None:
    Payments.connection.execute("INSERT INTO payments VALUES (?)", (given.value,))


async def pay_in_it_async(given: Record) -> None:
    pay_in_it(given)


def pay_and_tell(given: Record) -> Iterator[Send]:
    yield Send("told", b"before")
    pay_at_once(given)


async def pay_and_tell_async(given: Record) -> AsyncIterator[Send]:
    yield Send("told", b"before")
    pay_at_once(given)


def skips_b(call: Any) -> Iterator[None]:
    if call.records[0].value == b"b":
        raise Skip("not ours")
    yield


def has_done_b(call: Any) -> Iterator[None]:
    if call.records[0].value == b"b":
        raise Done
    yield


@pytest.mark.parametrize("handler", [pay_in_it, pay_in_it_async])
def test_a_kill_comes_when_a_middleware_has_committed_what_the_handler_did(
    handler: Callable[..., Any], payments: Callable[[], list[bytes]]
) -> None:
    test = HandlerTest(handler, middlewares=[f"{__name__}:in_a_transaction"])
    killed = test.run(*map(record, "abc"), kill_at=1)
    assert (killed.outcomes, payments()) == (["done", "unhandled", "unhandled"], [b"a", b"b"])
    test.run(*killed.left)
    assert payments() == [b"a", b"b", b"b", b"c"]


@pytest.mark.parametrize("handler", [pay_and_tell, pay_and_tell_async])
def test_a_kill_comes_when_a_handler_that_yields_is_through(
    handler: Callable[..., Any], payments: Callable[[], list[bytes]]
) -> None:
    test = HandlerTest(handler, settings=SENDS)
    killed = test.run(*map(record, "ab"), kill_at=0)
    assert payments() == [b"a"]
    test.run(*killed.left)
    assert payments() == [b"a", b"a", b"b"]


def test_a_kill_comes_when_a_try_has_failed(payments: Callable[[], list[bytes]]) -> None:
    def handle(given: Record) -> None:
        pay_at_once(given)
        raise ValueError("too late")

    killed = HandlerTest(handle).run(record("a"), kill_at=0)
    assert [each.value for each in killed.handled_again] == [b"a"]
    assert payments() == [b"a"]


def test_a_test_that_is_ended_while_its_worker_hangs_takes_the_worker_along(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def hang(given: Record) -> None:
        told.write_text(str(os.getpid()))
        time.sleep(300)

    def over(number: int, frame: object) -> None:
        if told.exists() and told.read_text():
            signal.setitimer(signal.ITIMER_REAL, 0)  # Once: the next one would hit what ends the worker.
            raise TimeoutError("the test's time is over")

    before = signal.signal(signal.SIGALRM, over)
    limit, _ = signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(TimeoutError, match="the test's time is over"):
            HandlerTest(hang).run(record("a"), record("b"), kill_at=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, limit)  # This test's own.
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_killed_workers_halts_are_halts() -> None:
    def handle(given: Record) -> Any:
        return Halt("ask somebody") if given.value == b"halt" else None

    run = HandlerTest(handle).run(record("halt"), record("a"), record("b", partition=1), kill_at=2)
    assert run.outcomes == ["halted", "unhandled", "unhandled"]
    assert run.left == [each.record for each in run.records]


@pytest.mark.parametrize("stage", ["revoke_at", "lose_session_at", "kill_at"])
@pytest.mark.parametrize(
    ("second", "settings", "why"),
    [
        (record("b"), {"filters": WITH_KEY}, "filtered"),
        (record("nonsense", key="k"), {"value": "json", "on_undecodable": "skip"}, "skipped"),
        (record("b", key="k"), {"middlewares": [f"{__name__}:skips_b"]}, "skipped"),
    ],
    ids=["filtered", "undecodable", "skipped by a middleware"],
)
def test_a_stage_whose_record_never_comes_to_the_handler_fails_the_test(
    stage: str, second: Any, settings: dict[str, Any], why: str
) -> None:
    def handle(given: Record) -> None: ...

    first, third = record("1", key="k"), record("3", key="k")
    told = "never came to the handler" if stage == "kill_at" else rf"record 1 never came to the handler \({why}\)"
    with pytest.raises(RuntimeError, match=told):
        HandlerTest(handle, **settings).run(first, second, third, **{stage: 1})


def pay(given: Record) -> None: ...


async def pay_async(given: Record) -> None: ...


@pytest.mark.parametrize("handler", [pay, pay_async])
@pytest.mark.parametrize("stage", [{}, {"kill_at": 2}], ids=["a whole life", "one that is killed"])
def test_a_record_that_a_middleware_says_is_done_is_done_and_is_not_stored(
    handler: Callable[..., Any], stage: dict[str, int]
) -> None:
    run = HandlerTest(handler, middlewares=[f"{__name__}:has_done_b"]).run(*map(record, "abc"), **stage)
    assert run.outcomes[:2] == ["done", "done"]
    assert [each.attempts for each in run.records[:2]] == [1, 0]


@pytest.mark.parametrize("stage", [{}, {"kill_at": 0}], ids=["a whole life", "one that is killed"])
def test_a_worker_that_cannot_begin_says_why_whether_it_is_to_be_killed_or_not(stage: dict[str, int]) -> None:
    class Away:
        def setup(self, options: Any) -> None:
            raise ConnectionError("the database is away")

        def handle(self, given: Record) -> None: ...

    with pytest.raises(HandlerLoadError, match="setup raised ConnectionError: the database is away"):
        HandlerTest(Away).run(record("a"), **stage)
    with pytest.raises(ConfigError, match="one call runs at a time"):
        HandlerTest(lambda given: None, ordering="key").run(record("a"), **stage)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_hook_that_the_partition_waits_for_meets_the_drain_deadline_as_in_a_worker(kind: str) -> None:
    met: list[type[BaseException]] = []

    class Slow:
        def handle(self, given: Record) -> None: ...

        def on_revoked(self, partitions: Any) -> None:
            try:
                time.sleep(60)
            except BaseException as error:
                met.append(type(error))
                raise

    class SlowAsync:
        async def handle(self, given: Record) -> None: ...

        async def on_revoked(self, partitions: Any) -> None:
            try:
                await asyncio.sleep(60)
            except BaseException as error:
                met.append(type(error))
                raise

    handler = Slow if kind == "def" else SlowAsync
    run = HandlerTest(handler).run(record("a"), record("b"), revoke_at=0, drain_timeout_ms=50)
    assert met == [DrainDeadline if kind == "def" else asyncio.CancelledError]
    assert run.outcomes == ["done", "unhandled"]


def test_a_stage_behind_a_halt_fails_the_test() -> None:
    with pytest.raises(RuntimeError, match=r"record 1 never came to the handler \(unhandled\): the revoke did not"):
        HandlerTest(lambda given: Halt("no")).run(record("a"), record("b"), revoke_at=1)


def filtered_batch(**stage: int) -> Run:
    """A batch of models, of which a filter drops the second."""

    def handle(orders: list[Order]) -> None: ...

    given = [
        record(json={"total": 1}, key="k"),
        record(json={"total": 2}),
        record(json={"total": 3}, key="k"),
    ]
    test = HandlerTest(handle, mode="batch", batch_max_records=3, filters=WITH_KEY)
    return test.run(*given, record(json={"total": 4}, key="k"), **stage)


def test_a_record_that_a_filter_drops_from_a_batch_of_models_had_no_call() -> None:
    assert [each.attempts for each in filtered_batch().records] == [1, 0, 1, 1]


def test_stages_find_their_record_in_a_batch_of_models_behind_one_that_was_dropped() -> None:
    revoked = filtered_batch(revoke_at=2)
    assert (revoked.outcomes, revoked.committed) == (["done", "filtered", "done", "unhandled"], {P0: 3})
    killed = filtered_batch(kill_at=2)
    assert [each.offset for each in killed.handled_again] == [0, 2]
