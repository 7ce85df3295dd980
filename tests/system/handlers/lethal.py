"""The demo's handler, but a record whose value is `POISON` takes its process along, as a segfault would."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from kunicorn import Record
from kunicorn.commands.demo.audit import AuditLog
from tests.system.handlers import audited

POISON = b"poison"


@cache
def audit_log() -> AuditLog:
    """Of this process."""
    return AuditLog(Path(os.environ["KUNICORN_AUDIT_DIR"]), os.environ["KUNICORN_AUDIT_MEMBER"])


def handle(record: Record) -> None:
    """Handle one record, or die of it with the record in hand."""
    if record.value == POISON:
        audit_log().begin([record])
        os._exit(9)
    audited.handle(record)


async def handle_async(record: Record) -> None:
    """Likewise, beside others."""
    if record.value == POISON:
        audit_log().begin([record])
        os._exit(9)
    await audited.handle_async(record)
