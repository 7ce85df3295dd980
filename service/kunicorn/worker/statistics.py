"""What the worker's Kafka client says of itself (librdkafka's STATISTICS.md), as far as it explains a slow consumer."""

from __future__ import annotations

import msgspec

from kunicorn.observe import catalogue as c
from kunicorn.observe.catalogue import Declared, Kind
from kunicorn.pipes.families import Family, Sample

_MICROSECONDS = 1_000_000


class _Window(msgspec.Struct):
    avg: int = 0
    cnt: int = 0


class _Broker(msgspec.Struct):
    nodeid: int = -1
    rxbytes: int = 0
    req_timeouts: int = 0
    disconnects: int = 0
    rtt: _Window = msgspec.field(default_factory=_Window)


class _Partition(msgspec.Struct):
    fetchq_cnt: int = 0
    fetchq_size: int = 0


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition] = {}


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker] = {}
    topics: dict[str, _Topic] = {}


class ClientStatistics:
    """The latest of them."""

    def __init__(self) -> None:
        self._text: str | None = None

    def take(self, text: str) -> None:
        """Caller: librdkafka, in the runner's thread as it polls: only kept here, read elsewhere."""
        self._text = text

    def families(self) -> list[Family]:
        """Since the client's start; empty before the first statistics. Reads up to megabytes of JSON."""
        if self._text is None:
            return []
        found = msgspec.json.decode(self._text, type=_Statistics)
        # The bootstrap servers have no node id, and are not asked for anything once the brokers are known.
        brokers = [broker for broker in found.brokers.values() if broker.nodeid >= 0]
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return [
            # Of the last interval: where nothing was answered in it, there is no time to tell.
            _by_broker(c.CLIENT_RTT, [(b, b.rtt.avg / _MICROSECONDS) for b in brokers if b.rtt.cnt], "max"),
            _by_broker(c.CLIENT_RECEIVED, [(b, b.rxbytes) for b in brokers]),
            _by_broker(c.CLIENT_TIMEOUTS, [(b, b.req_timeouts) for b in brokers]),
            _by_broker(c.CLIENT_DISCONNECTS, [(b, b.disconnects) for b in brokers]),
            _family(c.CLIENT_QUEUE, [({}, sum(each.fetchq_cnt for each in partitions))]),
            _family(c.CLIENT_QUEUE_BYTES, [({}, sum(each.fetchq_size for each in partitions))]),
        ]


def _by_broker(declared: Declared, values: list[tuple[_Broker, float]], merge: str = "sum") -> Family:
    return _family(declared, [({"broker": str(broker.nodeid)}, value) for broker, value in values], merge)


def _family(declared: Declared, values: list[tuple[dict[str, str], float]], merge: str = "sum") -> Family:
    name = declared.name + ("_total" if declared.kind is Kind.COUNTER else "")
    samples = [Sample(name, labels, value) for labels, value in values]
    return Family(declared.name, declared.kind.value, declared.meaning, samples, merge)
