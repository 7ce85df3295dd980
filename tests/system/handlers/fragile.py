"""A handler whose setup fails as soon as the mark `refuse setup` is there, as with a database that is gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kunicorn import Record
from tests.system.handlers import audited


def handle(record: Record) -> None:
    """Handle one record."""
    audited.handle(record)


def setup(options: dict[str, Any]) -> None:
    """Caller: the worker, once, before the first record."""
    if Path(os.environ["MARKS_DIRECTORY"], "refuse setup").exists():
        raise ConnectionRefusedError("no database")


handle.setup = setup  # type: ignore[attr-defined]
