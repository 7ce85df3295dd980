"""What librdkafka reports in place of a record, and what it means for the grant: one table."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from kunicorn.pipes.messages import FailureKind

FAULTS: Mapping[int, FailureKind | None] = {
    KafkaError._AUTO_OFFSET_RESET: FailureKind.OUT_OF_RANGE,
    KafkaError.OFFSET_OUT_OF_RANGE: FailureKind.OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION: FailureKind.TRUNCATED,
    # Not the partition's fault; librdkafka tries again by itself.
    KafkaError._TRANSPORT: None,
    KafkaError._ALL_BROKERS_DOWN: None,
    KafkaError._TIMED_OUT: None,
    KafkaError._RESOLVE: None,
    KafkaError._PARTITION_EOF: None,
    KafkaError._MAX_POLL_EXCEEDED: None,
}
"""None: the grant goes on. A code that is not here ends the grant as `PARTITION`: the partition would stay silent."""

_TRUNCATION_TEXT = "log truncation"
"""librdkafka reports a truncation with the code of a reset (rd_kafka_offset_reset); only the text tells them apart."""


def kind_of(code: int, text: str) -> FailureKind | None:
    """Why the grant ends; None where it does not."""
    kind = FAULTS.get(code, FailureKind.PARTITION)
    if kind is FailureKind.OUT_OF_RANGE and _TRUNCATION_TEXT in text.lower():
        return FailureKind.TRUNCATED
    return kind
