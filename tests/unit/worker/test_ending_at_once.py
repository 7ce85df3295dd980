"""A worker that cannot go on ends, whatever has become of its stderr: nobody else would end it."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from kunicorn.errors import FENCED_STATUS, ExitCode
from kunicorn.observe import logs
from kunicorn.worker import control
from kunicorn.worker.produce.outbox import Limits, Outbox
from kunicorn.worker.produce.sender import Fenced, SenderThreads, end_worker
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import entry
from tests.waiting import wait_until

_DEADLINE = 30.0
_STDERR = 2
_THREAD_IS_GONE = 99
"""Status of a child whose thread ended without it."""


class _FencedSender:
    """Another worker has its transactional.id."""

    often = False

    def deliver(self, batch: object) -> None:
        raise Fenced("another producer has this id")

    def serve(self) -> None: ...


class _Broken(BaseException):
    """What no part of a worker expects."""


class _BrokenSender(_FencedSender):
    def deliver(self, batch: object) -> None:
        raise _Broken("a bug")


def sends_fenced() -> None:
    _send(_FencedSender())


def sends_broken() -> None:
    _send(_BrokenSender())


def _send(sender: Any) -> None:
    outbox = Outbox(Limits(1, 1 << 20, 0.0))
    outbox.put([entry(FakeOrigin(), 0)], 1, 1)
    SenderThreads(outbox, [sender])._senders[0].run()


def hangs() -> None:
    end_worker("the client hangs", FENCED_STATUS)


def hangs_without_utf8() -> None:
    end_worker("the client hangs \udcff", FENCED_STATUS)


def controls() -> None:
    control._die("its control thread broke", exception="Traceback")


def controls_unrendered() -> None:
    logs._output.render = _unrendered  # type: ignore[assignment]
    control._die("its control thread broke")


def _unrendered(*_: object) -> str:
    raise RecursionError("no line")


WAYS: dict[Callable[[], None], tuple[int, bytes]] = {
    sends_fenced: (FENCED_STATUS, b": another producer has this id\n"),
    sends_broken: (ExitCode.BUG, b"_Broken: a bug\n"),
    hangs: (FENCED_STATUS, b": the client hangs\n"),
    hangs_without_utf8: (FENCED_STATUS, b": the client hangs \\udcff\n"),
    controls: (ExitCode.BUG, b"its control thread broke"),
    controls_unrendered: (ExitCode.BUG, b""),
}
"""Of each: the status, and what is in the line."""


@contextmanager
def stderr_of(state: str) -> Iterator[tuple[int, int | None]]:
    """The end to write to, and the one to read from, unless nobody has it."""
    read, write = os.pipe()
    held = [read, write]
    try:
        if state.startswith("full"):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1)
            os.set_blocking(write, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(write, b"x" * 4096)
            os.set_blocking(write, state == "full")
        if state == "gone":
            os.close(held.pop(0))
        yield write, None if state == "gone" else read
    finally:
        for fd in held:
            os.close(fd)


def child(act: Callable[[], None], stderr: int, others: int | None) -> int:
    """A process whose main thread lives on, as a worker's does, while another one acts."""
    if pid := os.fork():
        return pid
    # Clients that other tests have left would be ended by it, whose threads this process does not have.
    gc.disable()
    try:
        if others is not None:
            os.close(others)  # Else a process would be the reader of its own stderr.
        os.dup2(stderr, _STDERR)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join()
    finally:
        os._exit(_THREAD_IS_GONE)


@pytest.mark.parametrize("state", ["read", "gone", "full", "full and non-blocking"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_ends_by_its_status_whether_or_not_its_last_line_can_be_written(way: Callable[[], None], state: str) -> None:
    status, line = WAYS[way]
    with stderr_of(state) as (write, read):
        pid = child(way, write, read)
        try:
            ended = wait_until(lambda: _ended(pid), f"the end of {way.__name__}", within=_DEADLINE)
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        assert ended == [status]
        if state == "read":
            os.set_blocking(cast(int, read), False)
            assert line in (os.read(cast(int, read), 1 << 16) if line else b"")


def _ended(pid: int) -> list[int]:
    """Its exit status; empty while it runs."""
    found, how = os.waitpid(pid, os.WNOHANG)
    return [os.waitstatus_to_exitcode(how)] if found else []
