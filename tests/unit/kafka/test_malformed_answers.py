"""Answers that no broker should send: read or refused, in bounded time and memory, and never anything else."""

from __future__ import annotations

import logging
import os
import resource
import time
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from kunicorn.kafka import coordinator
from kunicorn.kafka.codec import decode_response
from kunicorn.kafka.consumer_protocol import decode_subscription
from kunicorn.kafka.errors import ProtocolError
from kunicorn.kafka.metadata import metadata_from
from kunicorn.kafka.versions import OURS, Api
from tests.contract.conformance.endurance import came_through
from tests.fakes.mutations import mutations

FEW, MANY = 600, 100_000
SLOWEST = 5.0
"""Seconds of this thread's CPU that one answer of a few hundred bytes may take; others on the machine count not."""
MOST_MEMORY = 64 * 1024
"""KiB that the process may grow by."""

READ: dict[Api, Any] = {
    Api.METADATA: metadata_from,
    Api.FIND_COORDINATOR: lambda message: coordinator.found(message, "g"),
    Api.JOIN_GROUP: coordinator.joined,
    Api.SYNC_GROUP: coordinator.synced,
    Api.LEAVE_GROUP: lambda message: coordinator.left(message, "m", None),
    Api.OFFSET_COMMIT: lambda message: coordinator.committed(message, {}),
    Api.OFFSET_FETCH: lambda message: coordinator.offsets_fetched(message, "g"),
    Api.DESCRIBE_CONFIGS: lambda message: coordinator.config_described(message, "g", "x"),
    Api.CONSUMER_GROUP_HEARTBEAT: coordinator.consumer_heartbeat_answered,
}
"""What is made of an answer; the others are taken as they are."""


def withstand(api: Api, count: int) -> None:
    """Decode so many spoilt answers and make of them what the drivers would."""
    rng = Random(os.environ.get("KUNICORN_SEED", f"malformed {api}"))
    logging.disable(logging.WARNING)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        for version, frame in mutations(api, count, rng):
            began = time.thread_time()
            try:
                with suppress(ProtocolError):
                    READ.get(api, lambda message: message)(decode_response(api, version, frame))
            except Exception as error:
                raise AssertionError(f"{api.title} v{version} {frame.hex()}") from error
            assert time.thread_time() - began < SLOWEST, f"{api.title} v{version} {frame.hex()}"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("api", OURS, ids=lambda api: api.title)
def test_a_spoilt_answer_is_read_or_refused_in_bounded_time_and_memory(api: Api) -> None:
    withstand(api, FEW)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("api", OURS, ids=lambda api: api.title)
def test_a_hundred_thousand_spoilt_answers_are_read_or_refused(api: Api) -> None:
    withstand(api, MANY)
    came_through("spoilt answers read or refused", api.title, MANY)


# -- what kio's parser must never be given ---------------------------------------------------------------------

ABORTING = (
    (Api.METADATA, 7, b"\0\0\0\1" + b"\0\0\0\0" + b"\x7f\xff\xff\xff"),
    (Api.METADATA, 12, b"\0\0\0\1\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff\x7f"),
    (Api.HEARTBEAT, 4, b"\0\0\0\1\0" + b"\0\0\0\0" + b"\0\0" + b"\xff\xff\xff\xff\x0f"),
)
"""Counts of billions: memory for them is reserved before the first item is read, and a failed allocation aborts."""


@pytest.mark.parametrize(("api", "version", "frame"), ABORTING)
def test_a_count_of_billions_is_refused_before_anything_is_reserved_for_it(
    api: Api, version: int, frame: bytes
) -> None:
    with pytest.raises(ProtocolError, match="announced where 0 bytes are left"):
        decode_response(api, version, frame)


@pytest.mark.parametrize("count", [-2, -(2**31)])
def test_a_negative_count_is_refused_as_what_it_is(count: int) -> None:
    frame = b"\0\0\0\1" + b"\0\0\0\0" + count.to_bytes(4, "big", signed=True) + bytes(40)
    with pytest.raises(ProtocolError, match=f"Metadata v7 .* cannot be read: .* an array of {count} items"):
        decode_response(Api.METADATA, 7, frame)


def test_no_members_subscription_can_make_the_leader_reserve_memory_for_billions() -> None:
    topics = b"\0\3" + b"\x7f\xff\xff\xff"
    assert decode_subscription("range", "m", topics).topics == ()
