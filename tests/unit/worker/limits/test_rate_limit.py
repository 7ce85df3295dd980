"""Rate limits by key, where keys are many."""

from __future__ import annotations

from weakref import WeakSet

import pytest
from confluent_kafka import Message

from kunicorn.handler.config import HandlerConfig, RateLimiting
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.positions import TopicPartition
from kunicorn.worker.limits import rate_limit
from kunicorn.worker.limits.rate_limit import KeyedRateLimit
from kunicorn.worker.limits.token_bucket import TokenBucket
from kunicorn.worker.progress import InFlight, Lane, OffsetTracker, Slots
from tests.fakes.half_read import HalfRead

TRACKER = OffsetTracker(TopicPartition("t", 0), 1, Slots("key", 1), 0)


class Buckets(TokenBucket):
    """Those that there are, and how often one was asked whether it is full."""

    there: WeakSet[Buckets]
    asked = 0

    def __init__(self, per_second: float, burst: float, now: int) -> None:
        super().__init__(per_second, burst, now)
        self.there.add(self)

    def is_full(self, now: int) -> bool:
        type(self).asked += 1
        return super().is_full(now)


@pytest.fixture
def one_a_minute(monkeypatch: pytest.MonkeyPatch) -> KeyedRateLimit:
    Buckets.there, Buckets.asked = WeakSet(), 0
    monkeypatch.setattr(rate_limit, "TokenBucket", Buckets)
    told = RateLimiting(1 / 60, 1, "key", "records")
    return KeyedRateLimit(told, HandlerConfig("shop:handle", "record", {}, 1, 1, 0, 0, rate_limit=told), 0)


def admitted(limit: KeyedRateLimit, key: int, now: int) -> int:
    message = Message(topic="t", partition=0, offset=key, key=b"%d" % key)
    return limit.admitted(InFlight(1, TRACKER, Lane(TRACKER, key), key, 0, 1, (message,)), now)


def test_a_new_key_has_a_few_buckets_looked_at_however_many_are_not_full(one_a_minute: KeyedRateLimit) -> None:
    assert all(admitted(one_a_minute, key, key) for key in range(11_000))
    assert Buckets.asked <= 5000, "a few for each of the last thousand keys"
    assert [admitted(one_a_minute, key, 11_000) for key in (0, 10_999)] == [0, 0], "what is not full is not forgotten"


def test_a_limit_by_header_takes_a_record_with_another_header_whose_name_is_not_utf_8() -> None:
    told = RateLimiting(1 / 60, 1, "key", "records", "a")
    limit = KeyedRateLimit(told, HandlerConfig("shop:handle", "record", {}, 1, 1, 0, 0, rate_limit=told), 0)
    flights = [InFlight(1, TRACKER, Lane(TRACKER, at), at, 0, 1, (HalfRead(at),)) for at in range(2)]
    assert [limit.admitted(flight, 0) for flight in flights] == [1, 0], "both are of one tenant"


def test_full_buckets_are_forgotten_as_new_keys_come(one_a_minute: KeyedRateLimit) -> None:
    a_second = 250
    for key in range(4 * 60 * a_second):
        assert admitted(one_a_minute, key, key * NANOSECONDS // a_second)
    assert len(Buckets.there) <= 2.1 * 60 * a_second, "twice those of the last minute, which are not full"
