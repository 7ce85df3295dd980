"""The sections [handler], [[handlers]] and [dead_letters]: the user's handlers, and what happens to records that fail.
Pure.

Beside them the rules for retry topics, and those between [[handlers]], [handler] and the topics that are consumed: each
topic has one handler.
"""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from kunicorn.handler.config import REASONS, RetryTopic, delay_in_words, route, takes
from kunicorn.settings.checks import (
    Count,
    Milliseconds,
    MillisecondsOfYears,
    Section,
    are_options,
    has_legal_name,
    is_class_name,
    is_decoder,
    is_entrypoint,
    is_kafka_name,
    is_topic_or_pattern,
)
from kunicorn.settings.filters import FILTER_RULES, FilterSettings
from kunicorn.settings.limits import CircuitBreakerSettings, RateLimitSettings
from kunicorn.settings.problems import NO_VALUE, Contradictions, Problem
from kunicorn.settings.rules import COLUMN_RULES, CONCURRENCY_RULES, LIMIT_RULES, RETRY_RULES, Rule, check

TEMPLATE = "{group}.retry.{delay}"
_PLACES = frozenset({"group", "delay"})


def delays_ascend(delays: tuple[int, ...]) -> tuple[int, ...]:
    """The delays, each longer than the one before it: a record goes from topic to topic in this order."""
    if any(later <= earlier for earlier, later in itertools.pairwise(delays)):
        raise ValueError("not ascending; a record waits longer with every retry, so write the shortest delay first")
    return delays


def is_topic_template(template: str) -> str:
    """Topic's name in which {group} and {delay} may stand."""
    try:
        places = [place for place in string.Formatter().parse(template) if place[1] is not None]
    except ValueError as error:
        raise ValueError(f"no template ({error}); write it such as {TEMPLATE}") from None
    if strange := sorted({str(name) for _, name, _, _ in places} - _PLACES):
        raise ValueError(f"{{{strange[0]}}} stands for nothing; {{group}} and {{delay}} do, as in {TEMPLATE}")
    if any(form or conversion for _, _, form, conversion in places):
        raise ValueError(f"a place has a format or a conversion; write the names alone, as in {TEMPLATE}")
    return template


def retry_topics_of(handler: Any, group: str) -> tuple[RetryTopic, ...]:
    """Retry topics of one handler, the shortest delay first."""
    return tuple(
        RetryTopic(handler.retry_topic.format(group=group, delay=delay_in_words(delay)), delay)
        for delay in handler.retry_topic_delays_ms
    )


def taken_topics(handler: Any, group: str) -> list[str]:
    """Topics of one of [[handlers]], its retry topics included; empty for [handler], which has all there are."""
    return [*handler.topics, *(topic.name for topic in retry_topics_of(handler, group))] if _is_one(handler) else []


def _is_one(handler: Any) -> bool:
    return hasattr(handler, "topics")


RETRY_TOPIC_RULES = (
    Rule(
        "retry_topic",
        lambda s: "{delay}" in s.retry_topic or len(s.retry_topic_delays_ms) <= 1,
        "one topic for all of retry_topic_delays_ms, where a record would wait for those with a longer delay before "
        "it; put {{delay}} into the name",
    ),
    Rule(
        "retry_topic_delays_ms",
        lambda s: s.ordering != "key" or not s.retry_topic_delays_ms,
        'set beside ordering = "key": a record that goes through a retry topic is handled after later ones of its key; '
        "remove one of them (in place, max_attempts tries keep a key's order)",
    ),
    Rule(
        "retry_topic_delays_ms",
        lambda s: all(set(rule.retry_topic_delays_ms or ()) <= set(s.retry_topic_delays_ms) for rule in s.failures),
        "one of the failures' rules has delays of its own, for which there are no topics; add them here, or remove "
        "them there",
    ),
)
"""Of one handler."""


