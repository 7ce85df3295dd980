"""Composition of a worker from top to bottom: `assemble` makes all its parts, `Sending` those that send outputs.

There are two kinds of workers: one has one record or batch in hand at a time, the other several.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, assert_never

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError
from kunicorn.handler.call import Hooked, ReturnCheck, arguments_of, calls_for
from kunicorn.handler.config import HandlerConfig, ProducingTarget
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler, find, handler_of
from kunicorn.handler.outputs import gathering
from kunicorn.handler.registry import HandlerRegistry, concurrency_of
from kunicorn.handler.retry import Policies
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    CommitAs,
    Configure,
    Drain,
    FromWorker,
    Password,
    StartFetcher,
    StopFetcher,
    TimedOut,
    Token,
    WorkerFailed,
)
from kunicorn.librdkafka.errors import fault_of, librdkafka, log_client_error
from kunicorn.worker.buffering import delays_of
from kunicorn.worker.client import Client, ClientStatistics, KnownTopics, Login
from kunicorn.worker.delivery import CommittingFlights, DeliveringFlights, SettlingFetcher
from kunicorn.worker.executors import AsyncioExecutor, Executor, Executors, OnReturn, ThreadExecutor
from kunicorn.worker.failures import Failures, Letters, Observer
from kunicorn.worker.hooks import Hooks, Revocations
from kunicorn.worker.in_flight import Flights
from kunicorn.worker.loop import ConcurrentRunner, Runner
from kunicorn.worker.partitions import GrantTable, Parts, SequentialTable, TableSettings
from kunicorn.worker.produce.outbox import DeliveryListener, Limits, Outbox, TransactionOrder
from kunicorn.worker.produce.sender import (
    Acknowledging,
    LetterProducer,
    LettersAmongOutputs,
    Outputs,
    Sender,
    SenderThreads,
    Startable,
    keep_letters,
)
from kunicorn.worker.produce.transactions import GroupMetadata, Shared, Table, Transactions
from kunicorn.worker.progress import Grant, InFlight, Interrupts, Slots
from kunicorn.worker.stats import Counters

log = logging.getLogger("kunicorn.worker")

_WARM_UP_SECONDS = 2.0
_INIT_SECONDS = 5.0
_TURNS = ("a", "b", "c")
"""What the transactional ids of a worker's producers end with: one produces, one commits, and of one the brokers write
the markers."""


class CannotServe(Exception):
    """A worker cannot begin: its handler, its settings or its client fail. Reported to the supervisor before it
    exits.
    """

    def __init__(self, stage: str, error: str, status: ExitCode) -> None:
        super().__init__(error)
        self.report = WorkerFailed(stage, error)
        self.status = status


@dataclass(frozen=True, slots=True)
class Makers:
    """Factories of the parts. `kunicorn.testing` puts a log in memory in the brokers' place, and looks on."""

    consumer: Callable[..., Consumer] = Consumer
    producer: Callable[..., Producer] = Producer
    senders: Callable[[Outbox, Sequence[Sender]], Startable] = SenderThreads
    handler: Callable[[Handler], Handler] = lambda loaded: loaded
    observer: Observer = field(default_factory=Observer)


