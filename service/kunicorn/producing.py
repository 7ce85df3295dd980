"""What a handler may return or yield to have it sent: records for other topics. Needs `[producing]`.

    from kunicorn import Send

    def handle_order(record):
        order = orjson.loads(record.value)
        return Send("totals", key=record.key, value=orjson.dumps(order["total"]))

A handler returns one, a list of them, or yields them; in batch mode they belong to the whole batch. They are sent once
the handler is through with the record, and the record's offset is not committed before the brokers have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

HeaderValue = str | bytes | None
Headers = Sequence[tuple[str, HeaderValue]] | Mapping[str, HeaderValue]


class Send(msgspec.Struct, frozen=True, gc=False):
    """One record to send."""

    topic: str | None = None
    """None: the topic that `[producing] topic` names."""
    value: bytes | str | None = None
    """Text is sent as UTF-8; None makes a tombstone."""
    key: bytes | str | None = None
    headers: Headers = ()
    partition: int | None = None
    """None: by the key as Java's producer would, or by chance without one."""
    timestamp: int | None = None
    """Milliseconds since 1970; None: now."""

    def __repr__(self) -> str:
        # Key and value stay out: such texts end up in logs, where payloads do not belong.
        return f"<Send to {self.topic or 'the default topic'}>"


class NotToBeSent(TypeError):
    """The handler asked for something that no record can be; a failure of its record like any other."""

    __module__ = "kunicorn"


def refuse_outputs(returned: object) -> None:
    """Where nothing is sent: records to send would be lost silently. Raises `NotToBeSent`."""
    first = returned[0] if isinstance(returned, list | tuple) and returned else returned
    if isinstance(first, Send):
        raise NotToBeSent(
            "the handler returned records to send, but nothing sends them here: set [producing] delivery, or return "
            "nothing; jobs on Spark send nothing"
        )
