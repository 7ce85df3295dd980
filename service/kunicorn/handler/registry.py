"""Every handler of a process that handles, set up, with its rules; and which of them has a topic's records.

How many records a worker has in hand at a time. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.handler.call import Hooked
from kunicorn.handler.config import Batching, HandlerOrder, route
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler, find, load
from kunicorn.handler.retry import End, Policies, RetryPolicy, describe, policies_of

C = TypeVar("C", bound=Hooked)


@dataclass(frozen=True, slots=True, eq=False)
class Handling(Generic[C]):
    """One handler that is ready for records."""

    handler: Handler
    calls: C
    policies: Policies
    batch_max_records: int | None
    """Most records of one call; None: it takes one record at a time."""
    batching: Batching = field(default_factory=Batching)
    in_retry_topics: Mapping[str, Policies] = field(default_factory=dict)
    """By topic: the rules for records that have waited there."""

    def policies_in(self, topic: str) -> Policies:
        """The rules for its records in that topic: out of a retry topic they go into one with a longer delay."""
        return self.in_retry_topics.get(topic, self.policies)

    def tear_down(self) -> None:
        """After its last record. Raises what the user's `teardown` raises; the handler's loop is closed in any case."""
        try:
            if self.handler.teardown is not None:
                self.calls.run(self.handler.teardown())
        finally:
            self.calls.close()


def _as_loaded(handler: Handler) -> Handler:
    return handler


def set_up(
    order: HandlerOrder,
    worker: Worker,
    form: Callable[[Handler, HandlerOrder], C],
    made: Callable[[Handler], Handler] = _as_loaded,
    *,
    yields: bool = False,
) -> Handling[C]:
    """Load the handler and call its `setup`. `form` says how it is called; `made` may put something around it.
    `yields`: it may be a generator, as what it yields is sent.

    Raises `HandlerLoadError`, and `ConfigError` for rules that cannot hold. Caller: the process's main thread, which is
    to call the handler later. Runs the user's code.
    """
    check_options(order)
    loaded = load(order.entrypoint, yields=yields)
    if loaded.keeps_offsets:
        _check_offsets_say_all(order)
    handler = made(loaded)
    calls = form(handler, order)
    try:
        calls.run(handler.setup_in(worker, order.options))
    except BaseException as error:
        raise HandlerLoadError(f"{order.entrypoint}: setup raised {describe(error)}") from error
    policies = policies_of(_default_policy(order), order.failures, order.decoding.on_undecodable)
    batch_max_records = order.batch_max_records if order.mode == "batch" else None
    behind = {topic.name: policies.behind(topic.delay_ms) for topic in order.retry_topics}
    return Handling(handler, calls, policies, batch_max_records, order.batching, behind)


def check_options(order: HandlerOrder) -> None:
    """Import the handler and see whether it takes the options it is given; makes no instance of a class.

    Raises `HandlerLoadError`.
    """
    if order.options and getattr(find(order.entrypoint, yields=True), "setup", None) is None:
        raise HandlerLoadError(
            f"[handler.options] is set, but {order.entrypoint} has no setup(options) to read it: "
            f"remove the options, or give the handler a 'setup' attribute"
        )


def _check_offsets_say_all(order: HandlerOrder) -> None:
    """Of a handler that keeps its offsets itself: one offset for each partition. Raises `ConfigError`."""
    if order.ordering != "partition":
        raise ConfigError(
            f"handler.ordering = {order.ordering!r}, but {order.entrypoint} keeps its offsets itself (load_offsets): "
            f"one offset says nothing of records done beyond it; remove handler.ordering"
        )
    if order.retry_topics:
        raise ConfigError(
            f"handler.retry_topic_delays_ms is set, but {order.entrypoint} keeps its offsets itself (load_offsets): a "
            f"record that comes back out of a retry topic lies behind them; remove the delays, or load_offsets"
        )


def _default_policy(order: HandlerOrder) -> RetryPolicy:
    return RetryPolicy(
        order.retry_attempts,
        order.retry_backoff_ms,
        order.retry_backoff_max_ms,
        order.retry_timeout_ms,
        End(order.on_failure),
        tuple(order.retry_topics),
    )


class Handlings(Generic[C]):
    """All handlers of one process."""

    def __init__(self, every: Sequence[Handling[C]], topics: Sequence[Sequence[str]]) -> None:
        """`topics[i]`, names and patterns, are those of `every[i]`; without any for a single one it has all topics."""
        self.every = every
        self._topics = topics
        self._only = every[0] if len(every) == 1 else None
        self._by_topic: dict[str, Handling[C]] = {}

    @classmethod
    def set_up(
        cls,
        orders: Sequence[HandlerOrder],
        worker: Worker,
        form: Callable[[Handler, HandlerOrder], C],
        made: Callable[[Handler], Handler] = _as_loaded,
        *,
        yields: bool = False,
    ) -> Handlings[C]:
        """Load and set up every handler, in their order. See `set_up`."""
        every = [set_up(order, worker, form, made, yields=yields) for order in orders]
        return cls(every, [order.topics for order in orders])

    def of(self, topic: str) -> Handling[C]:
        """Who has the topic's records. Raises `LookupError` for one that the settings give to nobody."""
        if self._only is not None:
            return self._only
        known = self._by_topic.get(topic)
        if known is None:
            number = route(self._topics, topic)
            if number is None:
                raise LookupError(f"no handler takes topic {topic!r}: add it to the topics of one of [[handlers]]")
            known = self._by_topic[topic] = self.every[number]
        return known


ASYNC_CONCURRENCY = 100
"""Of an `async def` handler where handler.concurrency is not set."""


def concurrency_of(is_async: bool, mode: str, ordering: str, concurrency: int | None) -> int:
    """Most records in hand at a time. With 1 a worker handles one after the other. Raises `ConfigError`."""
    if mode == "batch":
        return 1
    most = concurrency if concurrency is not None else ASYNC_CONCURRENCY if is_async else 1
    if most == 1 and ordering != "partition":
        raise ConfigError(
            f"handler.ordering = {ordering!r}, but the handler is a plain function, of which one call runs at a time: "
            f"set handler.concurrency to the number of threads, make it async def, or remove handler.ordering"
        )
    return most
