"""The section [producing]: whether what handlers return is sent, and with which guarantee. Pure.

A setting that Kafka's producer has keeps its name (`ProducerConfig.java`), dots turned into underscores, and its unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from kunicorn.handler.config import takes
from kunicorn.settings.checks import (
    MOST_MILLISECONDS,
    Milliseconds,
    Section,
    is_encoder,
    is_kafka_name,
    is_schema_source,
    is_transactional_id,
    needs_registry,
    producer_librdkafka_properties,
)
from kunicorn.settings.rules import Rule, check

TRANSACTIONS = "transactions"


Encoder = Annotated[str, AfterValidator(is_encoder)]
SchemaSource = Annotated[str, AfterValidator(is_schema_source)]


def _registered(section: Any) -> list[str]:
    """Parts that are written by a schema of the registry."""
    return [part for part in ("value", "key") if needs_registry(getattr(section, part))]


def _has_schema(section: Any, part: str) -> bool:
    """Whether the schema is the service's own, which may be registered, and whose record has a name."""
    source: str | None = getattr(section, f"{part}_schema")
    if source is None:
        return str(getattr(section, part)).startswith("protobuf")
    return source != "latest" and source.partition(":")[0] not in {"id", "version"}


def _names_record(section: Any, part: str) -> bool:
    return _has_schema(section, part) or str(getattr(section, part)).startswith("protobuf")


_ENCODING_RULES = (
    *(
        Rule(
            f"{part}_schema",
            lambda s, part=part: getattr(s, f"{part}_schema") is None or part in _registered(s),  # type: ignore[misc]
            f"set, but {part} = {{s.{part}!r}} is written by no schema; remove it, or set {part} to avro, jsonschema "
            f"or protobuf",
        )
        for part in ("value", "key")
    ),
    Rule(
        "register_schemas",
        lambda s: not s.register_schemas or any(_has_schema(s, part) for part in _registered(s)),
        "there is no schema to register; name one of yours in value_schema or key_schema (file:order.avsc), or remove "
        "it",
    ),
    Rule(
        "subject_name_strategy",
        lambda s: (
            s.subject_name_strategy == "topic"
            or (bool(_registered(s)) and all(_names_record(s, part) for part in _registered(s)))
        ),
        "{s.subject_name_strategy!r} goes by the record's name, which is known from a schema of yours alone; name that "
        "in value_schema (key_schema), or remove the strategy",
    ),
)
"""Of [producing], and of each of its topics."""


class EncodingSettings(Section):
    """How what is sent is encoded."""

    value: Encoder = Field(
        "bytes",
        description="How values are written: bytes (or text), json; by [schema_registry] avro, jsonschema, or protobuf "
        "(protobuf:package.module_pb2:Message writes dicts and models, too); or by a function of yours, as "
        "package.module:function. Then a handler may also return models.",
    )
    key: Encoder = Field("bytes", description="How keys are written; as value.")
    headers: Literal["bytes", "json"] = Field(
        "bytes",
        description="How values of headers are written that are neither text nor bytes: not at all, or as JSON.",
    )
    value_schema: SchemaSource | None = Field(
        None,
        examples=["file:schemas/total.avsc"],
        json_schema_extra={"default": "latest; with protobuf the message's class"},
        description="By which schema values are written: the subject's latest, id:7 or version:3 of the registry; or "
        "one of yours, file:total.avsc or package.module:attribute (a text, a dict, for jsonschema a model's class).",
    )
    key_schema: SchemaSource | None = Field(
        None,
        examples=["id:7"],
        json_schema_extra={"default": "as `value_schema`"},
        description="By which schema keys are written; as value_schema.",
    )
    subject_name_strategy: Literal["topic", "record", "topic_record"] = Field(
        "topic",
        description="The subject of a schema: orders-value (orders-key), the record's full name, or both: "
        "orders-shop.Order.",
    )
    register_schemas: bool = Field(
        False, description="Whether workers register a schema of yours that its subject does not have yet."
    )


class OutputTopicSettings(EncodingSettings):
    """How what is sent to one topic is encoded; what is left out has its default, not the value of [producing]."""

    topic: Annotated[str, AfterValidator(is_kafka_name)] = Field(description="The topic.", examples=["invoices"])


