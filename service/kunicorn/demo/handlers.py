"""Handlers that only write the audit and take their time; for the demo and for tests.

They read their settings from the environment: `KUNICORN_AUDIT_DIR` (required), `KUNICORN_AUDIT_MEMBER` (whose worker
it is, default "member"), `KUNICORN_HANDLER_MS` (a call takes 0 to so many milliseconds at random, default 0).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kunicorn.demo.audit import AuditedRecord, AuditLog


@cache
def _audit() -> AuditLog:
    """Threads that come first together may each get one of their own: a call keeps the one that it began with."""
    return AuditLog(Path(os.environ["KUNICORN_AUDIT_DIR"]), os.environ.get("KUNICORN_AUDIT_MEMBER", "member"))


@cache
def _most_seconds() -> float:
    return float(os.environ.get("KUNICORN_HANDLER_MS", "0")) / 1000


def handle(record: AuditedRecord) -> None:
    """Handle one record."""
    handle_batch([record])


def handle_batch(records: Sequence[AuditedRecord]) -> None:
    """Handle a batch; it takes as long as one record."""
    audit = _audit()
    audit.begin(records)
    if longest := _most_seconds():
        time.sleep(random.uniform(0, longest))
    audit.end(records)


async def handle_async(record: AuditedRecord) -> None:
    """Handle one record as a coroutine."""
    audit = _audit()
    audit.begin([record])
    await asyncio.sleep(random.uniform(0, _most_seconds()))
    audit.end([record])
