"""Trace context in what handlers return to be sent, for OpenTelemetry: with it the trace goes on at the consumers.

Each output has a span of its own making (operation "create", kind PRODUCER), a child of the handler's, and that span's
context in its headers, as semantic conventions for messaging have it where records are sent in batches. Nothing of this
is imported where tracing is off.
"""

from __future__ import annotations

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import Setter
from opentelemetry.trace import SpanKind

from kunicorn import __version__
from kunicorn.handling.outputs import Outgoing
from kunicorn.handling.tracing import IN_HAND
from kunicorn.producing import HeaderValue
from kunicorn.records import Record

Pairs = list[tuple[str, HeaderValue]]


class _Pairs(Setter[Pairs]):
    """A record's headers as a propagator writes them."""

    def set(self, carrier: Pairs, key: str, value: str) -> None:
        carrier.append((key, value.encode()))


_PAIRS = _Pairs()


def with_context(output: Outgoing) -> Outgoing:
    """The output with the context of its making in its headers. Caller: within the handler's span.

    A context of its record that the handler copied with the other headers is replaced; one that it has put there itself
    stays as it is (a custom creation context, which is not to be touched).
    """
    headers = output.headers or []
    fields = {field.lower() for field in propagate.get_global_textmap().fields}
    told = [pair for pair in headers if pair[0].lower() in fields]
    if told and not _copied(told):
        return output
    span = trace.get_tracer("kunicorn", __version__).start_span(
        f"create {output.topic}",
        kind=SpanKind.PRODUCER,
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.name": "create",
            "messaging.operation.type": "create",
            "messaging.destination.name": output.topic,
            "messaging.message.body.size": len(output.value or b""),
        },
    )
    with trace.use_span(span, end_on_exit=True):
        pairs: Pairs = [pair for pair in headers if pair[0].lower() not in fields]
        propagate.inject(pairs, setter=_PAIRS)
    return msgspec.structs.replace(output, headers=pairs or None)


def _copied(told: Pairs) -> bool:
    """Whether some record that the handler has in hand has all of them."""
    return any(set(told) <= set(Record.of(message).headers) for message in IN_HAND.get(()))