def retry_topic_problems(settings: Any) -> list[Problem]:
    """Problems of retry topics beside the other settings."""
    problems = []
    level = settings.kafka.isolation_level
    if settings.retry_topics and settings.producing.in_transactions and level != "read_committed":
        problems.append(Problem("kafka.isolation_level", level, _ABORTED))
    for number, handler in enumerate(settings.every_handler):
        section = f"handlers[{number}]" if settings.handlers else "handler"
        for topic in retry_topics_of(handler, settings.group.id):
            problems += [
                Problem(f"{section}.retry_topic", handler.retry_topic, otherwise.format(topic=topic.name))
                for broken, otherwise in _RULES
                if broken(settings, topic.name)
            ]
    return problems


_ABORTED = (
    'with producing.delivery = "transactions" records get into retry topics by transactions, and those of aborted '
    "ones would be handled, too; set it to read_committed, or remove retry_topic_delays_ms"
)


def _illegal(settings: Any, topic: str) -> bool:
    try:
        is_kafka_name(topic)
    except ValueError:
        return True
    return False


def _shared(settings: Any, topic: str) -> bool:
    names = (each.name for handler in settings.every_handler for each in retry_topics_of(handler, settings.group.id))
    return Counter(names)[topic] > 1


_RULES: Sequence[tuple[Callable[[Any, str], bool], str]] = (
    (lambda s, topic: s.assigned, "retry topics are consumed by the group, and with assign.partitions there is none; "
     "remove retry_topic_delays_ms, or [assign]"),
    (_illegal, "{topic!r} is no legal name of a topic; correct the template"),
    (lambda s, topic: takes(s.group.topics, topic), "{topic!r} is among group.topics, too, where records would not "
     "wait; name another topic, or a pattern that leaves it out"),
    (lambda s, topic: topic in s.dead_letter_topics, "{topic!r} is the dead-letter topic, too; name another one"),
    (lambda s, topic: topic == s.producing.topic, "{topic!r} is producing.topic, too; name another one"),
    (lambda s, topic: topic in s.producing.own_topics, "{topic!r} is among producing.topics, too, and what is sent "
     "there would be handled; name another one"),
    (_shared, "{topic!r} would be that of several of [[handlers]], and nobody knew whose records are in it; set "
     "retry_topic for all but one of them"),
)  # fmt: skip


def named(settings: Any) -> Iterator[RetryTopic]:
    """Retry topics of all handlers."""
    for handler in settings.every_handler:
        yield from retry_topics_of(handler, settings.group.id)


OnFailure = Literal["halt", "dead_letter", "skip"]
Decoder = Annotated[str, AfterValidator(is_decoder)]
Delays = Annotated[tuple[Milliseconds, ...], Strict(False), AfterValidator(delays_ascend)]


def default_topic(group_id: str) -> str:
    """Dead-letter topic of a group that does not name one."""
    return f"{group_id}.dead-letters"


class FailureSettings(Section):
    """What is done about some exceptions; settings that are left out are those of [handler]."""

    exceptions: Annotated[
        tuple[Annotated[str, AfterValidator(is_class_name)], ...], Strict(False), Field(min_length=1)
    ] = Field(
        description="Exception classes, subclasses included, as package.module.Class; the first rule that names one "
        "of the exception's classes counts.",
        examples=[["builtins.ValueError", "shop.errors.Permanent"]],
    )
    max_attempts: Count | None = Field(None, examples=[1], description="As handler.max_attempts.")
    retry_backoff_ms: Milliseconds | None = Field(None, examples=[1000], description="As handler.retry_backoff_ms.")
    retry_backoff_max_ms: Milliseconds | None = Field(
        None, examples=[60_000], description="As handler.retry_backoff_max_ms."
    )
    retry_timeout_ms: Milliseconds | None = Field(None, examples=[600_000], description="As handler.retry_timeout_ms.")
    retry_topic_delays_ms: Delays | None = Field(
        None,
        examples=[[]],
        description="Some of handler.retry_topic_delays_ms, for these exceptions; none: not through retry topics.",
    )
    on_failure: OnFailure | None = Field(None, examples=["dead_letter"], description="As handler.on_failure.")
    dead_letter_topic: Annotated[str, AfterValidator(is_kafka_name)] | None = Field(
        None,
        examples=["orders.refused"],
        json_schema_extra={"default": "as `dead_letters.topics`, `handler.dead_letter_topic` and `dead_letters.topic`"},
        description="The dead-letter topic for these exceptions; it goes before all others, and must exist.",
    )


