"""Python's garbage collector in the processes that handle records: workers, and Spark's while a job's tasks run."""

from __future__ import annotations

import gc

_THRESHOLDS = (50_000, 20, 100)
"""Messages are tracked by the garbage collector: with its defaults it costs as much as the records themselves."""


def settle() -> None:
    """Leave alone what is loaded so far, and look through the rest seldom. Caller: the main thread, once all is loaded.

    Blocks for one whole collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
