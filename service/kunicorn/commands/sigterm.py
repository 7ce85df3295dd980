"""What SIGTERM does to commands other than `run`.

To PID 1, which the images' commands are, no signal is delivered that has no handler: a pod that is told to end while
its brokers or executors are awaited would stay for its whole grace period. Within its loop a job has a handler of its
own (`kunicorn.pipeline.range_job`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from kunicorn.errors import ExitCode

_JVM_SECONDS = 10.0
"""For the JVM to give its executors back: less than whoever sent the signal waits before SIGKILL."""


def ending_at_sigterm() -> contextlib.AbstractContextManager[None]:
    """Have SIGTERM end the process at once with exit code 6 while the block runs: a job that has no range underway,
    before its loop and behind it, `reconcile` and `compact`.
    """
    return _handled(_end)


def sigterm_interrupts() -> contextlib.AbstractContextManager[None]:
    """Have SIGTERM raise `KeyboardInterrupt` while the block runs, as Ctrl-C does: what is cleared up behind the one is
    behind the other.
    """
    return _handled(_interrupt)


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Where the signal does not have its default effect, and in another thread than the main one, it belongs to whoever
    runs this command within a process of theirs: it is left alone.
    """
    other_thread = threading.current_thread() is not threading.main_thread()
    if other_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handler of the signal. Not by SIGINT, which is ignored in a shell's background."""
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    """Handler of the signal."""
    # Raise nothing: amid a question to the JVM the next one, such as that it stop, would wait for this one's answer,
    # for ever if no executor comes, and take it for its own.
    with contextlib.suppress(OSError):  # Nobody may read it any more.
        os.write(2, b"kunicorn: ended by SIGTERM; start it again for what is left\n")
    _end_jvm()
    os._exit(ExitCode.NOT_ALL_COMMITTED)


def _end_jvm() -> None:
    """End the JVM that this process has started, if any. When PID 1 exits it would be killed, and its executors, also
    those that are yet to come, be left behind.
    """
    # No import: the signal may come amid one.
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    if process is None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_JVM_SECONDS)
