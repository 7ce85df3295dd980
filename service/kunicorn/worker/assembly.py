"""A worker's parts, put together: `Assembled` all of them, `Sending` those that produce, `form_in_worker` the way in
which a handler is called (one record or batch at a time, or several, and with outputs sent or not).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from kunicorn.handler.call import Calls, Heed, arguments_of, calls_for
from kunicorn.handler.config import HandlerOrder, ProducingTarget
from kunicorn.handler.load import Handler
from kunicorn.handler.outputs import gathering
from kunicorn.handler.registry import Handlings, concurrency_of
from kunicorn.ipc.messages import FromWorker
from kunicorn.librdkafka.errors import librdkafka, log_client_error
from kunicorn.worker.client import ClientStatistics, Login
from kunicorn.worker.delivery import CommittingFlights, DeliveringFlights, SettlingFetcher
from kunicorn.worker.executors import Take, Tasks, Threads
from kunicorn.worker.hooks import Lifecycle
from kunicorn.worker.loop import ConcurrentRunner, Runner
from kunicorn.worker.partitions import GrantTable
from kunicorn.worker.produce.outbox import Limits, Outbox, Succession
from kunicorn.worker.produce.sender import Acknowledging, Carrier, Outputs, Senders, Startable, Tally
from kunicorn.worker.produce.transactions import Identities, Shared, Transactions

log = logging.getLogger("kunicorn.worker")

_INIT_SECONDS = 5.0
_TURNS = ("a", "b", "c")
"""What the transactional ids of a worker's producers end with: one produces, one commits, and of one the brokers write
the markers."""


class Sending:
    """Made before the handler is loaded; `start` comes when there is a fetcher."""

    def __init__(
        self,
        target: ProducingTarget,
        make: Callable[..., Producer] = Producer,
        senders: Callable[[Outbox, Sequence[Carrier]], Startable] = Senders,
    ) -> None:
        limits = Limits(target.max_records, target.max_bytes, target.max_ms / 1000)
        self.in_transactions = target.delivery == "transactions"
        self.outbox = Outbox(limits, senders=len(_TURNS) if self.in_transactions else 1)
        self.outputs = Outputs(self.outbox, target.topic, target.delivery)
        self.tally = Tally()
        self.identities = Identities()
        self._target = target
        self._make = make
        self._senders = senders

    def start(
        self, fetcher: SettlingFetcher | DeliveringFlights, login: Login, tell: Callable[[FromWorker], None]
    ) -> None:
        """Make the producer and begin to send.

        Raises `KafkaException` (or what the client says of properties that it refuses). With transactions it blocks
        until what a predecessor left open is ended, however long the brokers take.
        """
        self._senders(self.outbox, self._carriers(fetcher, login, tell)).start()

    def _carriers(
        self, fetcher: SettlingFetcher | DeliveringFlights, login: Login, tell: Callable[[FromWorker], None]
    ) -> Sequence[Carrier]:
        target = self._target
        if not self.in_transactions:
            return [Acknowledging(lambda: self._acknowledged(login), self.outbox, fetcher, self.tally)]
        assert isinstance(fetcher, SettlingFetcher | CommittingFlights)
        whole, longest = target.client["transactional.id"], float(target.client["transaction.timeout.ms"]) / 2000
        producers = [self._producer(login, {"transactional.id": f"{whole}-{turn}"}) for turn in _TURNS]
        login.use(*producers)
        # Side by side: where a predecessor's transaction is open, the client asks again every half second, for each.
        with ThreadPoolExecutor(len(producers)) as takers:
            list(takers.map(take_over, producers))
        shared = Shared(target.group, self.outbox, fetcher, self.tally, self.identities, Succession(), tell, longest)
        return [Transactions(producer, shared) for producer in producers]

    def _acknowledged(self, login: Login) -> Producer:
        login.use(producer := self._producer(login, {}))
        return producer

    def _producer(self, login: Login, own: Mapping[str, str]) -> Producer:
        """`own`: what only this one of the producers has."""
        properties: dict[str, Any] = {**self._target.client, **own, "error_cb": log_client_error}
        if login.is_bearer:
            properties["oauth_cb"] = login.bearer
        return self._make(properties, logger=librdkafka)


def take_over(producer: Producer) -> None:
    """End what the transactional.id has left open, and fence whoever still has it. Raises `KafkaException` where trying
    again does not help."""
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
    """For a person: why nothing can be sent."""
    cause = error.args[0] if isinstance(error, KafkaException) else None
    if isinstance(cause, KafkaError) and cause.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return (
            "producing: this user needs WRITE and DESCRIBE on the transactional ids that begin with "
            "producing.transactional_id_prefix"
        )
    return f"the Kafka client refuses to produce: {error}. See [producing] and [producing.librdkafka]."


@dataclass(frozen=True, slots=True)
class Assembled:
    """Nothing is fetched yet when they are made."""

    handlings: Handlings[Any]
    lifecycle: Lifecycle
    fetcher: GrantTable
    runner: Runner | ConcurrentRunner
    login: Login
    statistics: ClientStatistics | None
    sending: Sending | None = None
    """Where what handlers return is sent."""


Form = Calls | Threads | Tasks


def form_in_worker(orders: Sequence[HandlerOrder], outputs: Outputs | None) -> Callable[[Handler, HandlerOrder], Form]:
    """How each of the handlers is called; what that gives raises `ConfigError` and `HandlerLoadError`.

    Several handlers, and those whose outputs are sent, have one record (or batch) in hand at a time between them where
    the settings ask for nothing else.
    """
    if any(order.asks_for_several for order in orders):
        return lambda handler, order: _crew(handler, order, outputs)
    if outputs is not None:
        return outputs.calls
    return calls_for if len(orders) > 1 else _form_of_one


def concurrency(handler: Handler, order: HandlerOrder) -> int:
    """How many records it has in hand at a time. Raises `ConfigError`."""
    return concurrency_of(handler.is_async, order.mode, order.ordering, order.concurrency)


def _form_of_one(handler: Handler, order: HandlerOrder) -> Form:
    return calls_for(handler, order) if concurrency(handler, order) == 1 else _crew(handler, order, None)


def _crew(handler: Handler, order: HandlerOrder, outputs: Outputs | None) -> Threads | Tasks:
    most = concurrency(handler, order)
    form = arguments_of(handler, order.mode, order.decoding, order.tracing)
    adapted = replace(handler, call=form.adapted(handler.call))
    take = _heeding(handler) if outputs is None else outputs.take(handler)
    handle = adapted.call if outputs is None else gathering(adapted).call
    return Tasks(handle, form, take) if handler.is_async else Threads(handle, form, most, take)


def _heeding(handler: Handler) -> Take:
    heed = Heed(handler.entrypoint)
    return lambda flight, returned: heed(returned)
