"""End of a Spark Python process whose handler cannot be interrupted: one that waits in C code or in a system call, or
swallows every exception.

No supervisor looks at a task from outside. So a thread of its process does: once an interruption was without effect for
`handler_timeout_ms` once more, `LEAST_SECONDS` at least, it ends the process. The file of what is in hand stays behind
and names the record, and Spark tries the task again. A handler that waits in C code which keeps the interpreter's lock
stops this thread, too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator

from kunicorn.errors import ExitCode
from kunicorn.pipeline.tasks.beside import beside

log = logging.getLogger("kunicorn.pipeline")

LEAST_SECONDS = 5.0
_MOST_BETWEEN_LOOKS = 0.5


@contextlib.contextmanager
def watched(stuck: Callable[[float], str | None], timeout_ms: int | None) -> Iterator[None]:
    """End the process if `stuck`, called in a thread while the block runs, names the same record twice in a row: one on
    which an interruption was without effect for more than the seconds that it is given. Without a time-out nothing is
    interrupted, and nothing watched. Caller: a task's main thread.
    """
    if timeout_ms is None:
        yield
        return
    seconds = max(timeout_ms / 1000, LEAST_SECONDS)

    def watch(over: threading.Event) -> None:
        before: str | None = None
        while not over.wait(min(_MOST_BETWEEN_LOOKS, seconds / 10)):
            now = stuck(seconds)
            if now is not None and now == before:
                end_process(
                    f"{now} is in hand for longer than handler_timeout_ms = {timeout_ms}, and was not interrupted"
                )
                return
            before = now

    with beside(watch, "watchdog"):
        yield


def end_process(text: str) -> None:
    """End this process, if it is a Python process of Spark's; `text` says why. Everything else that it has in hand goes
    with it. A driver's process goes on, and the log says so: nobody would try its task again.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:
        log.error(f"{text}; its process goes on, as Spark did not start it")
        return
    log.error(f"{text}; its process ends, and Spark tries the task again")
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
    os._exit(ExitCode.BUG)
