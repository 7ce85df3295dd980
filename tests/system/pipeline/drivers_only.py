"""A handler that needs what only the driver's machine has: Spark's Python processes cannot import it."""

from __future__ import annotations

import os

from kunicorn import Record

if "SPARK_REUSE_WORKER" in os.environ:  # Spark tells it to the processes of its tasks, and to no driver.
    raise ModuleNotFoundError("No module named 'pricing'", name="pricing")


def handle(record: Record) -> None:
    """Never called."""