AGE_RULES = (
    Rule(
        "delay_ms",
        lambda s: s.delay_ms is None or s.max_age_ms is None or s.delay_ms < s.max_age_ms,
        "not below max_age_ms = {s.max_age_ms}, so that every record would be too old when its time comes; lower it, "
        "or raise that",
    ),
    Rule(
        "on_expired",
        lambda s: s.on_expired == "skip" or s.max_age_ms is not None,
        "nothing expires without max_age_ms; set that, or remove this",
    ),
)


class HandlerSettings(Section):
    """The handler: what is called with the records, and what happens to those that fail."""

    entrypoint: Annotated[str, AfterValidator(is_entrypoint)] = Field(
        description="The handler as package.module:attribute; a function of one argument, def or async def, "
        "or a class with such a method `handle`.",
        examples=["shop.handlers:handle_order"],
    )
    filters: Annotated[tuple[FilterSettings, ...], Strict(False)] = Field(
        (),
        description="Each a table [[handler.filters]]: conditions that records have to meet, all of them, before they "
        "are decoded; the others are counted and passed by (docs/filters.md).",
    )
    delay_ms: Milliseconds | None = Field(
        None,
        examples=[600_000],
        description="The handler gets no record before its timestamp and this; its partition waits meanwhile, and is "
        "not fetched (docs/filters.md#not-before).",
    )
    max_age_ms: MillisecondsOfYears | None = Field(
        None,
        examples=[3_600_000],
        description="The handler gets no record whose timestamp is longer ago; see on_expired. A record without a "
        "timestamp, or with one that is ahead of the clock, is never too old.",
    )
    on_expired: Literal["skip", "dead_letter"] = Field(
        "skip",
        description="What becomes of a record that is older than max_age_ms: it is counted and passed by, or put into "
        "the dead-letter topic.",
    )
    middlewares: Annotated[tuple[Annotated[str, AfterValidator(is_entrypoint)], ...], Strict(False)] = Field(
        (),
        examples=[["shop.middlewares:sentry"]],
        description="Contexts around each call of the handler, each as package.module:attribute, the first outermost "
        "(docs/handlers.md#middlewares).",
    )
    mode: Literal["record", "batch", "arrow"] = Field(
        "record",
        description="Call it with one record, with a batch of them, or with a batch as columns, a pyarrow.RecordBatch.",
    )
    ordering: Literal["partition", "key", "none"] = Field(
        "partition",
        description="What a worker handles one after the other: the records of a partition, those of one key in it "
        "(records without a key in any order), or none at all. A failed record that waits for its next try holds up "
        "what comes behind it in that order, and nothing else.",
    )
    concurrency: int | None = Field(
        None,
        ge=1,
        le=1000,
        examples=[32],
        json_schema_extra={"default": "1, or 100 for `async def`"},
        description="Most records that a worker has in hand at a time: threads of a plain function, tasks of an async "
        "one. With 1 it handles one after the other, which is the fastest for handlers that do not wait.",
    )
    batch_max_records: int = Field(
        500, ge=1, le=100_000, description='Most records in one call, with mode = "batch" or "arrow".'
    )
    batch_max_bytes: Count | None = Field(
        None,
        examples=[1_000_000],
        description="Most bytes of values in one batch; a larger record comes alone.",
    )
    batch_max_ms: int = Field(
        0,
        ge=0,
        le=600_000,
        description="How long the first record of a batch may wait for more of its partition; 0: a batch is what is "
        "there at once. Counts only while less than batch_max_records and batch_max_bytes are there.",
    )
    batch_across_partitions: bool = Field(
        False,
        description='With mode = "arrow": a batch has records of all partitions that the worker has, those of each in '
        "their order; batch_max_records, batch_max_bytes and batch_max_ms are of all of them together.",
    )
    value: Decoder = Field(
        "bytes",
        description="What record.data is: bytes, text, json; by [schema_registry] avro, jsonschema, or "
        "protobuf:package.module_pb2:Message; or what a function of yours makes of the bytes, as "
        "package.module:function. A handler whose parameter is annotated with a model needs no setting for JSON.",
    )
    key: Decoder = Field("bytes", description="What record.key_data is; as value.")
    value_schema: str | None = Field(
        None,
        examples=["shop.orders:Order"],
        description='With mode = "arrow" and value = "json": what the values are, as package.module:NAME of a '
        "pyarrow.Schema, or of a dataclass, msgspec.Struct or pydantic model. The batch gets them as its column data.",
    )
    on_undecodable: OnFailure | None = Field(
        None,
        examples=["dead_letter"],
        json_schema_extra={"default": "as `on_failure`"},
        description="What becomes of a record whose value or key cannot be decoded; it is not tried again.",
    )
    max_attempts: Count = Field(
        3, description="Tries of a record (or batch) in all; after the last one on_failure says what happens."
    )
    retry_backoff_ms: Milliseconds = Field(100, description="Wait before the second try.")
    retry_backoff_max_ms: Milliseconds = Field(
        10_000, description="The wait doubles with every try, up to this, each a fifth more or less."
    )
    retry_timeout_ms: Milliseconds | None = Field(
        None,
        examples=[600_000],
        description="No try is due later than this after the first one failed, however many are left. One that then "
        "waits for handler.rate_limit may begin later; if it fails, it was the last.",
    )
    retry_topic_delays_ms: Delays = Field(
        (),
        examples=[[5000, 60_000, 600_000]],
        description="After max_attempts tries a record goes into the retry topic of the first delay, and its partition "
        "goes on; there it has as many tries after that delay, then in the topic of the next; on_failure says what "
        "happens after the last. A failed record so loses its place in the order.",
    )
    retry_topic: Annotated[str, AfterValidator(is_topic_template)] = Field(
        TEMPLATE,
        description="Names of the retry topics, which must exist, one for each delay ({delay}: 5s, 1m), for this group "
        "alone; with [[handlers]] for each of them alone.",
    )
    on_failure: OnFailure = Field(
        "halt",
        description="After the last try: halt the partition before the record, put the record into the dead-letter "
        "topic and go on, or skip it.",
    )
    dead_letter_topic: Annotated[str, AfterValidator(is_kafka_name)] | None = Field(
        None,
        examples=["refunds.dead-letters"],
        json_schema_extra={"default": "as `dead_letters.topic`"},
        description="The dead-letter topic of this handler; dead_letters.topics goes before it, and so does a rule's "
        "own.",
    )
    handler_timeout_ms: Milliseconds | None = Field(
        None,
        examples=[60_000],
        description="A call of the handler that takes longer is interrupted, and the try has failed; if that does not "
        "end it, its worker, or a job's process, is killed, which counts for max_crashes.",
    )
    failures: Annotated[tuple[FailureSettings, ...], Strict(False)] = Field(
        (), description="Other rules for some exceptions, each a table [[handler.failures]]; the first match counts."
    )
    circuit_breaker: CircuitBreakerSettings | None = Field(
        None, description="When the handler is not called for a while, as what it needs is away (docs/limits.md)."
    )
    rate_limit: RateLimitSettings | None = Field(
        None, description="How many records a second may begin, though there are more (docs/limits.md)."
    )
    options: Annotated[Mapping[str, Any], AfterValidator(are_options)] = Field(
        default={},
        examples=[{"currency": "EUR"}],
        description="Anything; passed to the handler's setup(options) in every worker.",
    )

    @property
    def makes_dead_letters(self) -> bool:
        """Whether some failure ends in the dead-letter topic."""
        ends = {self.on_failure, self.on_undecodable, self.on_expired, *(rule.on_failure for rule in self.failures)}
        return "dead_letter" in ends or bool(self.own_dead_letter_topics)

    @property
    def own_dead_letter_topics(self) -> tuple[str, ...]:
        """Dead-letter topics that the handler or one of its rules names."""
        every = (self.dead_letter_topic, *(rule.dead_letter_topic for rule in self.failures))
        return tuple(dict.fromkeys(topic for topic in every if topic is not None))

    @property
    def exception_names(self) -> tuple[str, ...]:
        """Exception classes that rules and the circuit breaker name."""
        breaker = self.circuit_breaker.exceptions if self.circuit_breaker is not None else ()
        return (*(name for rule in self.failures for name in rule.exceptions), *breaker)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(
            self,
            "handler",
            (*RETRY_RULES, *CONCURRENCY_RULES, *COLUMN_RULES, *LIMIT_RULES, *RETRY_TOPIC_RULES, *AGE_RULES),
        )
        for number, each in enumerate(self.filters):
            check(each, f"handler.filters[{number}]", FILTER_RULES)
        for number, rule in enumerate(self.failures):
            check(completed(rule, self), f"handler.failures[{number}]", RETRY_RULES)
        return self


