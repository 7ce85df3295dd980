"""Handlers of one process: each loaded, set up and with its retry rules, and found by a record's topic.

Caller: the main thread of a worker, of a trial, or of a Spark task, at its start; runs the user's `setup`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from kunicorn.errors import ConfigError, HandlerLoadError, HandlerSetupError
from kunicorn.handler import middleware
from kunicorn.handler.call import Hooked
from kunicorn.handler.config import Batching, HandlerConfig, route
from kunicorn.handler.filter import OnFiltered, filters_of, untold
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler, find, find_middleware, load
from kunicorn.handler.retry import Policies, describe, policies_of

C = TypeVar("C", bound=Hooked)


@dataclass(frozen=True, slots=True, eq=False)
class Handling(Generic[C]):
    """One handler that is set up: how it is called, and what happens to records that fail."""

    handler: Handler
    calls: C
    policies: Policies
    batch_max_records: int | None
    """Most records of one call; None: it takes one record at a time."""
    batching: Batching = field(default_factory=Batching)
    in_retry_topics: Mapping[str, Policies] = field(default_factory=dict)
    """By topic: the rules for records that have waited there."""

    def policies_in(self, topic: str) -> Policies:
        """Retry rules for its records in that topic: from a retry topic they move on to one with a longer delay."""
        return self.in_retry_topics.get(topic, self.policies)

    @property
    def holds_back(self) -> bool:
        """Whether only its `teardown`, or that of a middleware, may write what it has held back."""
        ends = self.handler.teardown is not None or any(each.teardown is not None for each in self.handler.middlewares)
        return ends and self.handler.flush is None

    def flush(self) -> None:
        """Call `flush`, and raise what it raises."""
        if self.handler.flush is not None:
            self.calls.run(self.handler.flush())

    def tear_down(self) -> None:
        """Call `teardown` of the handler, then of its middlewares, and raise what one of them raises; the handler's
        loop is closed in any case."""
        try:
            try:
                if self.handler.teardown is not None:
                    self.calls.run(self.handler.teardown())
            finally:
                middleware.tear_down(self.handler, self.calls.run)
        finally:
            self.calls.close()


def as_loaded(handler: Handler) -> Handler:
    """The handler: nothing wraps it."""
    return handler


def set_up(
    config: HandlerConfig,
    worker: Worker,
    form: Callable[[Handler, HandlerConfig], C],
    made: Callable[[Handler], Handler] = as_loaded,
    *,
    yields: bool = False,
    on_filtered: Callable[[HandlerConfig], OnFiltered] = lambda _: untold,
) -> Handling[C]:
    """Load the handler, its filters and its middlewares, and call their `setup`. `form` makes its `Calls`; `made` may
    wrap the handler and its middlewares. `yields`: a generator is allowed, since what it yields is sent.

    Raises `HandlerLoadError`, and `ConfigError` for rules that cannot hold. Caller: the thread that is to call the
    handler later. Runs the user's code.
    """
    check_options(config)
    loaded = load(config.entrypoint, yields=yields)
    check_offsets(loaded, config)
    handler = made(middleware.loaded(loaded, config.middlewares))
    handler = replace(handler, filters=filters_of(config, on_filtered(config)))
    calls = form(handler, config)
    call_setup(handler, calls, worker, config.options)
    policies = policies_of(config)
    batch_max_records = config.batch_max_records if config.batches else None
    behind = {topic.name: policies.behind(topic.delay_ms) for topic in config.retry_topics}
    return Handling(handler, calls, policies, batch_max_records, config.batching, behind)


def call_setup(handler: Handler, calls: Hooked, worker: Worker, options: Mapping[str, Any]) -> None:
    """Call `setup` of the middlewares, then of the handler. Raises `HandlerSetupError`. Caller: as of `set_up`."""
    try:
        middleware.set_up(handler, calls.run, worker, options)
        calls.run(handler.setup_in(worker, options))
    except BaseException as error:
        raise HandlerSetupError(f"{handler.entrypoint}: setup raised {describe(error)}") from error


def check_options(config: HandlerConfig) -> None:
    """Import the handler, its filters and its middlewares, and check that one of them takes [handler.options]; makes no
    instance of a class.

    Raises `HandlerLoadError`.
    """
    found = [find(config.entrypoint, yields=True), *map(find_middleware, config.middlewares)]
    filters_of(config, untold)
    if config.options and all(getattr(each, "setup", None) is None for each in found):
        raise HandlerLoadError(
            f"[handler.options] is set, but {config.entrypoint} has no setup(options) to read it: "
            f"remove the options, or give the handler a 'setup' attribute"
        )


def check_offsets(handler: Handler, config: HandlerConfig) -> None:
    """Raise `ConfigError` for settings that need more than one offset a partition, with a handler that stores its own
    offsets.
    """
    if not handler.keeps_offsets:
        return
    if config.ordering != "partition":
        raise ConfigError(
            f"handler.ordering = {config.ordering!r}, but {config.entrypoint} keeps its offsets itself (load_offsets): "
            f"one offset says nothing of records done beyond it; remove handler.ordering"
        )
    if config.retry_topics:
        raise ConfigError(
            f"handler.retry_topic_delays_ms is set, but {config.entrypoint} keeps its offsets itself (load_offsets): a "
            f"record that comes back out of a retry topic lies behind them; remove the delays, or load_offsets"
        )


class HandlerRegistry(Generic[C]):
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
        configs: Sequence[HandlerConfig],
        worker: Worker,
        form: Callable[[Handler, HandlerConfig], C],
        made: Callable[[Handler], Handler] = as_loaded,
        *,
        yields: bool = False,
        on_filtered: Callable[[HandlerConfig], OnFiltered] = lambda _: untold,
    ) -> HandlerRegistry[C]:
        """Load and set up every handler, in their order. See `set_up`."""
        every = [set_up(config, worker, form, made, yields=yields, on_filtered=on_filtered) for config in configs]
        return cls(every, [config.topics for config in configs])

    def flush(self) -> None:
        """Call `flush` of every handler. Raises what one of them raises."""
        for handling in self.every:
            handling.flush()

    @property
    def holds_back(self) -> bool:
        """Whether one of them may write what it has held back in `teardown` alone."""
        return any(handling.holds_back for handling in self.every)

    def of(self, topic: str) -> Handling[C]:
        """The handler of the topic's records. Raises `LookupError` for a topic that the settings give to none."""
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
    """Most records of this handler in hand at a time; 1: one after the other. Raises `ConfigError`."""
    if mode != "record":
        return 1
    most = concurrency if concurrency is not None else ASYNC_CONCURRENCY if is_async else 1
    if most == 1 and ordering != "partition":
        raise ConfigError(
            f"handler.ordering = {ordering!r}, but the handler is a plain function, of which one call runs at a time: "
            f"set handler.concurrency to the number of threads, make it async def, or remove handler.ordering"
        )
    return most
