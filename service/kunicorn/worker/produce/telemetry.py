"""What is told of outputs that are sent: counts, durations and spans. Small, as both ways of sending, at least once and
in transactions, tell it alike.

A *send operation* is everything that is produced together, until the brokers have acknowledged it, or refused some of
it. By OpenTelemetry's conventions it is the operation "send" of a client that sends batches: a span for each topic,
which links to the spans in which its records were created.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from kunicorn.handler.outputs import Outgoing
from kunicorn.librdkafka.errors import fault_of
from kunicorn.observe import catalogue as c
from kunicorn.worker.produce.outbox import Entry
from kunicorn.worker.stats import Counters

if TYPE_CHECKING:
    from kunicorn.handler.tracing import SendSpans

log = logging.getLogger("kunicorn.worker")

Output = tuple[Entry, Outgoing]
"""One output, and whose it is."""
_OUTPUTS, _TOPIC = attrgetter("outputs"), attrgetter("topic")
_SEND = "send"


class SendTelemetry:
    """Caller: senders' threads."""

    def __init__(self, counters: Counters, *, traced: bool = False) -> None:
        """`traced`: whether [tracing] is on."""
        self.counters = counters
        self._traced = traced
        self._said = False

    def count_sent(self, entries: Iterable[Entry]) -> None:
        """Count the outputs of these entries as sent."""
        for topic, count in Counter(map(_TOPIC, chain.from_iterable(map(_OUTPUTS, entries)))).items():
            self.counters.count(c.SENT, count, topic, "")

    def begun(self, outputs: Sequence[Output]) -> SendOperation:
        """A sending of these outputs that begins now."""
        return SendOperation(self, self._spans(outputs) if self._traced else None)

    def _spans(self, outputs: Sequence[Output]) -> SendSpans | None:
        from kunicorn.handler.tracing import SendSpans

        try:
            return SendSpans([(outgoing.topic, outgoing.headers or []) for _, outgoing in outputs])
        except Exception:
            self.spans_failed()
            return None

    def spans_failed(self) -> None:
        """Say, once a worker, that spans are missing. Caller: an `except` block.

        Sampler, propagator and span processors are the user's: out of the sender's thread what they raise would end the
        worker, with outputs on their way whose records would be blamed.
        """
        if not self._said:
            self._said = True
            log.exception("the spans of outputs that are sent failed; the outputs are not concerned. Said once")


class SendOperation:
    """One sending. Caller: its sender's thread."""

    def __init__(self, telemetry: SendTelemetry, spans: SendSpans | None) -> None:
        self._telemetry = telemetry
        self._counters = telemetry.counters
        self._spans = spans
        self._began_at = time.monotonic()
        self._over = False

    def ended(self, failed: Iterable[tuple[Output, KafkaError]]) -> None:
        """Tell how it ended: everything is acknowledged but these. Further calls do nothing."""
        if self._over:
            return
        self._over = True
        errors = Counter((outgoing.topic, fault_of(error.code()).name) for (_, outgoing), error in failed)
        for (topic, error), count in errors.items():
            self._counters.count(c.SENT, count, topic, error)
        first = next((error for _, error in errors), "")
        self._counters.observe(c.OPERATION_SECONDS, time.monotonic() - self._began_at, _SEND, first)
        if self._spans is not None:
            try:
                self._spans.end(dict(errors))
            except Exception:
                self._telemetry.spans_failed()