class Sending:
    """Outbox and senders of a worker that sends outputs. Made before the handlers are loaded, as their outputs go into
    the outbox; it sends as soon as there is a table, which is told of deliveries.
    """

    def __init__(self, target: ProducingTarget, login: Login, counters: Counters, makers: Makers) -> None:
        limits = Limits(target.max_records, target.max_bytes, target.max_ms / 1000)
        self.in_transactions = target.delivery == "transactions"
        self.outbox = Outbox(limits, senders=len(_TURNS) if self.in_transactions else 1)
        self.outputs = Outputs(self.outbox, target.topic, target.delivery)
        self.group_metadata = GroupMetadata()
        self._target = target
        self._login = login
        self._counters = counters
        self._makers = makers

    def acknowledged(self, table: DeliveryListener) -> None:
        """Begin to send at least once. Raises `CannotServe`."""
        self._start(lambda: [Acknowledging(self._acknowledged, self.outbox, table, self._counters)])

    def transactional(self, table: Table, tell: Callable[[FromWorker], None]) -> None:
        """Begin to send in transactions; `tell` sends to the supervisor. Raises `CannotServe`.

        Blocks until what a predecessor left open is ended, however long the brokers take.
        """
        self._start(lambda: self._in_transactions(table, tell))

    def _start(self, senders: Callable[[], Sequence[Sender]]) -> None:
        try:
            self._makers.senders(self.outbox, senders()).start()
        except (KafkaException, ValueError, TypeError) as error:
            raise CannotServe("client", refused_by_producing(error), ExitCode.CONFIGURATION) from error

    def _acknowledged(self) -> Producer:
        self._login.use(producer := self._producer({}))
        return producer

    def _in_transactions(self, table: Table, tell: Callable[[FromWorker], None]) -> Sequence[Sender]:
        target = self._target
        whole, longest = target.client["transactional.id"], float(target.client["transaction.timeout.ms"]) / 2000
        producers = [self._producer({"transactional.id": f"{whole}-{turn}"}) for turn in _TURNS]
        self._login.use(*producers)
        # Side by side: where a predecessor's transaction is open, the client asks again every half second, for each.
        with ThreadPoolExecutor(len(producers)) as takers:
            list(takers.map(take_over, producers))
        shared = Shared(
            target.group, self.outbox, table, self._counters, self.group_metadata, TransactionOrder(), tell, longest
        )
        return [Transactions(producer, shared) for producer in producers]

    def _producer(self, own: Mapping[str, str]) -> Producer:
        """A producer. `own`: properties that only this one of the producers has."""
        properties: dict[str, Any] = {**self._target.client, **own, "error_cb": log_client_error}
        if self._login.is_bearer:
            properties["oauth_cb"] = self._login.bearer
        return self._makers.producer(properties, logger=librdkafka)


def take_over(producer: Producer) -> None:
    """End the transaction that the transactional.id has left open, and fence any producer that still has it. Raises
    `KafkaException` where trying again does not help.
    """
    while True:
        try:
            producer.init_transactions(_INIT_SECONDS)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if not error.retriable():
                raise
            log.warning(f"the brokers do not take this worker's transactional.id yet, trying on: {error.str()}")
        else:
            return


def refused_by_producing(error: BaseException) -> str:
    """Reason why nothing can be sent, for people."""
    cause = error.args[0] if isinstance(error, KafkaException) else None
    if isinstance(cause, KafkaError) and cause.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return f"producing: {fault_of(cause.code()).remedy()}"
    return f"the Kafka client refuses to produce: {error}. See [producing] and [producing.librdkafka]."


