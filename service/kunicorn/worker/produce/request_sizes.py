"""How much of a topic's outputs goes to the brokers together, where they refuse more at a time. Pure.

A topic's `max.message.bytes` bounds the *batch* that a request has for a partition. A larger batch is refused as a
whole: each of its records fails with MSG_SIZE_TOO_LARGE, also those that would fit, and librdkafka does not split it as
the Java client does. Its batches have up to 1,000,000 bytes: topics with less are concerned, not Kafka's default.

1. A record counts as too large only where its batch had nothing else. Whatever was refused beside others is sent again,
   in pieces of a quarter of the size, until it is taken or alone.
2. The size that a topic has come to by that stays for the worker's life: else each backlog would be refused once more.
3. While nothing has been refused, nothing is counted or split.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import KafkaError

from kunicorn.handler.outputs import Outgoing
from kunicorn.worker.produce.telemetry import Output

log = logging.getLogger("kunicorn.worker")

_OF_BATCHES = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""What brokers say of a batch that is larger than the topic takes, or than a segment of its log."""
_BATCH_BYTES = 1_000_000
"""librdkafka's default of `batch.size`: a record that is larger by itself has a batch of its own."""
_RECORD_BYTES = 36
"""Most that a record of a batch takes beside key, value and headers."""
_SHARE = 4


class RequestSizes:
    """Sizes of the pieces that each topic's outputs are sent in. Caller: senders' threads; several may share it."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        """`properties`: of the producer."""
        self._batch_bytes = int(str(properties.get("batch.size", _BATCH_BYTES)))
        self._sizes: dict[str, int] = {}
        """Of the topics that have refused more, in bytes."""

    def __bool__(self) -> bool:
        """Whether some topic has refused that."""
        return bool(self._sizes)

    def __contains__(self, topic: str) -> bool:
        """Whether that topic has."""
        return topic in self._sizes

    def pieces(self, outputs: Sequence[Output]) -> Iterator[Sequence[Output]]:
        """These outputs in order, as they are to be sent together: the next piece once the brokers have answered for
        the one before it. All of them at once, while no topic has refused that.
        """
        if not self._sizes:
            yield outputs
            return
        piece: list[Output] = []
        held = Counter[str]()
        for output in outputs:
            outgoing = output[1]
            if (most := self._sizes.get(outgoing.topic)) is not None:
                nbytes = _bytes_of(outgoing)
                if held[outgoing.topic] and held[outgoing.topic] + nbytes > most:
                    yield piece
                    piece, held = [], Counter()
                held[outgoing.topic] += nbytes
            piece.append(output)
        if piece:
            yield piece

    def refused_together(self, piece: Sequence[Output], failed: Sequence[tuple[Output, KafkaError]]) -> list[Output]:
        """Those of a piece that were refused as too large in a batch with others: the brokers may take them by
        themselves. From now on their topics get smaller pieces. Said twice of one piece, it changes nothing more.
        """
        refused = [
            output
            for output, error in failed
            if error.code() in _OF_BATCHES and _bytes_of(output[1]) - _RECORD_BYTES < self._batch_bytes
        ]
        if not refused:
            return []
        beside = Counter(outgoing.topic for _, outgoing in piece)
        refused = [output for output in refused if beside[output[1].topic] > 1]
        for topic in {outgoing.topic for _, outgoing in refused}:
            self._shrink(topic, sum(_bytes_of(outgoing) for _, outgoing in piece if outgoing.topic == topic))
        return refused

    def _shrink(self, topic: str, refused: int) -> None:
        size = min(refused, self._batch_bytes) // _SHARE
        if size < self._sizes.get(topic, refused):
            self._sizes[topic] = size
            log.warning(
                f"topic {topic!r} refuses {min(refused, self._batch_bytes)} bytes of records in one batch; it gets at "
                f"most {size} at a time from now on. For fewer requests raise its max.message.bytes, or lower "
                f'"batch.size" in [producing.librdkafka]'
            )


def with_following(piece: Sequence[Output], refused: Sequence[Output]) -> list[Output]:
    """These of a piece that were refused, and the outputs behind them with their key: those may have arrived, and would
    be overtaken. A letter has no order to keep.
    """
    if not refused:
        return []
    ids, found, keys = set(map(id, refused)), list[Output](), set[tuple[str, bytes | None, int]]()
    for output in piece:
        entry, outgoing = output
        key = (outgoing.topic, outgoing.key, outgoing.partition)
        ordered = entry.given_up is None and (outgoing.key is not None or outgoing.partition >= 0)
        if id(output) in ids:
            found.append(output)
            if ordered:
                keys.add(key)
        elif ordered and key in keys:
            found.append(output)
    return found


def _bytes_of(outgoing: Outgoing) -> int:
    nbytes = _RECORD_BYTES + len(outgoing.value or b"") + len(outgoing.key or b"")
    if outgoing.headers:
        nbytes += sum(len(name) + len(value or b"") for name, value in outgoing.headers)
    return nbytes
