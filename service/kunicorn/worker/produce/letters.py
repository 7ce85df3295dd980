"""Letters, dead and to retry topics, sent at least once where they are in no transaction: each record's by themselves.

1. Letters count when those of all of one call's records have arrived, whatever becomes of others. None is waited for
   before the next ones are sent: a partition of a topic that is away holds up nobody else's.
2. The table is told of letters that are refused, or not acknowledged in time, once none of that call's is on its way
   any more. It has all of these sent anew, but for those that have arrived (`GivenUp.arrived`).
3. Only where the producer is of no use any more is what is on its way waited for before more is sent. A topic that has
   refused a batch as too large gets its next piece once it has answered for the one before; other topics wait for none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from confluent_kafka import KafkaError, Producer

from kunicorn.backoff import Retries
from kunicorn.worker.produce.outbox import DeliveryListener, Entry, Outbox, OutputBatch
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import (
    BACKOFF,
    LetterRefused,
    is_fatal,
    is_worn_out,
    put,
    reached,
    refusal,
    wanted,
)
from kunicorn.worker.produce.telemetry import Output, SendOperation, SendTelemetry

log = logging.getLogger("kunicorn.worker")

_REPORT_SECONDS = 0.05
"""Letters that come while others are on their way wait so long at most."""


@dataclass(slots=True, eq=False)
class _Taken:
    """A batch of which letters are on their way."""

    batch: OutputBatch
    sending: SendOperation
    entries: int
    """Those that have not ended."""
    failed: list[tuple[Output, KafkaError]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Letters:
    """The letters of one entry."""

    entry: Entry
    taken: _Taken
    left: int
    """Those that are not answered."""
    refused: BaseException | None = None
    missing: set[int] = field(default_factory=set)
    """Those that have not arrived, by identity."""

    def failure(self) -> BaseException | None:
        """Why they are refused, with which of them have arrived."""
        if isinstance(self.refused, LetterRefused):
            letters = enumerate(self.entry.outputs)
            arrived = frozenset(place for place, letter in letters if id(letter) not in self.missing)
            self.refused.given_up = self.refused.given_up._replace(arrived=arrived)
        return self.refused


class LetterSender:
    """`Sender` of letters. Caller: its sender's thread."""

    often = False

    def __init__(
        self,
        make: Callable[[], Producer],
        sizes: RequestSizes,
        outbox: Outbox,
        table: DeliveryListener,
        telemetry: SendTelemetry,
    ) -> None:
        """`make`: the producer, when the first letter is due, and anew once one is worn out."""
        self._make, self._sizes = make, sizes
        self._outbox, self._table, self._telemetry = outbox, table, telemetry
        self._producer: Producer | None = None
        self._broken = False
        """The producer is worn out."""
        self._retries = Retries(BACKOFF)
        self._queued: dict[str, list[Output]] = {}
        """By topic."""
        self._on_their_way: dict[int, tuple[Output, int]] = {}
        """By identity, as outputs cannot be compared; and how many had arrived before."""
        self._arrivals = 0
        self._answers: list[tuple[Output, KafkaError | None]] = []
        self._open: dict[int, _Letters] = {}
        """By the entry's identity."""

    def deliver(self, batch: OutputBatch) -> None:
        """Deliver the batch, and what comes until nothing is on its way: whoever calls this marks only the first as
        delivered.
        """
        self._begin(batch)
        while self._open:
            self._send()
            if not self._answers:
                self._poll(_REPORT_SECONDS)
            self._hear(batch)
            if self._outbox.waits and (more := self._outbox.take()) is not None:
                self._begin(more)

    def serve(self) -> None:
        """Keep the client's login fresh."""
        self._poll(0)

    def _poll(self, seconds: float) -> None:
        if self._producer is not None:
            self._producer.poll(seconds)

    def _begin(self, batch: OutputBatch) -> None:
        left = [_left(entry) for entry in batch.entries]
        outputs = list(chain.from_iterable(left))
        taken = _Taken(batch, self._telemetry.begun(outputs), len(batch.entries))
        for entry, letters in zip(batch.entries, left, strict=True):
            self._open[id(entry)] = _Letters(entry, taken, len(letters))
        self._queue(outputs)

    def _send(self) -> None:
        """Produce what may go out now."""
        if self._broken and self._on_their_way:
            return
        queued, self._queued = self._queued, {}
        for topic, outputs in queued.items():
            if left := self._produce(topic, outputs):
                self._queued[topic] = left

    def _produce(self, topic: str, outputs: list[Output]) -> list[Output]:
        """Produce of letters to one topic what may go out now; those that may not."""
        while outputs and not (topic in self._sizes and self._has_on_its_way(topic)):
            piece = next(self._sizes.pieces(outputs))
            outputs = outputs[len(piece) :]
            if not (live := self._live(piece)):
                continue
            if self._producer is None or self._broken:
                self._producer, self._broken = self._make(), False
            self._on_their_way |= {id(output): (output, self._arrivals) for output in live}
            put(self._producer, live, self._note, self._arrived)
        return outputs

    def _has_on_its_way(self, topic: str) -> bool:
        return any(outgoing.topic == topic for (_, outgoing), _ in self._on_their_way.values())

    def _queue(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self._queued.setdefault(output[1].topic, []).append(output)

    def _live(self, piece: Sequence[Output]) -> Sequence[Output]:
        """Those of these letters that are still to be delivered; no answer is waited for of the others."""
        live = wanted(piece)
        ids = set(map(id, live))
        for output in piece:
            if id(output) not in ids:
                self._open[id(output[0])].left -= 1
        return live

    def _note(self, output: Output, error: KafkaError) -> None:
        self._answers.append((output, error))

    def _arrived(self, output: Output) -> None:
        self._answers.append((output, None))

    def _hear(self, own: OutputBatch) -> None:
        """Tell the table of the records whose letters are all answered. `own`: the batch that somebody else marks as
        delivered."""
        answers, self._answers = self._answers, []
        self._arrivals += sum(error is None for _, error in answers)
        for output, error in answers:
            _, arrivals = self._on_their_way.pop(id(output))
            # One topic that answers nobody says nothing about the producer: others' letters go on meanwhile.
            if error is not None and (is_fatal(error) or (is_worn_out(error) and arrivals == self._arrivals)):
                self._broken = True
        self._count(answers)
        ended = [each for each in self._open.values() if not each.left]
        for each in ended:
            del self._open[id(each.entry)]
        self._tell(ended)
        for taken in {each.taken: None for each in ended}:
            if not taken.entries:
                taken.sending.ended(taken.failed)
                if taken.batch is not own:
                    self._outbox.done(taken.batch)

    def _count(self, answers: Sequence[tuple[Output, KafkaError | None]]) -> None:
        """Count the answers; queue again what was refused only together with others, or by the producer."""
        failed = [(output, error) for output, error in answers if error is not None]
        together = [output for output, _ in (*answers, *self._on_their_way.values())] if failed else []
        again = self._sizes.refused_together(together, failed)
        ids, by_producer = set(map(id, again)), list[tuple[Output, KafkaError]]()
        for output, error in answers:
            if id(output) in ids:
                continue
            entry, letters = output[0], self._open[id(output[0])]
            if error is not None:
                letters.taken.failed.append((output, error))
                why = refusal(*output, error)
                if why is None and entry.origin.takes_output_at(entry.offset):
                    by_producer.append((output, error))
                    continue
                letters.refused = letters.refused or why
                letters.missing.add(id(output[1]))
            letters.left -= 1
        self._queue(again)
        if by_producer:
            self._wait(by_producer)

    def _wait(self, failed: Sequence[tuple[Output, KafkaError]]) -> None:
        """Have these, which no topic has refused, sent again in a moment."""
        self._queue(output for output, _ in failed)
        why = failed[-1][1].str()
        self._outbox.note_trouble(why)
        log.warning(f"{len(failed)} letters were not acknowledged, they are sent again: {why}")
        time.sleep(self._retries.failed())

    def _tell(self, ended: Sequence[_Letters]) -> None:
        arrived, refused = list[Entry](), list[tuple[Entry, BaseException]]()
        for each in ended:
            each.taken.entries -= 1
            entry = each.entry
            if (failure := each.failure()) is not None:
                refused.append((entry, failure))
            elif entry.origin.takes_output_at(entry.offset):
                arrived.append(entry)
        rewound = self._outbox.refuse(refused)
        if arrived:
            self._retries = Retries(BACKOFF)
            self._telemetry.count_sent(arrived)
            self._table.delivered(reached(arrived))
        if rewound:
            self._table.rewind(rewound)


def _left(entry: Entry) -> list[Output]:
    """Letters of the entry that have not arrived before."""
    arrived = entry.given_up.arrived if entry.given_up is not None else ()
    return [(entry, letter) for place, letter in enumerate(entry.outputs) if place not in arrived]