class OneOfHandlers(HandlerSettings):
    """Several handlers in place of [handler], each with the records of its own topics and all settings of [handler]."""

    topics: Annotated[
        tuple[Annotated[str, AfterValidator(is_topic_or_pattern)], ...], Strict(False), Field(min_length=1)
    ] = Field(
        examples=[["orders", "^refunds-.*"]],
        description="Topics whose records it gets; a leading ^ makes a pattern. Who names a topic goes before "
        "patterns, and of these the first one that matches counts. Without group.topics that is all that is consumed.",
    )


def without_topics(handlers: Any) -> Any:
    """The first of [[handlers]] as [handler], for what concerns a worker as a whole. Anything else as it is."""
    first = handlers[0] if isinstance(handlers, list | tuple) and handlers else None
    return {name: value for name, value in first.items() if name != "topics"} if isinstance(first, Mapping) else first


def topics_of(handlers: Any) -> list[Any]:
    """Topics that [[handlers]] name, in their order."""
    tables = handlers if isinstance(handlers, list | tuple) else ()
    named = [table.get("topics", ()) for table in tables if isinstance(table, Mapping)]
    return list(dict.fromkeys(topic for topics in named if isinstance(topics, list | tuple) for topic in topics))


_RULES_OWN = frozenset({"exceptions", "dead_letter_topic"})
"""Settings of a rule that it does not have from [handler]: a reason's topic goes before the handler's, but not before
its."""


