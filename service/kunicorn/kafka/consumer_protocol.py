"""Bytes that members of a classic group send one another through the coordinator: subscriptions and assignments
(KIP-54).

Two octets of version, then a message that is never flexible. The broker checks none of it, and any client that joins
the group can write it, so nothing read here may be able to stop the group.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any

from kio.schema.consumer_protocol_assignment.v0 import data as assignment_v0
from kio.schema.consumer_protocol_subscription.v3 import data as subscription_v3

from kunicorn.group.protocol import NO_GENERATION, Subscription
from kunicorn.kafka.codec import decode, encode
from kunicorn.kafka.errors import ProtocolError
from kunicorn.kafka.tolerant_reader import UNREADABLE
from kunicorn.kafka.versions import Schema
from kunicorn.positions import TopicPartition

logger = logging.getLogger("kunicorn.wire.consumer_protocol")

COOPERATIVE_STICKY = "cooperative-sticky"

_VERSION = struct.Struct(">h")
_GENERATION = struct.Struct(">i")

_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0
"""The one that every client reads; the later ones have the same layout."""


def encode_subscription(assignor: str, subscription: Subscription) -> bytes:
    """A member's metadata in JoinGroup, under one of its assignors.

    Sorted, because the broker starts a rebalance when the bytes of a rejoining member differ from the last ones.
    """
    user_data = subscription.user_data
    if user_data is None and assignor == COOPERATIVE_STICKY:
        # Members that read only version 1 find the generation here (`CooperativeStickyAssignor.java`).
        user_data = _GENERATION.pack(subscription.generation)
    message: Any = subscription_v3.ConsumerProtocolSubscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=user_data,
        owned_partitions=_by_topic(subscription_v3.TopicPartition, subscription.owned),
        generation_id=subscription.generation,  # type: ignore[arg-type]
        rack_id=subscription.rack,
    )
    return _VERSION.pack(_SUBSCRIPTION_VERSION) + encode(message)


def decode_subscription(assignor: str | None, member_id: str, data: bytes) -> Subscription:
    """A member's subscription. Unreadable metadata counts as an empty one: one broken client must not stop the
    group.
    """
    try:
        message = _decode(_subscription, _SUBSCRIPTION_VERSION, data)
    except UNREADABLE as error:
        logger.warning(
            "member %s of the group sent a subscription that cannot be read, and gets no partitions: %s: %s",
            member_id, type(error).__name__, error,
        )  # fmt: skip
        return Subscription(())
    generation = int(getattr(message, "generation_id", NO_GENERATION))
    if generation < 0 and assignor == COOPERATIVE_STICKY:
        generation = _generation_in(message.user_data)
    return Subscription(
        topics=tuple(dict.fromkeys(topic for topic in message.topics or () if topic)),
        owned=_partitions(getattr(message, "owned_partitions", None)),
        generation=generation if generation >= 0 else NO_GENERATION,
        rack=getattr(message, "rack_id", None),
        user_data=message.user_data,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """One member's part of the leader's plan, for SyncGroup."""
    message = assignment_v0.ConsumerProtocolAssignment(
        assigned_partitions=_by_topic(assignment_v0.TopicPartition, partitions), user_data=None
    )
    return _VERSION.pack(_ASSIGNMENT_VERSION) + encode(message)


def decode_assignment(data: bytes | None) -> tuple[TopicPartition, ...]:
    """This member's part of the leader's plan. Raises `ProtocolError` if it cannot be read.

    No bytes at all mean no partitions: the broker fills them in for members that the leader left out.
    """
    if not data:
        return ()
    try:
        message = _decode(lambda _: assignment_v0.ConsumerProtocolAssignment, _ASSIGNMENT_VERSION, data)
    except UNREADABLE as error:
        raise ProtocolError(
            f"the group's leader sent an assignment that cannot be read ({len(data)} bytes): "
            f"{type(error).__name__}: {error}"
        ) from error
    return _partitions(message.assigned_partitions)


@cache
def _subscription(version: int) -> Schema:
    """kio's class of that version; older members' are loaded when one of them turns up."""
    return import_module(f"kio.schema.consumer_protocol_subscription.v{version}.data").ConsumerProtocolSubscription


def _decode(layout: Callable[[int], Schema], newest: int, data: bytes) -> Any:
    """Message by the layout of the version in front, or the newest we know: later versions only add at the end.

    Bytes left over belong to such additions (`ConsumerProtocol.java`). Raises one of `UNREADABLE`.
    """
    if len(data) < _VERSION.size:
        raise ValueError(f"{len(data)} bytes, too short for a version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise ValueError(f"version {version}")
    message, _ = decode(layout(min(version, newest)), bytes(data), _VERSION.size)
    return message


def _generation_in(user_data: bytes | None) -> int:
    if user_data is None or len(user_data) != _GENERATION.size:
        return NO_GENERATION
    return int(_GENERATION.unpack(user_data)[0])


def _by_topic(schema: Schema, partitions: Iterable[TopicPartition]) -> tuple[Any, ...]:
    return tuple(
        schema(topic=topic, partitions=tuple(each.partition for each in group))
        for topic, group in groupby(sorted(set(partitions)), key=lambda each: each.topic)
    )


def _partitions(topics: Any) -> tuple[TopicPartition, ...]:
    """Partitions in the order sent, without repetitions and negative numbers: both have been seen from clients."""
    return tuple(
        dict.fromkeys(
            TopicPartition(topic.topic, int(partition))
            for topic in topics or ()
            for partition in topic.partitions or ()
            if topic.topic and partition >= 0
        )
    )
