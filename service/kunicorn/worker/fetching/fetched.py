"""Fetched messages: runs of records that can be handled in one go, how many of them between two looks at the clock
(`ChunkPace`, in nanoseconds), and errors of the client that end a grant. Pure but for log lines and reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from kunicorn.handler.messages import Run as Records
from kunicorn.handler.messages import columns
from kunicorn.handler.record import Record
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, Stopped
from kunicorn.librdkafka.errors import DAMAGED, RETRIABLE, UNREACHED, fault_of, log_client_error, log_refused_fetch
from kunicorn.positions import NO_EPOCH, TopicPartition


class Run(NamedTuple):
    """Consecutive records of one partition, written under one leader epoch (`NO_EPOCH` where it is unknown)."""

    tp: TopicPartition
    leader_epoch: int
    messages: Records


Fault = tuple[TopicPartition, FailureKind, str]
"""A partition that gives out nothing more, the kind of failure, and the error for people."""


class Taken(NamedTuple):
    """What a client has given out. A partition's fault comes after its records."""

    runs: Iterable[Run]
    faults: Iterable[Fault]


_MESSAGE_BYTES = 500
"""What a message takes besides its value, in librdkafka and as Python's object."""


def kept_bytes(messages: Records) -> int:
    """Memory of the records; of messages it is a guess: keys and headers are taken to be as large as the first's."""
    if (rows := columns(messages)) is not None:
        return rows.nbytes
    beside_value = _MESSAGE_BYTES + len(messages[0].key() or b"") + headers_bytes(messages[0])
    return sum(map(len, messages)) + beside_value * len(messages)


def headers_bytes(message: Message) -> int:
    """Memory of one message's headers. Callers look at one message of many, as producers set the same on every record:
    reading headers costs as much as all the rest of a record.
    """
    return sum(len(name) + len(value or b"") for name, value in Record.of(message).headers)


def runs(batch: Sequence[Message], several_topics: bool) -> Iterator[Run]:
    """The batch's runs in order. `several_topics`: whether neighbours with one number may be of different topics."""
    for tp, messages in _pieces(batch, several_topics):
        yield from _by_epoch(tp, messages)


def gathered_runs(batch: Sequence[Message], several_topics: bool) -> Iterator[Run]:
    """As `runs`, but with each partition's records together, every partition in its own order.

    Brokers answer with whatever each partition has got meanwhile, so a topic that is written to evenly arrives two or
    three records of a partition at a time. A handler of batches would be called with those, and fall behind.
    """
    whole: dict[TopicPartition, list[Message]] = {}
    for tp, messages in _pieces(batch, several_topics):
        if tp in whole:
            whole[tp] += messages
        else:
            whole[tp] = messages
    for tp, messages in whole.items():
        yield from _by_epoch(tp, messages)


def _pieces(batch: Sequence[Message], several_topics: bool) -> Iterator[tuple[TopicPartition, list[Message]]]:
    """Neighbouring messages of one partition. Grouping is done by C functions, one attribute at a time: a key function
    in Python would cost more than the handler.
    """
    for number, group in groupby(batch, Message.partition):
        of_number = list(group)
        parts = [list(part) for _, part in groupby(of_number, Message.topic)] if several_topics else [of_number]
        for messages in parts:
            yield TopicPartition(messages[0].topic() or "", -1 if number is None else number), messages


def _by_epoch(tp: TopicPartition, messages: list[Message]) -> Iterator[Run]:
    """Runs of one leader epoch each. Epochs only grow along a partition, so equal ends mean one epoch."""
    first = messages[0].leader_epoch()
    if first == messages[-1].leader_epoch():
        yield Run(tp, NO_EPOCH if first is None else first, messages)
        return
    for epoch, part in groupby(messages, Message.leader_epoch):
        yield Run(tp, NO_EPOCH if epoch is None else epoch, list(part))


MAX_CHUNK = 1000
_CHUNK_NS = 1_000_000


class ChunkPace:
    """Number of records between two looks at the clock: grows with fast handlers, and falls to one record with slow
    ones.

    Between two looks at the clock the lease may run out unseen by the runner (the control thread sees it, but only when
    it gets the interpreter), so a chunk shall stay in the order of a millisecond.
    """

    def __init__(self) -> None:
        self.size = 1

    def took(self, records: int, duration: int) -> None:
        """Note a finished chunk."""
        if duration > _CHUNK_NS:
            # In proportion: a fast handler whose worker had to wait for a processor is not slow.
            self.size = max(1, records * _CHUNK_NS // duration)
        elif records >= self.size:
            self.size = min(self.size * 2, MAX_CHUNK)


FAULTS: Mapping[int, FailureKind | None] = {
    KafkaError._AUTO_OFFSET_RESET: FailureKind.OUT_OF_RANGE,
    KafkaError.OFFSET_OUT_OF_RANGE: FailureKind.OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION: FailureKind.TRUNCATED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: FailureKind.DENIED,
    # librdkafka tries again by itself.
    **dict.fromkeys(RETRIABLE | UNREACHED),
    KafkaError._PARTITION_EOF: None,
    KafkaError._MAX_POLL_EXCEEDED: None,
}
"""None: the grant goes on. A code that is not here ends the grant as `PARTITION`: the partition would stay silent."""

_TRUNCATION_TEXT = "log truncation"
"""librdkafka reports a truncation with the code of a reset (rd_kafka_offset_reset); only the text tells them apart."""


def kind_of(code: int, text: str) -> FailureKind | None:
    """Failure kind with which the grant ends; None where it goes on."""
    kind = FAULTS.get(code, FailureKind.PARTITION)
    if kind is FailureKind.OUT_OF_RANGE and _TRUNCATION_TEXT in text.lower():
        return FailureKind.TRUNCATED
    return kind


def explained(tp: TopicPartition, kind: FailureKind, code: int, text: str) -> str:
    """What happened and, where only a person can help, what to do: librdkafka's text names neither a missing right nor
    its topic."""
    if kind not in (FailureKind.DENIED, FailureKind.PARTITION):
        return text
    then = "; none behind them is handled until kunicorn resume, or kunicorn seek" if code in DAMAGED else ""
    return f"{text}: {fault_of(code).remedy(topic=f'topic {tp.topic!r}', rights='READ')}{then}"


def no_start(start: FetcherStart) -> Failed:
    """Report of a partition without a start offset. librdkafka reads -1 as "from the end" and -2 as "from the
    beginning": no start offset is guessed.
    """
    text = (
        f"{start.topic}-{start.partition} has no start offset ({start.offset}): nothing is committed, the handler's "
        f'load_offsets gave none, and auto_offset_reset is "none"; give it one'
    )
    return Failed(start.grant, FailureKind.PARTITION, start.offset, start.leader_epoch, text)


def refused(tp: TopicPartition, final: Stopped, error: KafkaException) -> Failed:
    """Report of a partition whose assignment the client does not take."""
    text = f"the client refuses to fetch {tp} from offset {final.offset}: {error}"
    return Failed(final.grant, FailureKind.PARTITION, final.offset, final.leader_epoch, text)


def ends_grant(error: KafkaError) -> bool:
    """Whether the partition would stay silent, or has a gap, behind that error."""
    return kind_of(error.code(), error.str()) is not None


def faults_of(errors: Iterable[Message]) -> Iterator[Fault]:
    """Of the client's errors those that end a partition's grant; the others are logged."""
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
            yield tp, kind, explained(tp, kind, error.code(), error.str())
