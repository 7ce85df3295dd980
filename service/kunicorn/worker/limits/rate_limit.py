"""Rate limit of one handler in one worker: a token bucket for all its records, or one for each key. Not locked: `Gate`
has the lock.

With one bucket nothing of the handler starts while it is empty. With one for each key only the records of a key wait
that is ahead of its rate, and with them their partition, or lane. Such a record has taken its token in advance, so that
of many that wait each has a time of its own, and none is looked at in vain. It gives the token back where it leaves
before that time, with its partition, or behind others that are put before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from confluent_kafka import Message

from kunicorn.handler.config import HandlerConfig, RateLimiting
from kunicorn.handler.record import Record
from kunicorn.worker.limits.token_bucket import TokenBucket
from kunicorn.worker.progress import InFlight
from kunicorn.worker.scheduler import UNLIMITED

_MOST_KEYS = 10_000
"""Beyond so many buckets the full ones, which are as good as new, are forgotten."""
_LOOKED_AT = 2
"""Buckets that each new key has looked at then. More than one, so that there are at most twice as many as are not full;
few, as this is done for each record under the table's lock, and all of them may be not full."""


class RateLimit:
    """One bucket for all records of the handler."""

    def __init__(self, told: RateLimiting, config: HandlerConfig, now: int) -> None:
        self.per_second = told.per_second
        self._batches = config.batches
        self._by_call = told.counts == "calls" and config.batches
        self._bucket = TokenBucket(told.per_second, told.burst, now)
        self._used = 0.0
        self._waits = 0

    def room(self, now: int) -> int:
        """Number of records that may start; a batch is not cut for it."""
        tokens = self._bucket.tokens(now)
        if tokens < 1:
            self._waits += 1
            return 0
        return UNLIMITED if self._batches else int(tokens)

    def took(self, records: int, now: int) -> None:
        """Note that so many records start together."""
        cost = 1 if self._by_call else records
        self._bucket.take(cost, now)
        self._used += cost

    def took_beside(self, records: int, now: int) -> None:
        """Note that so many records are in a call that was counted with others."""
        if not self._by_call:
            self.took(records, now)

    def unused(self, messages: Sequence[Message], now: int) -> None:
        """Note records that started and were not handled: they start again."""
        if not self._by_call:
            self._bucket.take(-len(messages), now)
            self._used -= len(messages)

    def dropped(self, message: Message, now: int, *, saved: bool) -> None:
        """Note a record that a filter has dropped behind its start: it takes none. `saved`: nor does its call."""
        if not self._by_call:
            self.unused((message,), now)
        elif saved:
            self.saved(now)

    def saved(self, now: int) -> None:
        """Note a call that was not made: where calls count, it takes no token."""
        if self._by_call:
            self._bucket.take(-1, now)
            self._used -= 1

    def admitted(self, flight: InFlight, now: int) -> int:
        """Number of the flight's leading records that may start, which have their tokens from now on."""
        return len(flight.messages)

    def wait_ns(self, now: int) -> int:
        """Time until something may start."""
        return self._bucket.wait_ns(now)

    def hold_ns(self, flight: InFlight, now: int) -> int:
        """Never asked: whatever starts may start as a whole."""
        raise AssertionError(flight)

    def forgo(self, flight: InFlight, now: int) -> None:
        """Take back what the flight has paid in advance: it does not start."""

    def change(self, per_second: float, burst: float, now: int) -> None:
        """Go on at another rate."""
        self.per_second = per_second
        self._bucket.change(per_second, burst, now)

    def use(self) -> tuple[float, int]:
        """Tokens used since the start, and how often something waited for one."""
        return self._used, self._waits


class KeyedRateLimit(RateLimit):
    """A bucket for each key, or each value of a header; records without one have one together."""

    def __init__(self, told: RateLimiting, config: HandlerConfig, now: int) -> None:
        super().__init__(told, config, now)
        self._burst = told.burst
        self._key = _key_of(told.header)
        self._buckets: OrderedDict[object, TokenBucket] = OrderedDict()

    def room(self, now: int) -> int:
        return UNLIMITED

    def took(self, records: int, now: int) -> None:
        self._used += records

    def unused(self, messages: Sequence[Message], now: int) -> None:
        for message in messages:
            self._bucket_of(message, now).take(-1, now)

    def admitted(self, flight: InFlight, now: int) -> int:
        # The first may have waited for the token that it has.
        count = flight.paid
        flight.paid = 0
        for message in flight.messages[count:]:
            bucket = self._bucket_of(message, now)
            if bucket.tokens(now) < 1:
                break
            bucket.take(1, now)
            count += 1
        self._waits += not count
        return count

    def hold_ns(self, flight: InFlight, now: int) -> int:
        """How long the flight's first record is to wait; it has its token from then on."""
        bucket = self._bucket_of(flight.messages[0], now)
        wait = bucket.wait_ns(now)
        bucket.take(1, now)
        flight.paid = 1
        return wait

    def forgo(self, flight: InFlight, now: int) -> None:
        if flight.paid:
            self._bucket_of(flight.messages[0], now).take(-flight.paid, now)
            flight.paid = 0

    def wait_ns(self, now: int) -> int:
        return 0

    def change(self, per_second: float, burst: float, now: int) -> None:
        self.per_second, self._burst = per_second, burst
        for bucket in self._buckets.values():
            bucket.change(per_second, burst, now)

    def _bucket_of(self, message: Message, now: int) -> TokenBucket:
        key = self._key(message)
        if (bucket := self._buckets.get(key)) is None:
            if len(self._buckets) >= _MOST_KEYS:
                self._forget_full(now)
            bucket = self._buckets[key] = TokenBucket(self.per_second, self._burst, now)
        self._buckets.move_to_end(key)
        return bucket

    def _forget_full(self, now: int) -> None:
        """Forget those of the buckets looked at longest ago that are full."""
        for _ in range(_LOOKED_AT):
            key, bucket = next(iter(self._buckets.items()))
            if bucket.is_full(now):
                del self._buckets[key]
            else:
                self._buckets.move_to_end(key)


def _key_of(header: str | None) -> Callable[[Message], object]:
    if header is None:
        return lambda message: message.key()

    def value(message: Message) -> object:
        # By the record: the client raises where another header's name is not UTF-8.
        return next((value for name, value in Record.of(message).headers if name == header), None)

    return value


def rate_limit_of(config: HandlerConfig, now: int) -> RateLimit | None:
    """The handler's rate limit; None where its settings ask for none."""
    if (told := config.rate_limit) is None:
        return None
    return KeyedRateLimit(told, config, now) if told.per == "key" else RateLimit(told, config, now)