def completed(rule: FailureSettings, handler: HandlerSettings) -> FailureSettings:
    """The rule with what it leaves out taken from [handler]."""
    own = {name: value for name, value in rule if value is not None}
    inherited = {name: getattr(handler, name) for name in FailureSettings.model_fields if name not in _RULES_OWN}
    return rule.model_copy(update={**inherited, **own})


def are_letter_topics(topics: Mapping[str, str]) -> Mapping[str, str]:
    """Names of topics, by reasons for which a record is given up."""
    for reason, topic in topics.items():
        if reason not in REASONS:
            raise ValueError(f"no record is given up for the reason {reason!r}; the reasons are {', '.join(REASONS)}")
        is_kafka_name(topic)
    return topics


class DeadLetterSettings(Section):
    """The dead-letter topic, for records that could not be handled (`on_failure = "dead_letter"`)."""

    topic: Annotated[str, AfterValidator(is_kafka_name)] | None = Field(
        None,
        examples=["orders.dead-letters"],
        json_schema_extra={"default": "`<group.id>.dead-letters`"},
        description="The dead-letter topic; it must exist and take the largest records. Set it if only the handler "
        "itself asks for dead letters.",
    )
    topics: Annotated[Mapping[str, str], AfterValidator(are_letter_topics)] = Field(
        default={},
        examples=[{"poison": "orders.poison", "expired": "orders.expired"}],
        description="Other dead-letter topics, by the reason for which a record was given up (docs/failures.md"
        "#several-dead-letter-topics); they must exist, too.",
    )
    headers: Literal["kunicorn", "spring", "connect", "karafka"] = Field(
        "kunicorn",
        description="Whose headers a dead letter has beside kunicorn's own, for tools that read those of Spring Kafka, "
        "Kafka Connect or Karafka (docs/failures.md#headers-that-others-read).",
    )
    delivery_timeout_ms: Milliseconds = Field(
        30_000,
        description="How long the brokers may take to acknowledge a dead letter before it is sent anew; the partition "
        "waits as long as it takes.",
    )