class ProducingSettings(EncodingSettings):
    """Sending of the records that handlers return or yield (`kunicorn.Send`)."""

    delivery: Literal["at_least_once", "transactions"] | None = Field(
        None,
        examples=["at_least_once"],
        description="Sends what handlers return: at_least_once has it acknowledged before the record's offset is "
        "committed, transactions commits both together (exactly once, docs/exactly-once.md). Unset, nothing is sent.",
    )
    topic: Annotated[str, AfterValidator(is_kafka_name)] | None = Field(
        None, examples=["totals"], description="Where a Send goes that names no topic; it must exist."
    )
    transactional_id_prefix: Annotated[str, AfterValidator(is_transactional_id)] | None = Field(
        None,
        examples=["orders-0"],
        json_schema_extra={"default": "`<group.id>-<group_instance_id, or host name>`"},
        description="Beginning of the workers' transactional.id: the same after a restart, so that what was left open "
        "is ended at once, and never that of two living members: each would fence the other's workers.",
    )
    transaction_max_records: int = Field(
        10_000, ge=1, le=1_000_000, description="Most records handled in one transaction."
    )
    transaction_max_ms: Milliseconds = Field(
        100, description="A transaction is committed at the latest this long after its first record was handled."
    )
    transaction_timeout_ms: int = Field(
        10_000,
        ge=1_000,
        le=MOST_MILLISECONDS,
        description="The brokers abort a transaction that is open for longer; so long may a partition wait whose "
        "member died and did not come back. It is open only while outputs are sent, not while the handler works.",
    )
    delivery_timeout_ms: Milliseconds = Field(
        30_000,
        description="How long the brokers may take to acknowledge a record before it is sent anew; with transactions "
        "no more than transaction_timeout_ms counts.",
    )
    linger_ms: int = Field(5, ge=0, le=900_000, description="How long outputs gather before they are sent together.")
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        "none",
        description="How outputs are compressed; in transactions also dead letters and records for retry topics, which "
        "otherwise have zstd.",
    )
    acks: Literal["all", "1"] = Field(
        "all",
        description="Which replicas must have an output; with 1 the end of a broker can lose it. Of dead letters and "
        "records for retry topics all must.",
    )
    buffer_memory: int = Field(
        33_554_432,
        ge=1_048_576,
        le=2_147_483_647,
        description="Bytes of outputs in one worker that are not acknowledged; above it the handler waits.",
    )
    librdkafka: Annotated[Mapping[str, str | int | float | bool], BeforeValidator(producer_librdkafka_properties)] = (
        Field(
            default={},
            examples=[{"batch.size": 1_000_000}],
            description="Further librdkafka properties of the workers' producers, their dotted names in quotes.",
        )
    )

    topics: Annotated[tuple[OutputTopicSettings, ...], Strict(False)] = Field(
        (), description="Other encodings for some topics, each a table [[producing.topics]]."
    )

    @property
    def encodes(self) -> bool:
        """Whether something other than bytes is sent."""
        return any({each.value, each.key, each.headers} != {"bytes"} for each in (self, *self.topics))

    @property
    def output_topics(self) -> dict[str, str]:
        """Topics that are named for what is sent, with the setting that names each; none where nothing is sent."""
        if self.delivery is None:
            return {}
        default = {} if self.topic is None else {self.topic: "producing.topic"}
        return {**{each.topic: "producing.topics" for each in self.topics}, **default}

    @property
    def own_topics(self) -> frozenset[str]:
        """Topics with an encoding of their own."""
        return frozenset(each.topic for each in self.topics)

    @property
    def needs_registry(self) -> bool:
        """Whether something is written by a schema of the registry."""
        return any(_registered(each) for each in (self, *self.topics))

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(self, "producing", _ENCODING_RULES)
        for number, topic in enumerate(self.topics):
            check(topic, f"producing.topics[{number}]", _ENCODING_RULES)
        return self

    @property
    def given_up_after_ms(self) -> int:
        """How long an output may be on its way before it is sent anew."""
        longest = self.delivery_timeout_ms
        return min(longest, self.transaction_timeout_ms) if self.in_transactions else longest

    @property
    def in_transactions(self) -> bool:
        """Whether workers commit outputs and offsets together, in transactions."""
        return self.delivery == TRANSACTIONS


def _consumed(topic: str, settings: Any) -> bool:
    return takes(settings.assign.wanted.topics or settings.group.topics, topic)


PRODUCING_RULES = (
    Rule(
        "producing.delivery",
        lambda s: not (s.producing.in_transactions and s.assigned),
        "transactions commit offsets for a group, and with assign.partitions there is none; use at_least_once, or "
        "remove [assign]",
    ),
    Rule(
        "producing.delivery",
        lambda s: s.producing.delivery is None or not any(each.batch_across_partitions for each in s.every_handler),
        "what a call returns is sent with the offsets of its partition, and with batch_across_partitions = true it has "
        "several; remove one of them",
    ),
    Rule(
        "producing.linger_ms",
        lambda s: s.producing.delivery is None or s.producing.linger_ms < s.producing.given_up_after_ms,
        "not below producing.delivery_timeout_ms, or in transactions producing.transaction_timeout_ms: each output "
        "would be given up before it is sent; lower it",
    ),
    Rule(
        "producing.acks",
        lambda s: s.producing.acks == "all" or not s.producing.in_transactions,
        'below "all", which transactions need; remove it, or use delivery = "at_least_once"',
    ),
    Rule(
        "producing.topic",
        lambda s: s.producing.topic is None or not _consumed(s.producing.topic, s),
        "what is sent there would be consumed again, as group.topics (assign.partitions) has it, too; name another "
        "topic, or a pattern that leaves it out",
    ),
    Rule(
        "producing.topics",
        lambda s: not any(_consumed(topic, s) for topic in s.producing.own_topics),
        "what is sent to one of them would be consumed again, as group.topics (assign.partitions) has it, too; name "
        "another topic, or a pattern that leaves it out",
    ),
    Rule(
        "producing.topics",
        lambda s: len(s.producing.own_topics) == len(s.producing.topics),
        "names a topic twice; say all of a topic in one table",
    ),
    Rule(
        "producing.delivery",
        lambda s: s.producing.delivery is not None or not s.producing.encodes,
        "not set, so that nothing is sent, although it is said how outputs are encoded; set it, or remove that",
    ),
    Rule(
        "producing.value",
        lambda s: s.schema_registry.url is not None or not s.producing.needs_registry,
        "an encoding (value or key, also of one of the topics) needs schemas, but schema_registry.url is not set; set "
        "it",
    ),
)
"""Of the settings as a whole."""
