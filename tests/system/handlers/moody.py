"""A handler that does what the record says: `ok`, `poison` (raises), `hang` (waits until it is let go)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def handle(record: Any) -> None:
    """Handle one record."""
    if record.value == b"poison":
        raise ValueError("cannot be handled")
    while record.value == b"hang" and not (Path(os.environ["MARKS_DIRECTORY"]) / "go on").exists():
        time.sleep(0.05)