Said = StartFetcher | StopFetcher | TimedOut | CommitAs | Drain | Token | Password
"""What the supervisor says while the worker works, other than that it asks for evidence."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """Parts of a worker. Nothing is fetched yet when they are made."""

    handlings: HandlerRegistry[Any]
    hooks: Hooks
    table: GrantTable
    runner: Runner | ConcurrentRunner
    login: Login
    counters: Counters
    statistics: ClientStatistics | None
    sending: Sending | None
    """Where what handlers return is sent."""

    def apply(self, said: Said) -> None:
        """Carry out a message of the supervisor, at once. Caller: the control thread."""
        match said:
            case StartFetcher(partitions=partitions):
                self.hooks.start(partitions)
            case StopFetcher(grants=grants, lost=lost):
                self.hooks.stop(grants, lost=lost)
            case CommitAs():
                if self.sending is not None:
                    self.sending.group_metadata.answered(said)
            case TimedOut(grant=grant, offset=offset, overdue_ns=overdue_ns):
                self.runner.time_out(grant, offset, overdue_ns)
            case Drain():
                self.hooks.drain()
            case Token() | Password():
                self.login.renew(said)
            case _:
                assert_never(said)


class _Given(NamedTuple):
    """Arguments that all parts are made of."""

    configure: Configure
    ledger: Ledger
    report: Callable[[FromWorker], None]
    """Sends one message to the supervisor."""
    makers: Makers
    login: Login
    counters: Counters
    sending: Sending | None


def assemble(
    configure: Configure, ledger: Ledger, report: Callable[[FromWorker], None], makers: Makers | None = None
) -> Assembled:
    """Load the handlers, set them up and make all parts; `report` sends a message to the supervisor.

    Caller: the thread that will run the runner. Raises `CannotServe`.
    """
    makers, login, counters = makers or Makers(), Login(configure.token), Counters()
    target = configure.producing
    sending = Sending(target, login, counters, makers) if target is not None else None
    given = _Given(configure, ledger, report, makers, login, counters, sending)
    try:
        several = has_several_in_hand(configure.handlers, sends=sending is not None)
    except (HandlerLoadError, ConfigError) as error:
        raise _cannot_load(error) from error
    return _with_several_in_hand(given) if several else _with_one_in_hand(given)


def _with_one_in_hand(given: _Given) -> Assembled:
    configure, sending = given.configure, given.sending
    handlings = _handlings(given, calls_for if sending is None else sending.outputs.calls)
    client, statistics = _connect(given)
    interrupts = Interrupts()
    revocations = Revocations(handlings, given.report, interrupts, given.counters)
    parts = Parts(client, given.ledger, given.counters, revocations.report, interrupts, _table_settings(configure))
    letters: Letters[Grant] | None
    if sending is None:
        table, letters = SequentialTable(parts), _letters(given)
    else:
        table = settling = SettlingFetcher(parts, sending.outbox)
        letters = _letters_among_outputs(configure, sending.outputs.put_letters)
        if sending.in_transactions:
            sending.transactional(settling, given.report)
        else:
            sending.acknowledged(settling)
    hooks = Hooks(handlings, revocations, table, interrupts, given.counters)
    failures = Failures(table, _policies(handlings), letters, given.makers.observer)
    runner = Runner(client, table, handlings, hooks, failures)
    return Assembled(handlings, hooks, table, runner, given.login, given.counters, statistics, sending)


def _with_several_in_hand(given: _Given) -> Assembled:
    configure, sending = given.configure, given.sending
    outputs = sending.outputs if sending is not None else None
    handlings: HandlerRegistry[Executor] = _handlings(
        given, lambda handler, config: _executor(handler, config, outputs)
    )
    client, statistics = _connect(given)
    interrupts = Interrupts()
    revocations = Revocations(handlings, given.report, interrupts, given.counters)
    parts = Parts(client, given.ledger, given.counters, revocations.report, interrupts, _table_settings(configure))
    slots = {
        each: Slots(config.ordering, concurrency(each.handler, config))
        for each, config in zip(handlings.every, configure.handlers, strict=True)
    }
    executors = Executors({slots[each]: each.calls for each in handlings.every})

    def slots_of(topic: str) -> Slots:
        return slots[handlings.of(topic)]

    flights: Flights
    letters: Letters[InFlight] | None
    if sending is None:
        flights, letters = Flights(parts, slots_of), _letters(given)
    else:
        letters = _letters_among_outputs(configure, keep_letters)
        if sending.in_transactions:
            flights = committing = CommittingFlights(parts, slots_of, sending.outbox, executors)
            sending.transactional(committing, given.report)
        else:
            flights = delivering = DeliveringFlights(parts, slots_of, sending.outbox, executors)
            sending.acknowledged(delivering)
    hooks = Hooks(handlings, revocations, flights, interrupts, given.counters)
    failures = Failures(flights, _policies(handlings), letters, given.makers.observer)
    runner = ConcurrentRunner(client, flights, executors, hooks, failures)
    return Assembled(handlings, hooks, flights, runner, given.login, given.counters, statistics, sending)


def has_several_in_hand(configs: Sequence[HandlerConfig], *, sends: bool) -> bool:
    """Whether handlers have more than one record, or batch, in hand between them.

    Several handlers, and those whose outputs are sent, have one where the settings ask for nothing else. Imports the
    handler. Raises `HandlerLoadError` and `ConfigError`.
    """
    if any(config.asks_for_several for config in configs):
        return True
    if sends or len(configs) > 1:
        return False
    (config,) = configs
    return concurrency(handler_of(config.entrypoint, find(config.entrypoint)), config) > 1


def concurrency(handler: Handler, config: HandlerConfig) -> int:
    """Number of records that the handler has in hand at a time. Raises `ConfigError`."""
    return concurrency_of(handler.is_async, config.mode, config.ordering, config.concurrency)


def _executor(handler: Handler, config: HandlerConfig, outputs: Outputs | None) -> Executor:
    most = concurrency(handler, config)
    form = arguments_of(handler, config.mode, config.decoding, config.tracing)
    adapted = replace(handler, call=form.adapted(handler.call))
    on_return = _heeding(handler) if outputs is None else outputs.on_return(handler)
    handle = adapted.call if outputs is None else gathering(adapted).call
    if handler.is_async:
        return AsyncioExecutor(handle, form, on_return)
    return ThreadExecutor(handle, form, most, on_return)


def _heeding(handler: Handler) -> OnReturn:
    check = ReturnCheck(handler.entrypoint)
    return lambda flight, returned: check(returned)


C = TypeVar("C", bound=Hooked)


def _handlings(given: _Given, form: Callable[[Handler, HandlerConfig], C]) -> HandlerRegistry[C]:
    """The handlers, preloaded or not, set up with their options. Raises `CannotServe`."""
    configure = given.configure
    worker = Worker(configure.worker, os.getpid(), configure.group, str(configure.client.get("client.id", "")))
    yields = given.sending is not None
    try:
        return HandlerRegistry.set_up(configure.handlers, worker, form, given.makers.handler, yields=yields)
    except (HandlerLoadError, ConfigError) as error:
        raise _cannot_load(error) from error


def _cannot_load(error: HandlerLoadError | ConfigError) -> CannotServe:
    if isinstance(error, HandlerLoadError):
        return CannotServe("handler", str(error), ExitCode.HANDLER)
    return CannotServe("settings", str(error), ExitCode.CONFIGURATION)


def _connect(given: _Given) -> tuple[Client, ClientStatistics | None]:
    """The Kafka client, and its statistics where the settings ask for them. Raises `CannotServe`."""
    configure, login = given.configure, given.login
    statistics = ClientStatistics() if "statistics.interval.ms" in configure.client else None
    properties: dict[str, Any] = {**configure.client, "error_cb": log_client_error}
    if configure.token is not None:
        properties["oauth_cb"] = login.bearer
    if statistics is not None:
        properties["stats_cb"] = statistics.take
    try:
        consumer = given.makers.consumer(properties, logger=librdkafka)
    except (KafkaException, ValueError, TypeError) as error:
        text = f"the Kafka client refuses its properties: {error}. See [kafka] and [kafka.librdkafka]."
        raise CannotServe("client", text, ExitCode.CONFIGURATION) from error
    topics = KnownTopics(consumer)
    topics.learn(configure.topics, _WARM_UP_SECONDS)
    return Client(consumer, topics, login), statistics


def _table_settings(configure: Configure) -> TableSettings:
    batches = any(config.mode == "batch" for config in configure.handlers)
    return TableSettings(configure.ahead_bytes, delays_of(configure.handlers), batches)


def _policies(handlings: HandlerRegistry[Any]) -> Callable[[str], Policies]:
    return lambda topic: handlings.of(topic).policies_in(topic)


def _letters(given: _Given) -> LetterProducer | None:
    """Producer of letters where outputs are not sent; None where the settings ask for no letters."""
    if (target := given.configure.dead_letters) is None:
        return None
    return LetterProducer(target, given.login, given.makers.producer)


L = TypeVar("L", Grant, InFlight)


def _letters_among_outputs(configure: Configure, put: Callable[[L, Any, Any, Any], None]) -> Letters[L] | None:
    if (target := configure.dead_letters) is None:
        return None
    return LettersAmongOutputs(put, target.topic, target.group)
