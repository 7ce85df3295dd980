"""How a grant ends by itself, other than by its handler: what librdkafka reports or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message

from kunicorn.complaints import DAMAGED, REMEDY_OF_DAMAGE, RETRIABLE, log_client_error, log_refused_fetch
from kunicorn.pipes.messages import Failed, FailureKind, FetcherStart, Stopped
from kunicorn.topics import TopicPartition

FAULTS: Mapping[int, FailureKind | None] = {
    KafkaError._AUTO_OFFSET_RESET: FailureKind.OUT_OF_RANGE,
    KafkaError.OFFSET_OUT_OF_RANGE: FailureKind.OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION: FailureKind.TRUNCATED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: FailureKind.DENIED,
    # librdkafka tries again by itself.
    **dict.fromkeys(RETRIABLE),
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


def explained(tp: TopicPartition, code: int, text: str) -> str:
    """What happened, and what to do; librdkafka's text names neither a missing right nor its topic."""
    if code in DAMAGED:
        return f"{text}: {REMEDY_OF_DAMAGE}"
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"{text}: this user needs READ on topic {tp.topic!r}"
    return text


def no_start(start: FetcherStart) -> Failed:
    """librdkafka reads -1 as "from the end" and -2 as "from the beginning": no start offset is guessed."""
    text = (
        f"{start.topic}-{start.partition} has no start offset ({start.offset}): nothing is committed, the handler's "
        f'load_offsets gave none, and auto_offset_reset is "none"; give it one'
    )
    return Failed(start.grant, FailureKind.PARTITION, start.offset, start.leader_epoch, text)


def refused(tp: TopicPartition, final: Stopped, error: KafkaException) -> Failed:
    """The client does not take the assignment."""
    text = f"the client refuses to fetch {tp} from offset {final.offset}: {error}"
    return Failed(final.grant, FailureKind.PARTITION, final.offset, final.leader_epoch, text)


def ends_grant(error: KafkaError) -> bool:
    """Whether the partition would stay silent, or has a gap, behind that error."""
    return kind_of(error.code(), error.str()) is not None


def meet_errors(errors: Iterable[Message], broken: Callable[[TopicPartition, FailureKind, str], None]) -> None:
    """What the client gave out in place of records: those that end a partition's grant are told to `broken`."""
    for message in errors:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is None:
            continue
        if (kind := kind_of(error.code(), error.str())) is None:
            if error.code() in RETRIABLE:
                log_refused_fetch(message)
            continue
        if topic is None or partition is None or partition < 0:
            log_client_error(error)
        else:
            tp = TopicPartition(topic, partition)
            broken(tp, kind, explained(tp, error.code(), error.str()))
