"""Handlers of examples/ and of the pages, interrupted while they wait for their database: the next try must find a
connection that works.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message
from psycopg.pq import TransactionStatus

from examples import offsets_in_postgres, offsets_in_sqlite
from kunicorn import DrainDeadline, HandlerTimeout, Record
from kunicorn.testing import HandlerTest, record
from kunicorn.testing.stage import TimeOuts
from tests import markdown

DOCS = markdown.ROOT / "docs"


def class_of(page: str, file: str) -> Any:
    """The class `Orders` of a file that the page has."""
    names: dict[str, Any] = {}
    exec(markdown.files(DOCS / page)[file], names)
    return names["Orders"]


@pytest.fixture(params=["the example", "the tutorial"])
def payments(request: pytest.FixtureRequest) -> Any:
    if request.param == "the example":
        return offsets_in_sqlite.Payments
    return class_of("tutorial/3-database.md", "shop/handlers.py")


def test_a_call_that_is_interrupted_while_it_waits_for_the_files_lock_leaves_no_transaction_open(
    payments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "payments.db")
    handle, look, timed_out = payments.handle, TimeOuts._look, threading.Event()

    def looked(watch: TimeOuts, *at: Any) -> None:
        look(watch, *at)
        if any(due == math.inf for _, due in watch._seen.values()):
            timed_out.set()

    def release() -> None:
        assert timed_out.wait(60)
        other.execute("ROLLBACK")

    def beside(handler: Any, given: Record) -> Any:
        if holder.ident is None:
            other.execute("BEGIN IMMEDIATE")
            holder.start()
        return handle(handler, given)

    monkeypatch.setattr(payments, "handle", beside)
    monkeypatch.setattr(TimeOuts, "_look", looked)
    holder = threading.Thread(target=release)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        test = HandlerTest(payments, options={"path": path}, handler_timeout_ms=50, max_attempts=100)
        run = test.run(*(record(json={"id": number, "customer": "Ada", "total": 1}) for number in range(3)))
        holder.join()
    assert run.outcomes == ["done"] * 3
    assert {type(error) for error in run.errors} == {TimeoutError}


class Connection:
    """Of psycopg's what the handlers need up to the query that is interrupted."""

    def __init__(self) -> None:
        self.closed = False
        self.info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)
        self.interruption: BaseException | None = None

    def execute(self, query: str, parameters: object = ()) -> None:
        if self.interruption is not None:
            raise self.interruption

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def cursor(self) -> Any:
        self.execute("COPY")

    def close(self) -> None:
        self.closed = True
        self.info.transaction_status = TransactionStatus.UNKNOWN


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg, "connect", lambda dsn, **_: Connection())


def example() -> tuple[Any, Any]:
    """The handler, and what it is called with."""
    return offsets_in_postgres.Payments(), Record.of(Message(topic="orders", partition=0, offset=0, value=b"1"))


def recipe() -> tuple[Any, Any]:
    batch = [Record.of(Message(topic="orders", partition=0, offset=0, value=b'{"id": 1, "customer": "", "total": 1}'))]
    return class_of("cookbook/postgresql.md", "bulk_postgresql.py")(), batch


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("made", [example, recipe])
@pytest.mark.parametrize("interruption", [DrainDeadline, HandlerTimeout])
def test_a_query_that_is_interrupted_leaves_no_connection_and_no_transaction(
    made: Callable[[], tuple[Any, Any]], interruption: type[BaseException]
) -> None:
    handler, given = made()
    handler.dsn, handler.group, handler._db = "", "shop", None
    first = handler.db
    first.interruption = interruption()
    with pytest.raises(interruption):
        handler.handle(given)
    assert first.closed
    assert not handler.db.closed


@pytest.mark.usefixtures("connected")
def test_a_connection_that_a_hook_has_left_waiting_for_an_answer_is_not_used_again() -> None:
    handler, _ = example()
    handler.dsn, handler._db = "", None
    first = handler.db
    assert handler.db is first
    # psycopg goes on waiting for KeyboardInterrupt and SystemExit alone: it refuses whatever comes next.
    first.info.transaction_status = TransactionStatus.ACTIVE
    second = handler.db
    assert (first.closed, second.closed, handler.db is second) == (True, False, True)
