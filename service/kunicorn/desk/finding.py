"""Finding one record, and saying why there is none at an offset."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from kunicorn.clients import consumer_properties
from kunicorn.errors import ConfigError, PeerError
from kunicorn.fetching import Damaged, fetch
from kunicorn.pipes.logins import Token
from kunicorn.settings import Settings
from kunicorn.topics import TopicPartition
from kunicorn.visits import REQUEST_TIMEOUT, fetch_token, open_cluster, unreached
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.errors import AuthenticationFailed
from kunicorn.wire.log_offsets import EARLIEST, LATEST, list_offsets

_NEIGHBOURS = 100
"""Offsets before and behind, for the nearest records where there is none."""
_PATIENCE = 15.0


def find(settings: Settings, tp: TopicPartition, offset: int) -> Message:
    """The record. Blocks for seconds.

    Raises `ConfigError` where there is none: which of topic, partition and offset is wrong, and what there is.
    """
    try:
        with asyncio.Runner() as runner:
            token = runner.run(fetch_token(settings.kafka))
            first, end = runner.run(_bounds(settings, token, tp))
    except AuthenticationFailed as error:
        raise ConfigError(str(error)) from error
    except PeerError as error:
        raise ConfigError(unreached(error)) from error
    if first >= end:
        raise ConfigError(f"{tp} is empty: its log begins and ends at offset {end}")
    if not first <= offset < end:
        raise ConfigError(f"{tp} has no offset {offset}: its log has {first} to {end - 1}")
    around = (*tp, max(first, offset - _NEIGHBOURS), min(end, offset + _NEIGHBOURS))
    try:
        records = _fetched(settings, token, around, {})
    except Damaged as damage:
        if (found := _at(damage.found, offset)) is None:
            raise
        return found
    found = _at(records, offset)
    if found is None:
        raise ConfigError(f"{tp}@{offset} {_why(settings, token, around, offset)}; {_nearest(records, offset)}")
    return found


async def _bounds(settings: Settings, token: Token | None, tp: TopicPartition) -> tuple[int, int]:
    """Where the log begins and ends. Raises `ConfigError`, `PeerError`."""
    cluster = open_cluster(settings.kafka, token)
    try:
        topic = (await cluster.refresh((tp.topic,))).topics.get(tp.topic)
        error = topic.error if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None or error or not topic.partitions:
            raise ConfigError(f"topic {tp.topic!r}: {describe(error)}; correct the name, or grant this user READ on it")
        if tp.partition not in topic.partitions:
            raise ConfigError(
                f"topic {tp.topic!r} has no partition {tp.partition}: it has 0-{len(topic.partitions) - 1}"
            )
        ends = [(await list_offsets(cluster, {tp: at}, 0, REQUEST_TIMEOUT))[tp] for at in (EARLIEST, LATEST)]
    finally:
        await cluster.close()
    if failed := next((each.error for each in ends if each.error), 0):
        raise ConfigError(f"{tp}: {describe(failed)}; try again")
    return ends[0].offset, ends[1].offset


def _fetched(
    settings: Settings, token: Token | None, around: tuple[str, int, int, int], more: dict[str, Any]
) -> list[Message]:
    own = consumer_properties(settings, f"{settings.kafka.client_id}-replay-one")
    return fetch({**own, "log_level": 0, **more}, token, [around], _PATIENCE)


def _at(records: Sequence[Message], offset: int) -> Message | None:
    return next((each for each in records if each.offset() == offset), None)


def _why(settings: Settings, token: Token | None, around: tuple[str, int, int, int], offset: int) -> str:
    """A marker, and a record that compaction took, leave the same gap behind; one of a transaction does not."""
    if settings.kafka.isolation_level == "read_committed":
        every = _fetched(settings, token, around, {"isolation.level": "read_uncommitted"})
        if _at(every, offset) is not None:
            return "belongs to a transaction that was aborted or is still open (kafka.isolation_level hides it)"
    return "is no record: compaction has removed it, or a transaction's marker stands there"


def _nearest(records: Sequence[Message], offset: int) -> str:
    offsets = sorted(each.offset() or 0 for each in records)
    before = max((each for each in offsets if each < offset), default=None)
    after = min((each for each in offsets if each > offset), default=None)
    near = [f"{each} {word}" for each, word in ((before, "before"), (after, "behind")) if each is not None]
    return f"the nearest records are {' and '.join(near)}" if near else f"none is within {_NEIGHBOURS} offsets of it"
