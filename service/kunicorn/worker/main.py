"""A worker's birth, life and death, in one function: descriptors, signals, client, threads, exit.

The process is forked from the template, which has the code but no threads and no client.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from confluent_kafka import Consumer, KafkaException, Producer

from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError, PeerError
from kunicorn.handler import load
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler
from kunicorn.handler.registry import Handling, Handlings
from kunicorn.handler.retry import describe
from kunicorn.ipc.channel import BlockingChannel, SupervisorGone
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Configure, FrameError, FromWorker, Ready, WorkerFailed
from kunicorn.librdkafka.errors import librdkafka, log_client_error
from kunicorn.observe import logs
from kunicorn.observe.logs import LogWriter
from kunicorn.worker.assembly import Assembled, Sending, concurrency, form_in_worker, refused_by_producing
from kunicorn.worker.buffering import delays_of
from kunicorn.worker.client import ClientStatistics, KnownTopics, Login
from kunicorn.worker.control import Control
from kunicorn.worker.delivery import CommittingFlights, DeliveringFlights, SettlingFetcher
from kunicorn.worker.executors import Tasks, Threads
from kunicorn.worker.failures import Failures
from kunicorn.worker.hooks import Lifecycle
from kunicorn.worker.in_flight import Flights
from kunicorn.worker.linux import die_with, name_process, wait_for_parent
from kunicorn.worker.loop import ConcurrentRunner, Runner
from kunicorn.worker.partitions import Fetcher, Parts
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.sender import (
    Carrier,
    LetterProducer,
    Letters,
    LettersAmongOutputs,
    Outputs,
    Senders,
    Startable,
)
from kunicorn.worker.progress import Grant, Hands
from kunicorn.worker.stats import Collecting, Meter

log = logging.getLogger("kunicorn.worker")

_WARM_UP_SECONDS = 2.0
_LAST_LINES_SECONDS = 1.0


class CannotServe(Exception):
    """Ends the worker before it was ready."""

    def __init__(self, stage: str, error: str, status: ExitCode) -> None:
        super().__init__(error)
        self.report = WorkerFailed(stage, error)
        self.status = status


def run(channel_fd: int, ledger_fd: int, supervisor: int, hop: int) -> NoReturn:
    """Be a worker of process `supervisor`, forked by process `hop`, until drained. Owns both descriptors.

    Caller: the template's child, whose only other descriptors are the standard ones and what the handler's module
    opened. Leaves by `os._exit`: what the preloaded code registered with `atexit` belongs to the template.
    """
    status: int = ExitCode.BUG
    try:
        if _settle_in(supervisor, hop):
            status = _serve(BlockingChannel(channel_fd), Ledger(ledger_fd))
    except SupervisorGone:
        pass  # It ends, and has said why; a line that is no log line, beside its own, would only hide that.
    except PeerError as error:
        print(f"worker {os.getpid()}: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _settle_in(supervisor: int, hop: int) -> bool:
    """Own process group, signals, ties to the supervisor; False if the supervisor is gone already."""
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
    """In a child that the handler forks, signals mean what they mean in any Python program. With a worker's handlers
    `Process.terminate()` and the end of a `multiprocessing.Pool` would do nothing, and be waited for without end.

    They are blocked from before the fork: one that came before the child's are set would be lost.
    """

    _MEANT = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self._mask = threading.local()

    def register(self) -> None:
        """From now on, for this process and its children."""
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
    """Be told who to be, and be it until drained; the exit status."""
    configure = channel.receive()
    if not isinstance(configure, Configure):
        raise FrameError(f"the first message is {type(configure).__name__}, not Configure")
    name_process(f"kunicorn-w{configure.worker}")
    written = logs.configure(configure.log_level, configure.log_format, f"worker-{configure.worker}")
    try:
        return _work(configure, channel, ledger, written)
    except CannotServe as failure:
        channel.send(failure.report)
        return failure.status
    finally:
        written.close(_LAST_LINES_SECONDS)


def _work(configure: Configure, channel: BlockingChannel, ledger: Ledger, written: LogWriter) -> int:
    """Load the handler, make the client, fetch and handle until drained. Raises `CannotServe`."""
    _reseed()
    made = assemble(configure, ledger, channel.send)
    runner, statistics = made.runner, made.statistics
    signal.signal(signal.SIGUSR1, lambda number, frame: runner.on_interruption())
    logs.tell_place(runner.place)
    load.settle()
    channel.send(Ready())
    collecting = Collecting(statistics.families if statistics is not None else None)
    control = Control(channel, ledger, made, lambda: written.dropped, collecting)
    control.start()
    runner.run()
    made.lifecycle.finish()
    control.say_last()
    _tear_down(made.handlings)
    return ExitCode.CLEAN


@dataclass(frozen=True, slots=True)
class Makers:
    """What the parts are made by. `kunicorn.testing` puts a log in memory in the brokers' place, and looks on; what it
    tests has one record (or batch) in hand at a time."""

    consumer: Callable[..., Consumer] = Consumer
    producer: Callable[..., Producer] = Producer
    senders: Callable[[Outbox, Sequence[Carrier]], Startable] = Senders
    fetcher: type[Fetcher] = Fetcher
    settling: type[SettlingFetcher] = SettlingFetcher
    failures: type[Failures[Grant]] = Failures
    handler: Callable[[Handler], Handler] = lambda loaded: loaded


def assemble(
    configure: Configure, ledger: Ledger, report: Callable[[FromWorker], None], makers: Makers | None = None
) -> Assembled:
    """Load the handler, set it up and make everything that handles with it; `report` takes what the supervisor is told.

    Caller: the thread that will run the runner. Raises `CannotServe`.
    """
    makers = makers or Makers()
    sending = Sending(configure.producing, makers.producer, makers.senders) if configure.producing is not None else None
    outputs = sending.outputs if sending is not None else None
    handlings = _handlings(configure, makers.handler, outputs)
    login = Login(configure.token)
    statistics = ClientStatistics() if "statistics.interval.ms" in configure.client else None
    consumer = _connect(configure, login, statistics, makers.consumer)
    topics = KnownTopics(consumer)
    topics.learn(configure.topics, _WARM_UP_SECONDS)
    lifecycle = Lifecycle(handlings, report)
    parts = Parts(consumer, topics, ledger, Meter(), lifecycle.report, configure.ahead_bytes)
    letters = _letters(configure, login, outputs, makers)
    policies = lambda topic: handlings.of(topic).policies_in(topic)  # noqa: E731
    fetcher: Flights | Fetcher
    runner: ConcurrentRunner | Runner
    if isinstance(handlings.every[0].calls, Threads | Tasks):
        hands = _hands(handlings, configure)
        fetcher = flights = _flights(parts, lambda topic: hands[handlings.of(topic)], sending)
        crews = {hands[each]: each.calls for each in handlings.every}
        failed = Failures(flights, policies, letters)
        runner = ConcurrentRunner(consumer, flights, ledger, crews, lifecycle, failed, login)
    else:
        fetcher = singles = makers.fetcher(parts) if sending is None else makers.settling(parts, sending.outbox)
        singles.batches = any(order.mode == "batch" for order in configure.handlers)
        failures = makers.failures(singles, policies, letters)
        runner = Runner(consumer, singles, ledger, handlings, lifecycle, failures, login, outputs)
    lifecycle.fetcher, fetcher.delays = fetcher, delays_of(configure.handlers)
    if sending is not None and isinstance(fetcher, SettlingFetcher | DeliveringFlights):
        _start_sending(sending, fetcher, login, report)
    return Assembled(handlings, lifecycle, fetcher, runner, login, statistics, sending)


def _hands(handlings: Handlings[Any], configure: Configure) -> dict[Handling[Any], Hands]:
    """How many records each handler has in hand, and in which order."""
    return {
        each: Hands(order.ordering, concurrency(each.handler, order))
        for each, order in zip(handlings.every, configure.handlers, strict=True)
    }


def _flights(parts: Parts, hands_of: Callable[[str], Hands], sending: Sending | None) -> Flights:
    if sending is None:
        return Flights(parts, hands_of)
    kind = CommittingFlights if sending.in_transactions else DeliveringFlights
    return kind(parts, hands_of, sending.outbox)


def _letters(configure: Configure, login: Login, outputs: Outputs | None, makers: Makers) -> Letters | None:
    """How what is given up is sent; None where nothing is."""
    if (target := configure.dead_letters) is None:
        return None
    if outputs is not None:
        return LettersAmongOutputs(outputs, target.topic, target.group)
    return LetterProducer(target, login, makers.producer)


def _start_sending(
    sending: Sending, fetcher: SettlingFetcher | DeliveringFlights, login: Login, tell: Callable[[FromWorker], None]
) -> None:
    """Raises `CannotServe`. Blocks until no transaction of a predecessor is open any more."""
    try:
        sending.start(fetcher, login, tell)
    except (KafkaException, ValueError, TypeError) as error:
        raise CannotServe("client", refused_by_producing(error), ExitCode.CONFIGURATION) from error


def _handlings(configure: Configure, made: Callable[[Handler], Handler], outputs: Outputs | None) -> Handlings[Any]:
    """The handlers, preloaded or not, set up with their options. Raises `CannotServe`."""
    worker = Worker(configure.worker, os.getpid(), configure.group, str(configure.client.get("client.id", "")))
    form = form_in_worker(configure.handlers, outputs)
    try:
        return Handlings.set_up(configure.handlers, worker, form, made, yields=outputs is not None)
    except HandlerLoadError as error:
        raise CannotServe("handler", str(error), ExitCode.HANDLER) from error
    except ConfigError as error:
        raise CannotServe("settings", str(error), ExitCode.CONFIGURATION) from error


def _reseed() -> None:
    """Give each worker random numbers of its own; `random` itself does so after a fork, numpy does not."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _connect(
    configure: Configure, login: Login, statistics: ClientStatistics | None, make: Callable[..., Consumer]
) -> Consumer:
    """The consumer. Raises `CannotServe`."""
    properties: dict[str, Any] = {**configure.client, "error_cb": log_client_error}
    if configure.token is not None:
        properties["oauth_cb"] = login.bearer
    if statistics is not None:
        properties["stats_cb"] = statistics.take
    try:
        return make(properties, logger=librdkafka)
    except (KafkaException, ValueError, TypeError) as error:
        text = f"the Kafka client refuses its properties: {error}. See [kafka] and [kafka.librdkafka]."
        raise CannotServe("client", text, ExitCode.CONFIGURATION) from error


def _tear_down(handlings: Handlings[Any]) -> None:
    """Everything is handled and reported; what goes wrong here can only be told."""
    for handling in handlings.every:
        try:
            handling.tear_down()
        except BaseException as error:
            log.error("%s: teardown raised %s", handling.handler.entrypoint, describe(error))