def _consumed(topic: str, settings: Any) -> bool:
    return takes(settings.assign.wanted.topics or settings.group.topics, topic)


DEAD_LETTER_RULES = (
    Rule(
        "dead_letters.topic",
        lambda s: s.dead_letter_topic is None or has_legal_name(s.dead_letter_topic),
        "not set, and {s.dead_letter_topic!r}, made of group.id, is no legal name of a topic; set it",
    ),
    Rule(
        "dead_letters.topics",
        lambda s: not any(_consumed(topic, s) for topic in s.dead_letter_topics if topic != s.dead_letter_topic),
        "one of them, or a dead_letter_topic of a handler or rule, is among group.topics (assign.partitions), too, so "
        "that its letters would be consumed again and again; name another topic, or a pattern that leaves it out",
    ),
    Rule(
        "dead_letters.topic",
        lambda s: s.dead_letter_topic is None or not _consumed(s.dead_letter_topic, s),
        "letters to {s.dead_letter_topic!r} would be consumed again and again, as group.topics (assign.partitions) has "
        "it, too; name another topic, or a pattern that leaves it out",
    ),
)
"""Of the settings as a whole."""


def _handlers_consumed(settings: Any) -> tuple[str, ...]:
    return tuple(settings.assign.wanted.topics or settings.group.topics)


def _only_one_form(settings: Any) -> bool:
    first = without_topics([each.model_dump() for each in settings.handlers])
    return bool(settings.handler.model_dump() == first)


def _twice(settings: Any) -> Iterator[str]:
    named = Counter(topic for each in settings.handlers for topic in set(each.topics))
    return (topic for topic, count in named.items() if count > 1)


def _unhandled(settings: Any) -> Iterator[str]:
    """Topics without a handler. A pattern counts as handled where a handler has it literally: which topics it will
    match nobody knows.
    """
    handlers = [each.topics for each in settings.handlers]
    literal = {topic for topics in handlers for topic in topics}
    for topic in _handlers_consumed(settings):
        if topic not in literal and (topic.startswith("^") or route(handlers, topic) is None):
            yield topic


def _unconsumed(settings: Any) -> Iterator[str]:
    consumed = _handlers_consumed(settings)
    named = (topic for each in settings.handlers for topic in each.topics)
    return (topic for topic in named if topic not in consumed and not _may_be_consumed(consumed, topic))


def _may_be_consumed(consumed: tuple[str, ...], topic: str) -> bool:
    if topic.startswith("^"):
        return any(takes((topic,), name) for name in consumed if not name.startswith("^"))
    return takes(consumed, topic)


_HANDLERS_RULES: Sequence[tuple[Callable[[Any], Iterator[str]], str]] = (
    (_twice, "two of them take {topic!r}; leave it to one of them"),
    (
        _unhandled,
        "none of them takes {topic!r}, which is consumed; add it to the topics of one of them, a pattern as it is "
        "written in group.topics",
    ),
    (
        _unconsumed,
        "{topic!r} is in the topics of one of them, but is not consumed; add it to group.topics, or leave that out",
    ),
)


def handlers_problems(settings: Any) -> list[Problem]:
    """Problems of [[handlers]] beside the other settings."""
    if not settings.handlers:
        return []
    problems = [
        Problem("handlers", NO_VALUE, text.format(topic=topic))
        for broken, text in _HANDLERS_RULES
        for topic in broken(settings)
    ]
    if not _only_one_form(settings):
        problems.append(Problem("handler", NO_VALUE, _TWO_FORMS))
    return problems


_TWO_FORMS = "given beside [[handlers]]; remove one of them: [handler] is for a single one"


def refuse_settings_of_none(handler: Any) -> None:
    """Raise `Contradictions` for settings of [handler] beside [[handlers]] that name no handler, as those of the
    environment do: one that is missing is not what is wrong there.
    """
    if isinstance(handler, Mapping) and handler and "entrypoint" not in handler:
        text = f"{_TWO_FORMS}; each of [[handlers]] has settings of its own"
        raise Contradictions([Problem(f"handler.{name}", NO_VALUE, text) for name in handler])
