"""The worker's control thread: serves the pipe, whatever the runner is doing.

It sleeps in `poll`, so that it takes nothing from the runner; it wakes for a message, when the lease runs out, and to
see whether that is there again.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, assert_never

from kunicorn.errors import ExitCode, PeerError
from kunicorn.ipc.channel import BlockingChannel, SupervisorGone
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    CommitAs,
    Configure,
    Drain,
    DrainOver,
    EndTransactions,
    Family,
    FrameError,
    Password,
    Ping,
    Pong,
    Rate,
    Rates,
    RateUse,
    StartFetcher,
    StopFetcher,
    TimedOut,
    Token,
    ToWorker,
)
from kunicorn.observe import logs
from kunicorn.worker.assembly import Assembled
from kunicorn.worker.linux import ResidentMemory, exit_now
from kunicorn.worker.stats import Collecting

_LEASE_RECHECK_SECONDS = 0.25
_LONGEST_SLEEP_SECONDS = 5.0
"""After so long in silence the pipe is looked at: it may have been closed by the handler."""
_PUT_OFF_TOLD = 50


Said = StartFetcher | StopFetcher | TimedOut | DrainOver | CommitAs | EndTransactions | Rates | Drain | Token | Password
"""What the supervisor says while the worker works, other than that it asks for evidence."""


def apply(worker: Assembled, said: Said) -> None:
    """Carry out a message of the supervisor, at once. Caller: the control thread."""
    match said:
        case StartFetcher(partitions=partitions):
            worker.hooks.start(partitions)
        case StopFetcher(grants=grants, lost=lost):
            worker.hooks.stop(grants, lost=lost)
        case CommitAs() | EndTransactions():
            _tell_of_transactions(worker, said)
        case TimedOut(grant=grant, offset=offset, overdue_ns=overdue_ns):
            worker.runner.time_out(grant, offset, overdue_ns)
        case DrainOver(grants=grants):
            worker.runner.end_drain(grants)
        case Rates(rates=rates):
            _change(worker, rates)
        case Drain():
            worker.hooks.drain()
        case Token() | Password():
            worker.login.renew(said)
        case _:
            assert_never(said)


def _tell_of_transactions(worker: Assembled, said: CommitAs | EndTransactions) -> None:
    if worker.sending is None:
        return
    if isinstance(said, CommitAs):
        worker.sending.group_metadata.answered(said)
    else:
        worker.sending.end_left(said.transactional_id)


def _change(worker: Assembled, rates: Sequence[Rate]) -> None:
    # While a reload replaces workers, the supervisor speaks of handlers that this one may not have.
    for rate in rates:
        if rate.handler < len(worker.gates) and (gate := worker.gates[rate.handler]) is not None:
            worker.table.change_rate(gate, rate.per_second, rate.burst)


def _rate_uses(worker: Assembled) -> list[RateUse]:
    """What was used of the rates."""
    uses = ((number, gate.rate_use()) for number, gate in enumerate(worker.gates) if gate is not None)
    return [RateUse(number, *use) for number, use in uses if use is not None]


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
        self._worker = worker
        self._table = worker.table
        self._logs_dropped = logs_dropped
        self._memory = ResidentMemory()
        self._collecting = collecting
        self._lease_ns = sys.maxsize
        """As it was seen last."""

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
            _die(f"the worker ends: the supervisor sent nonsense: {error}")
        except BaseException:
            _die("the worker ends: its control thread broke", exception=traceback.format_exc()[-_TRACEBACK:])

    def say_last(self) -> None:
        """Report what was counted since the last Ping. Caller: the runner's thread, when everything is drained."""
        self._channel.send(self._evidence(0, self._collecting.last()))

    def _patience(self) -> float:
        """Seconds until the lease runs out; it is usually extended long before, and nobody is woken for that."""
        lease_ns, now = self._ledger.lease_ns, now_ns()
        # Also where it was extended just behind its end: whoever was about to start a record in between waits.
        back, self._lease_ns = self._lease_ns < now < lease_ns, lease_ns
        if back:
            self._worker.runner.wake()
        left = lease_ns - now
        if left > 0:
            return min(left / NANOSECONDS, _LONGEST_SLEEP_SECONDS)
        self._table.interrupts.request()
        return _LEASE_RECHECK_SECONDS

    def _react(self, message: ToWorker) -> None:
        match message:
            case Ping(sequence=sequence):
                if self._worker.sending is not None:
                    self._worker.sending.look(now_ns() / NANOSECONDS)
                self._channel.send(self._evidence(sequence, self._collecting.news()))
            case Configure():
                raise FrameError("a second Configure")
            case _:
                apply(self._worker, message)

    def _evidence(self, sequence: int, families: tuple[list[Family] | None, list[Family] | None]) -> Pong:
        runner, hooks, counters = self._worker.runner, self._worker.hooks, self._worker.counters
        counted, observed = counters.take()
        parked, parked_count = self._table.parked()
        put_off = hooks.parked()
        return Pong(
            sequence=sequence,
            runner=runner.progress,
            handled=counters.handled,
            in_hand=self._table.in_hand(now_ns()),
            rss_bytes=self._memory.bytes(),
            paused_by_lease=runner.paused_by_lease,
            counted=counted,
            observed=observed,
            logs_dropped=self._logs_dropped(),
            parked=parked + put_off[:_PUT_OFF_TOLD],
            parked_count={**parked_count, **({"handler": len(put_off)} if put_off else {})},
            families=families[0],
            client_families=families[1],
            in_flight=self._table.in_calls(),
            rates=_rate_uses(self._worker),
            broken_circuits=self._table.broken_circuits(),
        )


_TRACEBACK = select.PIPE_BUF // 2
"""Characters; a line of more than PIPE_BUF bytes might block."""


def _die(event: str, **fields: str) -> NoReturn:
    """Exit now: neither a stderr that takes no line, nor a line that cannot be rendered, must make an orphan."""
    line = b""
    try:
        rendered = logs.rendered("error", "kunicorn.worker", {"event": event, **fields})
        line = f"{rendered}\n".encode(errors="backslashreplace")
    finally:
        exit_now(ExitCode.BUG, line)
