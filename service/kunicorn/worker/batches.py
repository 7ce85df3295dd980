"""Cutting what the client returned into runs that can be handled in one go. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from confluent_kafka import Message

from kunicorn.records import Record
from kunicorn.topics import NO_EPOCH, TopicPartition


class Run(NamedTuple):
    """Consecutive records of one partition, written under one leader epoch (`NO_EPOCH` where it is unknown)."""

    tp: TopicPartition
    leader_epoch: int
    messages: list[Message]


_MESSAGE_BYTES = 500
"""What a message takes besides its value, in librdkafka and as Python's object."""


def kept_bytes(messages: Sequence[Message]) -> int:
    """What they take in memory, about: keys and headers are taken to be as large as the first one's."""
    beside_value = _MESSAGE_BYTES + len(messages[0].key() or b"") + headers_bytes(messages[0])
    return sum(map(len, messages)) + beside_value * len(messages)


def headers_bytes(message: Message) -> int:
    """What its headers take. Whoever counts those of many looks at one of them, as producers set the same on every
    record: reading them costs as much as all the rest of a record."""
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
    """Neighbours of one partition. Grouping is done by C functions, one attribute at a time: a key function in Python
    would cost more than the handler."""
    for number, group in groupby(batch, Message.partition):
        of_number = list(group)
        parts = [list(part) for _, part in groupby(of_number, Message.topic)] if several_topics else [of_number]
        for messages in parts:
            yield TopicPartition(messages[0].topic() or "", -1 if number is None else number), messages


def _by_epoch(tp: TopicPartition, messages: list[Message]) -> Iterator[Run]:
    """Epochs only grow along a partition, so equal ends mean one epoch."""
    first = messages[0].leader_epoch()
    if first == messages[-1].leader_epoch():
        yield Run(tp, NO_EPOCH if first is None else first, messages)
        return
    for epoch, part in groupby(messages, Message.leader_epoch):
        yield Run(tp, NO_EPOCH if epoch is None else epoch, list(part))
