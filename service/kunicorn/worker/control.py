"""The worker's control thread: serves the pipe, whatever the runner is doing.

It sleeps in `poll`, so that it takes nothing from the runner; it wakes for a message, or when the lease runs out.
"""

from __future__ import annotations

import os
import select
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn, assert_never

from kunicorn.errors import ExitCode, PeerError
from kunicorn.ipc.channel import BlockingChannel, SupervisorGone
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    CommitAs,
    Configure,
    Drain,
    Family,
    FrameError,
    Password,
    Ping,
    Pong,
    StartFetcher,
    StopFetcher,
    TimedOut,
    Token,
    ToWorker,
)
from kunicorn.worker.assembly import Assembled
from kunicorn.worker.linux import ResidentMemory
from kunicorn.worker.produce.sender import NOTHING_SENT
from kunicorn.worker.stats import Collecting

_LEASE_RECHECK_SECONDS = 0.25
_LONGEST_SLEEP_SECONDS = 5.0
"""After so long in silence the pipe is looked at: it may have been closed by the handler."""
_PUT_OFF_TOLD = 50
_STDERR = 2


class Control(threading.Thread):
    """Applies what the supervisor says, at once, and answers its pings."""

    def __init__(
        self,
        channel: BlockingChannel,
        ledger: Ledger,
        worker: Assembled,
        logs_dropped: Callable[[], int],
        collecting: Collecting,
    ) -> None:
        super().__init__(name="control", daemon=True)
        self._channel = channel
        self._ledger = ledger
        self._fetcher = worker.fetcher
        self._lifecycle = worker.lifecycle
        self._runner = worker.runner
        self._login = worker.login
        self._sending = worker.sending
        self._logs_dropped = logs_dropped
        self._memory = ResidentMemory()
        self._collecting = collecting

    def run(self) -> None:
        """Serve until the process ends. The pipe's end is the worker's, even with the runner stuck: no orphans."""
        try:
            while True:
                message = self._channel.receive(self._patience())
                if message is not None:
                    self._react(message)
        except SupervisorGone:
            os._exit(ExitCode.BUG)
        except PeerError as error:
            _die(f"worker {os.getpid()}: the supervisor sent nonsense, exiting: {error}\n")
        except BaseException:
            _die(f"worker {os.getpid()}: the control thread broke, exiting\n{traceback.format_exc()}")

    def say_last(self) -> None:
        """Report what was counted since the last Ping. Caller: the runner's thread, when everything is drained."""
        self._channel.send(self._evidence(0, self._collecting.last()))

    def _patience(self) -> float:
        """Seconds until the lease runs out; it is usually extended long before, and nobody is woken for that."""
        left = self._ledger.lease_ns - now_ns()
        if left > 0:
            return min(left / NANOSECONDS, _LONGEST_SLEEP_SECONDS)
        self._fetcher.interrupt()
        return _LEASE_RECHECK_SECONDS

    def _react(self, message: ToWorker) -> None:
        match message:
            case StartFetcher(partitions=partitions):
                self._lifecycle.start(partitions)
            case StopFetcher(grants=grants, lost=lost):
                self._lifecycle.stop(grants, lost=lost)
            case CommitAs():
                if self._sending is not None:
                    self._sending.identities.given(message)
            case TimedOut(grant=grant, offset=offset, overdue_ns=overdue_ns):
                self._runner.time_out(grant, offset, overdue_ns)
            case Ping(sequence=sequence):
                self._channel.send(self._evidence(sequence, self._collecting.news()))
            case Drain():
                self._lifecycle.drain()
            case Token() | Password():
                self._login.renew(message)
            case Configure():
                raise FrameError("a second Configure")
            case _:
                assert_never(message)

    def _evidence(self, sequence: int, families: tuple[list[Family] | None, list[Family] | None]) -> Pong:
        handled, deltas = self._fetcher.measured()
        parked, parked_count = self._fetcher.parked()
        put_off = self._lifecycle.parked()
        sent = self._sending.tally.take() if self._sending is not None else NOTHING_SENT
        return Pong(
            sequence=sequence,
            runner=self._runner.progress,
            handled=handled,
            in_hand=self._fetcher.in_hand(now_ns()),
            rss_bytes=self._memory.bytes(),
            paused_by_lease=self._runner.paused_by_lease,
            deltas=deltas,
            logs_dropped=self._logs_dropped(),
            parked=parked + put_off[:_PUT_OFF_TOLD],
            parked_count={**parked_count, **({"handler": len(put_off)} if put_off else {})},
            families=families[0],
            client_families=families[1],
            hook_failures=self._lifecycle.failures(),
            in_flight=self._fetcher.in_flight(),
            sent=sent.sent,
            committed_seconds=sent.committed_seconds,
            aborted=sent.aborted,
        )


def _die(text: str) -> NoReturn:
    """Exit now. The text is written only where that cannot block: a full stderr must not make an orphan."""
    poll = select.poll()
    poll.register(_STDERR, select.POLLOUT)
    if poll.poll(0):
        os.write(_STDERR, text.encode()[-select.PIPE_BUF :])
    os._exit(ExitCode.BUG)
