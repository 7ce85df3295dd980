"""How far a round is while Spark works on it: its tasks, asked of Spark by a thread of the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of the round underway, by what became of them so far."""

    all: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0
    """Tries, not tasks: each of these is made again, up to four times."""
    offsets: int = 0
    """Handled in this round so far, as far as the driver has heard."""


def tasks_of(spark: SparkSession) -> Tasks:
    """Those that Spark has at work now. Asks the JVM. Raises what py4j does when that goes."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None]
    return Tasks(
        sum(stage.numTasks for stage in stages),
        sum(stage.numCompletedTasks for stage in stages),
        sum(stage.numActiveTasks for stage in stages),
        sum(stage.numFailedTasks for stage in stages),
    )


@contextmanager
def watched(ask: Callable[[], Tasks], show: Callable[[Tasks], None], every: float = _LOOK_SECONDS) -> Iterator[None]:
    """Show the tasks every so many seconds while the block runs, and none behind it. A failure to ask ends the watch:
    the round itself tells what is wrong."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(every):
            try:
                found = ask()
            except Exception:
                return
            if not over.is_set():
                show(found)

    thread = threading.Thread(target=look, name="underway", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        show(Tasks())
