"""The section [producing]: whether what handlers return is sent, and with which guarantee. Pure.

A setting that Kafka's producer has keeps its name (`ProducerConfig.java`), dots turned into underscores, and its unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from kunicorn.settings.checks import (
    Milliseconds,
    Section,
    is_kafka_name,
    is_transactional_id,
    producer_librdkafka_properties,
)
from kunicorn.settings.rules import Rule

TRANSACTIONS = "transactions"


class ProducingSettings(Section):
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
    transaction_timeout_ms: Milliseconds = Field(
        10_000,
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
        "none", description="How outputs are compressed."
    )
    acks: Literal["all", "1"] = Field(
        "all", description="Which replicas must have an output; with 1 the end of a broker can lose it."
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

    @property
    def in_transactions(self) -> bool:
        """Whether workers commit outputs and offsets together, in transactions."""
        return self.delivery == TRANSACTIONS


def _consumed(topic: str, settings: Any) -> bool:
    names = settings.assign.wanted.topics or settings.group.topics
    return any(re.match(name, topic) if name.startswith("^") else name == topic for name in names)


PRODUCING_RULES = (
    Rule(
        "producing.delivery",
        lambda s: not (s.producing.in_transactions and s.assigned),
        "transactions commit offsets for a group, and with assign.partitions there is none; use at_least_once, or "
        "remove [assign]",
    ),
    Rule(
        "producing.acks",
        lambda s: s.producing.acks == "all" or not s.producing.in_transactions,
        'below "all", which transactions need; remove it, or use delivery = "at_least_once"',
    ),
    Rule(
        "producing.delivery",
        lambda s: s.producing.delivery is None or not any(each.batch_max_ms for each in s.every_handler),
        "set beside a handler.batch_max_ms: where outputs are sent, batches do not wait for "
        "more records; remove one of them",
    ),
    Rule(
        "producing.topic",
        lambda s: s.producing.topic is None or not _consumed(s.producing.topic, s),
        "what is sent there would be consumed again, as group.topics (assign.partitions) has it, too; name another "
        "topic, or a pattern that leaves it out",
    ),
)
"""Of the settings as a whole."""
