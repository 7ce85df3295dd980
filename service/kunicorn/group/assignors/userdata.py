"""The bytes that sticky members add to their Subscription, as the Java client lays them out: no version in front.

Reading never raises: whatever a stranger's client put there, the group must still get a plan.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from kunicorn.topics import TopicPartition

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def pack_generation(generation: int) -> bytes:
    """CooperativeStickyAssignor's user data: the generation alone, for peers whose Subscription (before version 2,
    KIP-792) has no field for it."""
    return _INT32.pack(generation)


def unpack_generation(data: bytes | None) -> int | None:
    """The generation in CooperativeStickyAssignor's user data; None where there is none."""
    return _INT32.unpack_from(data)[0] if data is not None and len(data) >= _INT32.size else None


def pack_assignment(partitions: Collection[TopicPartition], generation: int) -> bytes:
    """StickyAssignorUserData version 1: the previous assignment by topic, and the generation it is of (KIP-341)."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    parts = [_INT32.pack(len(numbers))]
    for topic, of_topic in numbers.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(of_topic)}i", len(of_topic), *of_topic)]
    return b"".join([*parts, _INT32.pack(generation)])


def unpack_assignment(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int | None]:
    """The previous assignment in StickyAssignor's user data and its generation, None in version 0.

    Nothing is claimed by data that cannot be read.
    """
    try:
        return _read_assignment(memoryview(data or b""))
    except (struct.error, UnicodeDecodeError):
        return (), None


def _read_assignment(data: memoryview) -> tuple[tuple[TopicPartition, ...], int | None]:
    partitions: list[TopicPartition] = []
    (topics,), at = _INT32.unpack_from(data), _INT32.size
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, at)
        if length < 0:
            # Reading would go backwards, over the same bytes again and again.
            raise struct.error("a topic's name has a negative length")
        at += _INT16.size
        topic = str(data[at : at + length], "utf-8")
        at += length
        (count,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        partitions += [TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", data, at)]
        at += count * _INT32.size
    generation = _INT32.unpack_from(data, at)[0] if len(data) - at >= _INT32.size else None
    return tuple(partitions), generation
