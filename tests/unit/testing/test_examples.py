"""Handlers of examples/ and of the pages, interrupted while they wait for their database: the next try must find a
connection that works.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from examples import offsets_in_postgres, offsets_in_sqlite
from kunicorn import Record
from kunicorn.testing import HandlerTest, record
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
    handle = payments.handle

    def release() -> None:
        time.sleep(0.3)
        other.execute("ROLLBACK")

    def beside(handler: Any, given: Record) -> Any:
        if holder.ident is None:
            other.execute("BEGIN IMMEDIATE")
            holder.start()
        return handle(handler, given)

    monkeypatch.setattr(payments, "handle", beside)
    holder = threading.Thread(target=release)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        test = HandlerTest(payments, options={"path": path}, handler_timeout_ms=50, max_attempts=100)
        run = test.run(*(record(json={"id": number, "customer": "Ada", "total": 1}) for number in range(3)))
        holder.join()
    assert run.outcomes == ["done"] * 3
    assert {type(error) for error in run.errors} == {TimeoutError}


class Connection:
    """Of psycopg's what the handlers' `db` looks at."""

    def __init__(self) -> None:
        self.closed = False
        self.info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)

    def execute(self, query: str) -> None: ...

    def close(self) -> None:
        self.closed = True
        self.info.transaction_status = TransactionStatus.UNKNOWN


@pytest.fixture(params=["the example", "the recipe"])
def postgres(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A handler that connects when it needs to."""
    monkeypatch.setattr(psycopg, "connect", lambda dsn, **_: Connection())
    recipe = request.param == "the recipe"
    handler = class_of("cookbook/postgresql.md", "bulk_postgresql.py")() if recipe else offsets_in_postgres.Payments()
    handler.dsn, handler._db = "", None
    return handler


def test_a_connection_that_an_interruption_has_left_waiting_for_an_answer_is_not_used_again(postgres: Any) -> None:
    first = postgres.db
    assert postgres.db is first
    # psycopg goes on waiting for KeyboardInterrupt and SystemExit alone: it refuses whatever comes next.
    first.info.transaction_status = TransactionStatus.ACTIVE
    second = postgres.db
    assert (first.closed, second.closed, second is first) == (True, False, False)
    assert postgres.db is second
