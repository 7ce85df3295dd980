"""Offsets that a handler keeps beside its effects (`load_offsets`): what it said is checked, starts are moved. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kunicorn.pipes.messages import FetcherStart
from kunicorn.topics import NO_EPOCH, TopicPartition


def kept_offsets(returned: Any, asked: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """What `load_offsets` said of the partitions it was asked for. Raises `TypeError` or `ValueError`."""
    if not isinstance(returned, Mapping):
        raise TypeError(f"load_offsets returned {type(returned).__name__}; return a dict from partition to next offset")
    kept: dict[TopicPartition, int] = {}
    for tp in asked:
        offset = returned.get(tp)
        if offset is None:
            continue
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise TypeError(f"load_offsets gave {tp} a {type(offset).__name__}; an offset is an int, or None")
        if offset < 0:
            raise ValueError(f"load_offsets gave {tp} the offset {offset}; leave out a partition that has none")
        kept[tp] = offset
    return kept


def placed_at(start: FetcherStart, offset: int | None) -> FetcherStart:
    """The start, at the offset that is kept, if one is."""
    if offset is None or offset == start.offset:
        return start
    # The epoch belongs to the other offset.
    return msgspec.structs.replace(start, offset=offset, leader_epoch=NO_EPOCH)
