"""Configuration of one handler on the wire (`HandlerConfig`): whose records it gets, how it is called, and what happens
to records that fail. Sent to a worker once, in `messages.Configure`; complete, as defaults and rules are those of the
settings. Pure.

Beside it: a handler's retry topics, and `route`, which finds a topic's handler among several. The settings are checked
by it, and workers go by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

_UNITS: Mapping[str, int] = {"h": 3_600_000, "m": 60_000, "s": 1000}
"""Milliseconds, the largest first."""


class RetryTopic(NamedTuple):
    """Topic in which failed records wait for `delay_ms` before they come to the handler again."""

    name: str
    delay_ms: int

    @property
    def delay(self) -> str:
        return delay_in_words(self.delay_ms)


def delay_in_words(delay_ms: int) -> str:
    """Short form of a delay: 5000 is "5s", 90,000 "90s", 600,000 "10m". Part of a topic's name, and a metric's
    label.
    """
    for unit, length in _UNITS.items():
        if delay_ms % length == 0:
            return f"{delay_ms // length}{unit}"
    return f"{delay_ms}ms"


REASONS = ("handler", "attempts", "retry_timeout", "handler_timeout", "exit", "undecodable", "poison", "expired")
"""Why records are given up: the values of `retry.Reason`, for processes that do not load it."""


class FailureRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Retry rule for some exceptions, complete."""

    exceptions: list[str]
    """Classes as package.module.Class; the worker finds them once it has imported the handler."""
    max_attempts: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    retry_timeout_ms: int | None
    on_failure: str
    retry_topic_delays_ms: list[int] = []
    """Of which retry topics; none: `on_failure` follows at once."""
    dead_letter_topic: str | None = None
    """None: as for other failures."""


class DeadLetterTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead-letter topic, and the producer's properties for dead letters and retry records. Carries secrets."""

    topic: str | None
    """None: only retry topics are asked for."""
    group: str
    client: dict[str, str | int | float | bool]
    """librdkafka properties of the worker's producer, complete."""
    headers: str = "kunicorn"
    """Whose headers letters have beside ours: "spring", "connect" or "karafka"."""
    topics: dict[str, str] = {}
    """Other topics, by the reason for which records are given up."""

    def __repr__(self) -> str:
        return f"DeadLetterTarget(topic={self.topic!r}, …)"


REGISTERED = frozenset({"avro", "jsonschema", "protobuf"})
"""Decoders and encoders that ask a schema registry; the last one names a class, too, behind a colon."""


class OutputEncoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Encoders of what is sent to one topic: names, or package.module:function."""

    value: str = "bytes"
    key: str = "bytes"
    headers: str = "bytes"
    value_schema: str | None = None
    """None: the subject's latest; of Protobuf that of the message's class."""
    key_schema: str | None = None
    subject_name_strategy: str = "topic"
    register_schemas: bool = False


class Encoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Encoders of all outputs. Carries secrets."""

    default: OutputEncoding = OutputEncoding()
    topics: dict[str, OutputEncoding] = {}
    """Of the topics that have their own."""
    schema_registry: dict[str, str | int | float | bool] = {}
    """As that of `Decoding`."""

    def __repr__(self) -> str:
        return f"Encoding(default={self.default!r}, …)"


class ProducingTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Producer's properties and limits for what handlers return. Carries secrets."""

    delivery: str
    """"at_least_once" or "transactions"."""
    topic: str | None
    group: str
    client: dict[str, str | int | float | bool]
    """librdkafka properties of the worker's producer, complete."""
    max_records: int
    """Handled and not delivered: most records of one batch, and bytes of outputs in all."""
    max_bytes: int
    max_ms: int
    """The oldest of a batch waits no longer before it is delivered."""
    encoding: Encoding | None = None
    """None: outputs are bytes."""
    inherited: str = ""
    """A transactional.id that nobody has now; what was left open under it is ended first. Empty: there is none."""

    def __repr__(self) -> str:
        return f"ProducingTarget(delivery={self.delivery!r}, topic={self.topic!r}, …)"


class Decoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decoders of values and keys: names, or package.module:function. Carries secrets."""

    value: str = "bytes"
    key: str = "bytes"
    schema_registry: dict[str, str | int | float | bool] = {}
    """confluent-kafka's configuration of the registry's client, complete; empty without a registry."""
    on_undecodable: str | None = None
    """None: as on_failure says."""
    value_schema: str | None = None
    """With columns: package.module:NAME of the values' Arrow schema, or of a model."""

    def __repr__(self) -> str:
        return f"Decoding(value={self.value!r}, key={self.key!r}, …)"


