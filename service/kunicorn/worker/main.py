"""Process of a worker in one function: descriptors, signals, threads, exit. Forked from the template, which has the
code but no threads and no client.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from kunicorn.errors import ExitCode, PeerError
from kunicorn.handler import load
from kunicorn.handler.registry import HandlerRegistry
from kunicorn.handler.retry import describe
from kunicorn.ipc.channel import BlockingChannel, SupervisorGone
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Configure, FrameError, Ready
from kunicorn.observe import logs, prints
from kunicorn.observe.logs import LogWriter
from kunicorn.worker.assembly import CannotServe, assemble
from kunicorn.worker.control import Control
from kunicorn.worker.linux import die_with, name_process, wait_for_parent
from kunicorn.worker.stats import Collecting

log = logging.getLogger("kunicorn.worker")

_LAST_LINES_SECONDS = 1.0

Place = Callable[[], Mapping[str, Any]]


def run(channel_fd: int, ledger_fd: int, supervisor: int, hop: int) -> NoReturn:
    """Be a worker of process `supervisor`, forked by process `hop`, until drained. Owns both descriptors.

    Caller: the template's child, whose only other descriptors are the standard ones and what the handler's module
    opened. Leaves by `os._exit`: what the preloaded code registered with `atexit` belongs to the template.
    """
    status: int = ExitCode.BUG
    try:
        if _set_up_process(supervisor, hop):
            status = _serve(BlockingChannel(channel_fd), Ledger(ledger_fd))
    except SupervisorGone:
        pass  # It ends, and has said why; a line of ours would only hide that.
    except BaseException:
        log.exception("the worker ends before its log has begun")
    finally:
        with contextlib.suppress(Exception):
            prints.finish()
        os._exit(status)


def _set_up_process(supervisor: int, hop: int) -> bool:
    """Set process group, signals and the tie to the supervisor; False if the supervisor is gone already."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # Only the supervisor is told to stop by signals. A handler that does nothing rather than SIG_IGN, which
        # programs started by the user's handler would inherit.
        signal.signal(number, _do_nothing)
    signal.signal(signal.SIGUSR1, _do_nothing)
    _ForkedByHandler().register()
    # SIGABRT, the last rung before SIGKILL: every thread's stack, then death.
    faulthandler.enable(all_threads=True)
    return wait_for_parent(supervisor, hop) and die_with(supervisor)


def _do_nothing(number: int, frame: Any) -> None:
    pass


class _ForkedByHandler:
    """Default signal handlers for children that the user's handler forks. With a worker's handlers
    `Process.terminate()` and the end of a `multiprocessing.Pool` would do nothing, and be waited for without end.

    Signals are blocked from before the fork: one that came before the child's handlers are set would be lost.
    """

    _MEANT = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self._mask = threading.local()

    def register(self) -> None:
        """Register the fork hooks, for this process and its children."""
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._begin)

    def _block(self) -> None:
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, self._MEANT)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _begin(self) -> None:
        for number in self._MEANT:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
        self._unblock()


def _serve(channel: BlockingChannel, ledger: Ledger) -> int:
    """Receive the configuration and work until drained; the exit status."""
    configure = channel.receive()
    if not isinstance(configure, Configure):
        raise FrameError(f"the first message is {type(configure).__name__}, not Configure")
    name_process(f"kunicorn-w{configure.worker}")
    written = logs.configure(configure.log_level, configure.log_format, f"worker-{configure.worker}")
    prints.take_over()
    try:
        return _work(configure, channel, ledger, written)
    except CannotServe as failure:
        channel.send(failure.report)
        return failure.status
    except SupervisorGone:
        raise
    except PeerError as error:
        log.error("the worker ends: %s", error)
        return ExitCode.BUG
    except BaseException:
        # Here, as what is said when the writer is closed is lost.
        log.exception("the worker broke")
        return ExitCode.BUG
    finally:
        with contextlib.suppress(Exception):
            prints.finish()
        written.close(_LAST_LINES_SECONDS)


def _work(configure: Configure, channel: BlockingChannel, ledger: Ledger, written: LogWriter) -> int:
    """Load the handler, make the client, fetch and handle until drained. Raises `CannotServe`."""
    _reseed()
    made = assemble(configure, ledger, channel.send)
    runner, statistics = made.runner, made.statistics
    signal.signal(signal.SIGUSR1, lambda number, frame: runner.on_interruption())
    logs.tell_place(_within_span(runner.place) if any(each.tracing for each in configure.handlers) else runner.place)
    load.tune_gc()
    channel.send(Ready())
    collecting = Collecting(statistics.families if statistics is not None else None)
    control = Control(channel, ledger, made, lambda: written.dropped, collecting)
    control.start()
    runner.run()
    made.hooks.finish()
    control.say_last()
    _tear_down(made.handlings)
    return ExitCode.CLEAN


def _within_span(place: Place) -> Place:
    """The record in hand, and the span that it is handled in."""
    from kunicorn.handler.tracing import span_in_hand

    return lambda: {**place(), **span_in_hand()}


def _reseed() -> None:
    """Give each worker random numbers of its own; `random` itself does so after a fork, numpy does not."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _tear_down(handlings: HandlerRegistry[Any]) -> None:
    """Call every handler's `teardown`. Everything is handled and reported by then, so that a failure is only logged."""
    for handling in handlings.every:
        try:
            handling.tear_down()
        except BaseException as error:
            log.error("%s: teardown raised %s", handling.handler.entrypoint, describe(error))
