"""`kunicorn dlq replay`: letters become records of their topics again, each once unless it is asked to be repeated.

What was delivered is remembered in the offsets of a side group, committed only after delivery: a replay that is
interrupted repeats at most what was on its way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from kunicorn.dlq.selection import Replayed, Selection
from kunicorn.dlq.topic import Found, LettersTopic
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handling.deadletters import replayed as replayed_headers

_REMEMBER_EVERY = 1_000
_ON_THEIR_WAY = 10_000
"""Below librdkafka's own limit (`queue.buffering.max.messages`), where it refuses more."""
_FLUSH_SECONDS = 120.0


class NotAllReplayed(ServiceError):
    """Some letters were refused by their topics; they are not remembered as replayed."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


@dataclass(slots=True)
class Plan:
    """What would be sent, and what not."""

    chosen: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of each letter to send."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By topic and error type."""
    left: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Letters by partition that are not yet replayed, chosen or not."""
    replayed: int = 0
    foreign: int = 0

    def lines(self) -> Iterator[str]:
        """For the person who decides."""
        yield f"to send back: {len(self.chosen)}"
        for (topic, error), count in sorted(self.counts.items()):
            yield f"{count:>8}  {error}  to {topic}"
        if self.left_out:
            yield f"{self.left_out:>8}  left out by the filters"
        if self.replayed:
            yield f"{self.replayed:>8}  replayed before; --from-beginning repeats them"
        if self.foreign:
            yield f"{self.foreign:>8}  no dead letters of kunicorn's, passed over"

    @property
    def left_out(self) -> int:
        """Letters that are not yet replayed and were not asked for."""
        return sum(map(len, self.left.values())) - len(self.chosen)

    def told(self, sent: int) -> dict[str, Any]:
        """For a program, with how many of them were delivered."""
        return {
            "planned": [
                {"topic": topic, "error": error, "records": count}
                for (topic, error), count in sorted(self.counts.items())
            ],
            "left_out": self.left_out,
            "replayed_before": self.replayed,
            "foreign": self.foreign,
            "sent": sent,
        }


def plan(topic: LettersTopic, selection: Selection, done: dict[int, Replayed], limit: int | None) -> Plan:
    """Look through the topic. Raises `ConfigError` where a letter's topic is not there any more."""
    found = Plan()
    for letter in topic.letters():
        if letter.told is None:
            found.foreign += 1
        elif letter.offset in done[letter.partition]:
            found.replayed += 1
        else:
            found.left[letter.partition].add(letter.offset)
            if selection.takes(letter.told, letter.record.key) and (limit is None or len(found.chosen) < limit):
                found.chosen.add((letter.partition, letter.offset))
                found.counts[letter.told.topic, letter.told.cause.type] += 1
    if gone := sorted({name for name, _ in found.counts if not topic.partitions_of(name)}):
        raise ConfigError(f"topic {gone[0]!r}, where letters came from, does not exist any more: filter by --topic")
    return found


def replay(topic: LettersTopic, plan: Plan, done: dict[int, Replayed], sent: Callable[[], None]) -> int:
    """Send what is planned; how many were delivered. `sent` is called for each. Raises `NotAllReplayed`."""
    sending = _Sending(topic, topic.producer(), done, sent)
    starts = {number: end for number, (_, end) in topic.bounds.items()}
    starts |= {number: min(o for n, o in plan.chosen if n == number) for number in {n for n, _ in plan.chosen}}
    try:
        for letter in topic.letters(starts):
            if (letter.partition, letter.offset) in plan.chosen:
                sending.send(letter)
                if sending.sent % _REMEMBER_EVERY == 0:
                    sending.remember(plan)
    finally:
        # A Ctrl-C, too: what was delivered by then is remembered.
        sending.remember(plan)
    if sending.refused:
        (why, count), *_ = sending.refused.most_common(1)
        raise NotAllReplayed(f"{sum(sending.refused.values())} letters were refused, {count} of them: {why}")
    return sending.delivered


class _Sending:
    def __init__(
        self, topic: LettersTopic, producer: Producer, done: dict[int, Replayed], told: Callable[[], None]
    ) -> None:
        self.sent = self.delivered = 0
        self.refused: Counter[str] = Counter()
        self._topic = topic
        self._producer = producer
        self._done = done
        self._told = told
        self._partitions: dict[str, int] = {}

    def send(self, letter: Found) -> None:
        """To the partition it came from, as long as that exists: whatever partitioner its producer had."""
        told, record = letter.told, letter.record
        assert told is not None
        if told.topic not in self._partitions:
            self._partitions[told.topic] = self._topic.partitions_of(told.topic)
        more: dict[str, Any] = {} if record.timestamp is None else {"timestamp": record.timestamp}
        if told.partition < self._partitions[told.topic]:
            more["partition"] = told.partition

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._hear(letter, error)

        headers: list[tuple[str, str | bytes | None]] = list(replayed_headers(told))
        if len(self._producer) >= _ON_THEIR_WAY:
            self._producer.flush(_FLUSH_SECONDS)
        self._producer.produce(told.topic, record.value, record.key, headers=headers, on_delivery=delivered, **more)
        self.sent += 1
        self._producer.poll(0)

    def _hear(self, letter: Found, error: KafkaError | None) -> None:
        if error is not None:
            self.refused[error.str()] += 1
            return
        self.delivered += 1
        self._done[letter.partition].add(letter.offset)
        self._told()

    def remember(self, plan: Plan) -> None:
        """Wait for what is on its way, then commit for the side group."""
        self._producer.flush(_FLUSH_SECONDS)
        for number, (_, end) in self._topic.bounds.items():
            self._done[number].settle(plan.left[number], end)
        self._topic.remember(self._done)