class Batching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one handler's batches beside their number of records."""

    batch_max_bytes: int | None = None
    batch_max_ms: int = 0
    """How long records may wait for a fuller batch; 0: not at all."""
    memory_bytes: int = 0
    """Bytes that may wait so, of all partitions together."""
    batch_across_partitions: bool = False
    """A batch has records of all partitions that the worker has, not of one."""


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tracing is on: calls of the handler are within spans."""

    group: str
    client_id: str = ""
    """Of the worker's client; empty outside of workers."""
    cluster_id: str = ""
    """Of the brokers; empty where they tell none."""
    with_key: bool = False
    """Spans have their record's key."""
    with_size: bool = False
    """Spans have the size of their record's value."""


class CircuitBreaking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a handler is not called for a while, as `settings.limits.CircuitBreakerSettings` says."""

    exceptions: list[str]
    failure_share: float
    window_ms: int
    min_calls: int
    open_ms: int
    probes: int


class FilterRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition that records have to meet to come to the handler. Of the last five fields one is given."""

    name: str | None = None
    on: str | None = None
    """"key", or "header:" and its name."""
    one_of: list[str] = []
    none_of: list[str] = []
    prefix: str | None = None
    exists: bool | None = None
    function: str | None = None
    """Entry point of a function of the undecoded record."""

    @property
    def label(self) -> str:
        """What metrics and errors call it."""
        return self.name or self.function or self.on or ""


class RateLimiting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many records (or calls) a second may begin in this worker, as `settings.limits.RateLimitSettings` says."""

    per_second: float
    burst: float
    per: str
    """"service", "key" or "worker"."""
    counts: str
    """"records" or "calls"."""
    header: str | None = None
    """Whose value is the key; None: the record's key."""

    @property
    def is_shared(self) -> bool:
        """Whether several workers have the rate together. Of a record's key all records are in one partition."""
        return self.per == "service" or (self.per == "key" and self.header is not None)

    def shared(self, share: float) -> RateLimiting:
        """So large a share of it."""
        return msgspec.structs.replace(self, per_second=self.per_second * share, burst=self.burst * share)


class HandlerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One handler: whose records it gets, and how it is called. Its options may be secrets."""

    entrypoint: str
    mode: str
    """"record", "batch" or "arrow"."""
    options: dict[str, Any]
    batch_max_records: int
    max_attempts: int
    """Tries of one record (or batch) in all, the first included."""
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    retry_timeout_ms: int | None = None
    on_failure: str = "halt"
    """"halt", "dead_letter" or "skip"."""
    failures: list[FailureRule] = []
    """Other rules for some exceptions; the first match counts."""
    ordering: str = "partition"
    """"partition", "key" or "none": what is handled in order."""
    concurrency: int | None = None
    """Most records in hand at a time; None: what suits the handler."""
    decoding: Decoding = Decoding()
    batching: Batching = Batching()
    tracing: Tracing | None = None
    """None: no spans."""
    filters: list[FilterRule] = []
    """Conditions that records have to meet, before they are decoded."""
    dead_letter_topic: str | None = None
    """None: that of the service."""
    delay_ms: int | None = None
    """So long after its timestamp a record is handled at the earliest; not in retry topics, which have their own."""
    max_age_ms: int | None = None
    on_expired: str = "skip"
    """"skip" or "dead_letter"."""
    middlewares: list[str] = []
    """Entry points of the contexts around its calls, the first outermost."""
    circuit_breaker: CircuitBreaking | None = None
    rate_limit: RateLimiting | None = None
    topics: list[str] = []
    """Names, and patterns with a leading ^, of the topics that are its own; none: it is the only handler."""
    retry_topics: list[RetryTopic] = []
    """The shortest delay first."""

    @property
    def batches(self) -> bool:
        """Whether a call gets several records of one partition."""
        return self.mode != "record"

    def __repr__(self) -> str:
        return f"HandlerConfig(entrypoint={self.entrypoint!r}, …)"


def takes(patterns: Collection[str], topic: str) -> bool:
    """Whether the names and patterns (with a leading ^) match that topic."""
    return topic in patterns or any(re.match(each, topic) for each in patterns if each.startswith("^"))


def route(handlers: Sequence[Sequence[str]], topic: str) -> int | None:
    """Index of the topic's handler, each handler given by its topics; None if no handler takes it.

    A handler that names the topic goes before those with a pattern for it; of patterns the first that matches counts.
    """
    named = next((number for number, topics in enumerate(handlers) if topic in topics), None)
    if named is not None:
        return named
    return next((number for number, topics in enumerate(handlers) if takes(topics, topic)), None)
