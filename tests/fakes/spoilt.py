"""Fetch responses spoilt at random.

They are spoilt in the frame, in a batch's header, in its packed bytes, and in its records before they are packed. Where
a checksum would hide the damage from what is behind it, it is reckoned anew.
"""

from __future__ import annotations

from random import Random

from tests.fakes import fetched
from tests.fakes.fetched import CODECS, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchFields
from tests.fakes.spoiling import spoilt

TOPICS = (b"orders-as-an-id!", b"shipments-as-id!")
VERSIONS = tuple(fetched.VERSIONS)
_ATTRIBUTES = (0, 0, 0, LOG_APPEND_TIME, TRANSACTIONAL, TRANSACTIONAL | CONTROL)
_CODECS = (*CODECS, "raw snappy")
_HEADER = 61


def _record(delta: int, rng: Random) -> bytes:
    value = rng.choice((None, b"", rng.randbytes(rng.randrange(200)), b"x" * rng.randrange(3000)))
    headers = [(rng.choice((b"a", b"", b"\xff")), rng.choice((None, b"1"))) for _ in range(rng.choice((0, 0, 1, 3)))]
    return fetched.record(delta, value, rng.choice((None, b"key")), headers, rng.choice((0, 5, -(2**62))))


def _batch(base_offset: int, rng: Random) -> bytes:
    if rng.random() < 0.2:
        return fetched.marker(base_offset, rng.choice((7, 8)), commits=rng.random() < 0.3)
    number = rng.choice((0, 1, 2, 5))
    codec = rng.choice(_CODECS)
    content = b"".join(_record(delta, rng) for delta in range(number))
    if rng.random() < 0.3:
        content = spoilt(content, rng)
    content = fetched.packed(content, codec)
    if codec != "none" and rng.random() < 0.2:
        content = spoilt(content, rng)
    fields = BatchFields(
        base_offset=base_offset,
        attributes=rng.choice(_ATTRIBUTES),
        producer_id=rng.choice((-1, 7, 8)),
        last_delta=rng.choice((None, None, 4, 9)),
    )
    whole = fetched.batch_of(content, number, codec, fields)
    if rng.random() < 0.2:
        header = spoilt(whole[:_HEADER], rng)
        whole = fetched.signed(header + whole[_HEADER:]) if len(header) >= _HEADER else header
    return whole


def spoilt_response(version: int, rng: Random) -> bytes:
    """A response from behind its correlation id, about partitions 0 and 1 of each of `TOPICS`."""
    topics = {}
    for topic in TOPICS:
        parts = []
        for number in (0, 1):
            batches = b"".join(_batch(10 * place, rng) for place in range(rng.choice((0, 1, 3))))
            if rng.random() < 0.1:
                batches = spoilt(batches, rng)
            aborted = rng.choice(((), ((7, 0),), ((7, 5), (8, 0))))
            parts.append(fetched.partition(version, number, [batches], aborted_transactions=aborted))
        topics[topic] = parts
    body = fetched.body(version, topics)
    return spoilt(body, rng) if rng.random() < 0.3 else body
