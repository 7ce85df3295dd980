"""Composition of a worker from top to bottom: `assemble` makes all its parts, `Sending` those that send outputs.

Three things are chosen, each by itself: who calls a handler (its executor), in which order (the lanes of its slots),
and when its records are done (the completion rule, which is the worker's).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from kunicorn.errors import FENCED_STATUS, ConfigError, ExitCode, HandlerLoadError, HandlerSetupError
from kunicorn.handler.call import ReturnCheck, arguments_of, calls_for
from kunicorn.handler.config import DeadLetterTarget, HandlerConfig, ProducingTarget
from kunicorn.handler.decode.forms import need_arrow
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.handler.filter import OnFiltered
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler
from kunicorn.handler.registry import HandlerRegistry, concurrency_of
from kunicorn.handler.retry import Policies
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Configure, FromWorker, WorkerFailed
from kunicorn.librdkafka.errors import fault_of, librdkafka, log_client_error
from kunicorn.observe import catalogue as c
from kunicorn.worker.buffering import bounds_of, delays_of
from kunicorn.worker.delivery import ON_ACKNOWLEDGEMENT, ON_COMMIT, ON_RETURN, Completion, Deliveries
from kunicorn.worker.executors.executor import Executor, Returned
from kunicorn.worker.executors.inline import InlineExecutor
from kunicorn.worker.executors.tasks import AsyncioExecutor
from kunicorn.worker.executors.threads import ThreadExecutor
from kunicorn.worker.failures import Failures, LetterBox, Observer
from kunicorn.worker.fetching.client import Client, ClientStatistics, KnownTopics, Librdkafka, Login
from kunicorn.worker.grants import AT_ONCE, Parts, TableSettings
from kunicorn.worker.hooks import Hooks, Revocations
from kunicorn.worker.limits.gate import Drop, Drops, Gate, gate_of, has_gate
from kunicorn.worker.linux import MORE_THREADS
from kunicorn.worker.loop import Executors, Loop
from kunicorn.worker.partitions import Partitions
from kunicorn.worker.produce.letters import LetterSender
from kunicorn.worker.produce.outbox import Limits, Outbox, TransactionOrder
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import Acknowledging, Channel, Outputs, Sender, SenderThreads, Startable, end_worker
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.produce.transactions import GroupMetadata, Shared, Transactions
from kunicorn.worker.progress import Interrupts, Slots
from kunicorn.worker.stats import Counters

log = logging.getLogger("kunicorn.worker")

OWN = "own"
_WARM_UP_SECONDS = 2.0
_INIT_SECONDS = 5.0
_EACH_REPORTED = {"delivery.report.only.error": False}
"""Else the sender of letters would never hear of one that has arrived."""
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


def _own_fetcher(properties: Mapping[str, Any], login: Login) -> Client:
    """Our own fetcher, begun. Loaded only where it is asked for. Raises `ConfigError`."""
    from kunicorn.columns.decoding import compiled
    from kunicorn.worker.fetching.own_fetcher import own_fetcher

    return own_fetcher(properties, login, compiled)


@dataclass(frozen=True, slots=True)
class Makers:
    """Factories of the parts. `kunicorn.testing` puts a log in memory in the brokers' place, and looks on."""

    consumer: Callable[..., Consumer] = Consumer
    own_fetcher: Callable[[Mapping[str, Any], Login], Client] = _own_fetcher
    producer: Callable[..., Producer] = Producer
    senders: Callable[[Outbox, Sequence[Sender]], Startable] = SenderThreads
    handler: Callable[[Handler], Handler] = lambda loaded: loaded
    observer: Observer = field(default_factory=Observer)
    wait: Callable[[threading.Event, float], object] = lambda event, seconds: event.wait(seconds)


class Sending:
    """Outbox and senders of a worker that sends outputs, or letters alone."""

    def __init__(
        self,
        outbox: Outbox,
        senders: Sequence[Startable],
        group_metadata: GroupMetadata,
        end_left: Callable[[str], None],
        hangs: Callable[[float], str | None],
    ) -> None:
        self.outbox = outbox
        self.group_metadata = group_metadata
        self.end_left = end_left
        """Begins to end what a dead worker has left open under that transactional.id; returns at once."""
        self._senders = senders
        self._hangs = hangs

    def start(self) -> None:
        """Begin to send."""
        for senders in self._senders:
            senders.start()

    def look(self, now: float) -> None:
        """End the worker where the client hangs. `now`: seconds. Caller: the control thread, each second."""
        if why := self._hangs(now):
            end_worker(why, FENCED_STATUS)


class _Outboxes(NamedTuple):
    """Outboxes of a worker that sends outputs, or letters alone."""

    outputs: Outbox
    """Letters, too, where there is no other one."""
    letters: Outbox | None


class _Senders:
    """Maker of a worker's senders. Raises `CannotServe` where the client refuses."""

    def __init__(self, given: _Given, outboxes: _Outboxes, table: Partitions) -> None:
        self._given = given
        self._outboxes = outboxes
        self._table = table
        self.group_metadata = GroupMetadata()
        traced = any(config.tracing is not None for config in given.configure.handlers)
        self._telemetry = SendTelemetry(given.counters, traced=traced)
        self._acknowledged: dict[str, Producer] = {}
        """Producers of what is sent at least once, by the kind of it."""
        self._transactions: Sequence[Transactions] = ()

    def of_outputs(self, target: ProducingTarget) -> Sequence[Sender]:
        """The sender that delivers outputs at least once. Its producer is made now."""
        make = self._maker("outputs", target.client)
        first = [make()]
        channel = Channel(lambda: first.pop() if first else make(), RequestSizes(target.client))
        return [Acknowledging(channel, self._outboxes.outputs, self._table, self._telemetry)]

    def of_letters(self, target: DeadLetterTarget, outbox: Outbox) -> Sequence[Sender]:
        """That of letters, where they go by themselves. Its producer is made with the first one."""
        make = self._maker("letters", {**target.client, **_EACH_REPORTED})
        return [LetterSender(make, RequestSizes(target.client), outbox, self._table, self._telemetry)]

    def _maker(self, kind: str, client: Mapping[str, Any]) -> Callable[[], Producer]:
        def make() -> Producer:
            self._acknowledged[kind] = producer = self._producer(client, {})
            self._given.login.use(*self._acknowledged.values())
            return producer

        return make

    def transactional(self, target: ProducingTarget) -> Sequence[Sender]:
        """Those that deliver in transactions. Blocks until what a predecessor left open is ended, under their ids and
        under those that are inherited, however long the brokers take.
        """
        given = self._given
        whole, timeout = str(target.client["transactional.id"]), float(target.client["transaction.timeout.ms"]) / 1000
        producers = self._producers_of(target, whole)
        inherited = self._producers_of(target, target.inherited) if target.inherited else []
        given.login.use(*producers, *inherited)
        # Side by side: where a predecessor's transaction is open, the client asks again every half second, for each.
        with ThreadPoolExecutor(len(producers) + len(inherited)) as takers:
            list(takers.map(take_over, (*producers, *inherited)))
        given.login.use(*producers)  # The others go with this.
        shared = Shared(
            target.group,
            self._outboxes.outputs,
            self._table,
            self._telemetry,
            self.group_metadata,
            TransactionOrder(),
            given.report,
            timeout,
            RequestSizes(target.client),
        )
        self._transactions = [Transactions(producer, shared) for producer in producers]
        return self._transactions

    def hangs(self, now: float) -> str | None:
        """Why one that delivers in transactions hangs, see `Transactions.hangs`; the others keep to their time-outs."""
        return next(filter(None, [each.hangs(now) for each in self._transactions]), None)

    def end_left(self, left: str) -> None:
        """End what a dead worker has left open under that transactional.id. Returns at once, as the brokers may take
        long: neither the control thread nor the runner may wait for them.
        """
        target = self._given.configure.producing
        if target is not None and target.delivery == "transactions":
            thread = threading.Thread(target=self._end_left, args=(target, left), name="left-open", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # The brokers end it, too, if later: no reason to end this worker with all that it has in hand.
                _warn_of_left(left, f"{error}: {MORE_THREADS}")

    def _end_left(self, target: ProducingTarget, left: str) -> None:
        try:
            producers = self._producers_of(target, left)
            self._given.login.tell(*producers)
            for producer in producers:
                take_over(producer)
        except (KafkaException, ValueError, TypeError) as error:
            _warn_of_left(left, refused_by_producing(error))
        else:
            log.info("what a dead worker has left open under %s is ended", left)

    def _producers_of(self, target: ProducingTarget, whole: str) -> Sequence[Producer]:
        return [self._producer(target.client, {"transactional.id": f"{whole}-{turn}"}) for turn in _TURNS]

    def _producer(self, client: Mapping[str, Any], own: Mapping[str, str]) -> Producer:
        """A producer. `own`: properties that only this one of the producers has."""
        properties: dict[str, Any] = {**client, **own, "error_cb": log_client_error}
        if self._given.login.is_bearer:
            properties["oauth_cb"] = self._given.login.bearer
        return self._given.makers.producer(properties, logger=librdkafka)


def _warn_of_left(left: str, why: str) -> None:
    log.warning(
        "what a dead worker has left open under %s is not ended, its partitions wait until the brokers end it "
        "(producing.transaction_timeout_ms): %s",
        left,
        why,
    )


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


@dataclass(frozen=True, slots=True)
class Assembled:
    """Parts of a worker. Nothing is fetched yet when they are made."""

    handlings: HandlerRegistry[Any]
    hooks: Hooks
    table: Partitions
    runner: Loop
    login: Login
    counters: Counters
    statistics: ClientStatistics | None
    sending: Sending | None
    """Where what handlers return is sent."""
    gates: Sequence[Gate | None] = ()
    """Of each handler."""


class _Given(NamedTuple):
    """Arguments that all parts are made of."""

    configure: Configure
    ledger: Ledger
    report: Callable[[FromWorker], None]
    """Sends one message to the supervisor."""
    makers: Makers
    login: Login
    counters: Counters


_LETTERS = Limits(records=500, nbytes=32 * 1024 * 1024, seconds=0.0)
"""Of what is sent together where only letters are: at once."""


def assemble(
    configure: Configure, ledger: Ledger, report: Callable[[FromWorker], None], makers: Makers | None = None
) -> Assembled:
    """Load the handlers, set them up and make all parts; `report` sends a message to the supervisor.

    Caller: the thread that will run the loop. Raises `CannotServe`.
    """
    given = _Given(configure, ledger, report, makers or Makers(), Login(configure.token), Counters())
    handlings, drops = _handlings(given)
    client, statistics = _connect(given)
    slots = {
        each: _slots(given, each.handler, config, of_filters)
        for each, config, of_filters in zip(handlings.every, configure.handlers, drops, strict=True)
    }
    executors = Executors({slots[each]: each.calls for each in handlings.every}, given.makers.wait)
    outboxes = _outboxes(configure)
    interrupts = Interrupts()
    revocations = Revocations(handlings, report, interrupts, given.counters)
    table = Partitions(
        Parts(client, ledger, given.counters, revocations.report, interrupts, _table_settings(configure)),
        lambda topic: slots[handlings.of(topic)],
        Deliveries(_completion(configure.producing), *(outboxes or (None, None))),
        executors,
    )
    sending = _sending(given, outboxes, table) if outboxes is not None else None
    hooks = Hooks(handlings, revocations, table, interrupts, given.counters)
    failures = Failures(table, _policies(handlings), _letters(configure), given.makers.observer)
    loop = Loop(client, table, executors, hooks, failures)
    gates = [slots[each].gate for each in handlings.every]
    return Assembled(handlings, hooks, table, loop, given.login, given.counters, statistics, sending, gates)


def _completion(target: ProducingTarget | None) -> Completion:
    if target is None:
        return ON_RETURN
    return ON_COMMIT if target.delivery == "transactions" else ON_ACKNOWLEDGEMENT


def _outboxes(configure: Configure) -> _Outboxes | None:
    """Where outputs and letters go; None where there are neither."""
    letters = Outbox(_LETTERS) if configure.dead_letters is not None else None
    if (target := configure.producing) is None:
        return _Outboxes(letters, None) if letters is not None else None
    limits = Limits(target.max_records, target.max_bytes, target.max_ms / 1000)
    if target.delivery == "transactions":
        return _Outboxes(Outbox(limits, senders=len(_TURNS)), None)
    return _Outboxes(Outbox(limits), letters)


def _sending(given: _Given, outboxes: _Outboxes, table: Partitions) -> Sending:
    """The senders, which begin at once. Raises `CannotServe`."""
    made, configure = _Senders(given, outboxes, table), given.configure
    target, letters, senders = configure.producing, configure.dead_letters, given.makers.senders
    apart = outboxes.letters if target is not None else outboxes.outputs
    try:
        threads = []
        if target is not None:
            of_outputs = made.transactional if target.delivery == "transactions" else made.of_outputs
            threads.append(senders(outboxes.outputs, of_outputs(target)))
        if letters is not None and apart is not None:
            threads.append(senders(apart, made.of_letters(letters, apart)))
        sending = Sending(outboxes.outputs, threads, made.group_metadata, made.end_left, made.hangs)
        sending.start()
    except (KafkaException, ValueError, TypeError) as error:
        raise CannotServe("client", refused_by_producing(error), ExitCode.CONFIGURATION) from error
    return sending


def _slots(given: _Given, handler: Handler, config: HandlerConfig, drops: Drops) -> Slots:
    """Raises `CannotServe`."""
    most = concurrency(handler, config)
    try:
        gate = gate_of(config, given.counters, drops)
    except ConfigError as error:
        raise _cannot_load(error) from error
    across = config.batching.batch_across_partitions
    return Slots(config.ordering, most, runs=most == 1, bounds=bounds_of(config), gate=gate, across=across)


def concurrency(handler: Handler, config: HandlerConfig) -> int:
    """Number of calls of the handler at a time. Raises `ConfigError`."""
    return concurrency_of(handler.is_async, config.mode, config.ordering, config.concurrency)


def _executor(given: _Given, handler: Handler, config: HandlerConfig) -> Executor:
    target, most = given.configure.producing, concurrency(handler, config)
    outputs = None if target is None else Outputs(target.topic, target.delivery)
    if outputs is not None:
        outputs.check(handler)
    if config.batching.batch_across_partitions:
        return _together(given, handler, config)
    if most == 1:
        calls = calls_for(handler, config) if outputs is None else outputs.calls(handler, config)
        return InlineExecutor(calls, given.ledger.cells)
    form = arguments_of(handler, config.mode, config.decoding, config.tracing)
    returned = _heeding(handler) if outputs is None else outputs.on_return(handler)
    handle = form.adapted((handler if outputs is None else outputs.sending(handler, config)).call)
    if handler.is_async:
        return AsyncioExecutor(handle, form, returned)
    return ThreadExecutor(handle, form, most, returned)


def _together(given: _Given, handler: Handler, config: HandlerConfig) -> Executor:
    """Raises `HandlerLoadError` without Arrow."""
    need_arrow()
    from kunicorn.worker.executors.together import TogetherExecutor, by_rows

    return TogetherExecutor(calls_for(by_rows(handler), config), given.ledger.cells)


def _heeding(handler: Handler) -> Returned:
    check = ReturnCheck(handler.entrypoint)
    return lambda flight, returned: check(returned)


def _handlings(given: _Given) -> tuple[HandlerRegistry[Executor], Sequence[Drops]]:
    """The handlers, preloaded or not, set up with their options, and what each one's filters tell its gate. Raises
    `CannotServe`."""
    configure = given.configure
    worker = Worker(configure.worker, os.getpid(), configure.group, str(configure.client.get("client.id", "")))

    every: list[Drops] = []

    def on_filtered(config: HandlerConfig) -> OnFiltered:
        drops: Drops = deque()
        every.append(drops)
        tells_gate = has_gate(config)

        def filtered(message: Message, name: str, *, saved: bool) -> None:
            given.counters.count(c.FILTERED, 1, message.topic() or "", name)
            given.makers.observer.filtered(message)
            if tells_gate:
                drops.append(Drop(message, saved))

        return filtered

    made, yields = given.makers.handler, configure.producing is not None
    try:
        encoder = _encoder(given)

        def form(handler: Handler, config: HandlerConfig) -> Executor:
            return _executor(given, handler if encoder is None else encoder.around(handler), config)

        made_of = HandlerRegistry.set_up(configure.handlers, worker, form, made, yields=yields, on_filtered=on_filtered)
    except (HandlerLoadError, ConfigError) as error:
        raise _cannot_load(error) from error
    return made_of, every


def _encoder(given: _Given) -> Encoder | None:
    """Encoder of what the handlers return; None where that is bytes. Raises `HandlerLoadError`."""
    target, counters = given.configure.producing, given.counters
    if target is None or target.encoding is None:
        return None
    return Encoder(target.encoding, target.topic, lambda topic, why: counters.count(c.UNENCODED, 1, topic, why))


def _cannot_load(error: HandlerLoadError | ConfigError) -> CannotServe:
    if isinstance(error, HandlerLoadError):
        stage = "handler" if isinstance(error, HandlerSetupError) else "import"
        return CannotServe(stage, str(error), ExitCode.HANDLER)
    return CannotServe("settings", str(error), ExitCode.CONFIGURATION)


def _connect(given: _Given) -> tuple[Client, ClientStatistics | None]:
    """The Kafka client, and its statistics where the settings ask for them. Raises `CannotServe`."""
    configure, login = given.configure, given.login
    if configure.fetcher == OWN:
        return _own(given), None
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
    return Librdkafka(consumer, topics, login), statistics


def _own(given: _Given) -> Client:
    try:
        return given.makers.own_fetcher(given.configure.client, given.login)
    except ConfigError as error:
        raise CannotServe("client", f"kafka.fetcher = {OWN!r}: {error}", ExitCode.CONFIGURATION) from error


def _table_settings(configure: Configure) -> TableSettings:
    # A batch ends with what was taken: of a thousand at once, a handler of ten thousands would never get its fill.
    wanted = [config.batch_max_records for config in configure.handlers if config.batches]
    return TableSettings(
        configure.ahead_bytes, delays_of(configure.handlers), bool(wanted), most_at_once=max([AT_ONCE, *wanted])
    )


def _policies(handlings: HandlerRegistry[Any]) -> Callable[[str], Policies]:
    return lambda topic: handlings.of(topic).policies_in(topic)


def _letters(configure: Configure) -> LetterBox | None:
    """None where the settings ask for no letters."""
    if (target := configure.dead_letters) is None:
        return None
    return LetterBox(target.topic, target.group, target.headers, target.topics)
