"""From what a handler returned to what is to be sent. Pure: no client is used here.

Everything is collected before anything is sent: of a handler that yields twice and then raises, nothing goes out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from confluent_kafka import Message

from kunicorn.errors import ConfigError
from kunicorn.handler.call import Calls, arguments_of, calls_with, following_offsets
from kunicorn.handler.config import HandlerOrder
from kunicorn.handler.decode.forms import Form, Gathered
from kunicorn.handler.load import Handler
from kunicorn.handler.outcome import BatchError, Done, HeaderValue, NotToBeSent, Outcome, Send, heed
from kunicorn.positions import NO_OFFSET


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One record as the client's `produce` takes it. A struct, as one is made for every record."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, HeaderValue]] | None
    partition: int
    """−1: the client's partitioner chooses."""
    timestamp: int
    """0: now."""


def size_of(outputs: Sequence[Outgoing]) -> int:
    """Roughly what they take while they wait."""
    size = _ROOM * len(outputs)
    for output in outputs:
        size += len(output.value or b"") + len(output.key or b"")
        if output.headers:
            size += sum(len(name) + len(value or b"") for name, value in output.headers)
    return size


_ROOM = 200
"""Bytes beside key and value: our tuple and the client's own message."""
_BY_KEY = -1
_NOW = 0
_LARGEST_PARTITION = 2**31 - 1
_LONGEST_TOPIC = 249
"""Characters: org.apache.kafka.common.internals.Topic; the client does not take much longer names."""


class Noted:
    """A `Form` that tells whose argument the handler has: a model does not know its record."""

    def __init__(self, form: Form) -> None:
        self.place: tuple[int | None, int] = (NO_OFFSET, NO_OFFSET)
        """The first offset of the call, and the one to go on from behind it."""
        self._form = form

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        """See `Form`."""
        return self._form.adapted(handle)

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """See `Form`."""
        places = zip(map(Message.offset, messages), following_offsets(messages), strict=True)
        # The argument is asked for first: what cannot be decoded is not in anybody's hands.
        for argument, self.place in zip(self._form.each(messages), places, strict=True):  # noqa: B020
            yield argument

    def batch(self, messages: Sequence[Message]) -> Gathered:
        """See `Form`."""
        gathered = self._form.batch(messages)
        if gathered.records:
            self.place = messages[0].offset(), (messages[gathered.records - 1].offset() or 0) + 1
        return gathered

    def blame(self, message: Message) -> None:
        """See `Form`."""
        self._form.blame(message)


def refuse_two_committers(handler: Handler, delivery: str | None) -> None:
    """Raises `ConfigError` for a handler that keeps its offsets where transactions commit them, too."""
    if handler.keeps_offsets and delivery == "transactions":
        raise ConfigError(
            f'producing.delivery = "transactions", but {handler.entrypoint} keeps its offsets itself (load_offsets): '
            f"they would be committed in two places, of which one may fail; remove load_offsets, or run this handler "
            f"in a service and group of its own, without [producing]"
        )


def calls_sending(
    handler: Handler,
    order: HandlerOrder,
    default_topic: str | None,
    put: Callable[[int, int, list[Outgoing]], None],
) -> Calls:
    """The form for a handler whose outputs `put` gets, with the offset of their record, or of the first of their
    batch, and the one to go on from behind it.

    It has one record, or one batch, in hand at a time, be it `async def` or not. Raises like `calls_of`.
    """
    form = Noted(arguments_of(handler, order.mode, order.decoding, order.tracing))

    def put_noted(outputs: list[Outgoing]) -> None:
        first, following = form.place
        put(first or 0, following, outputs)

    if order.tracing is None:
        taking = sending(handler, default_topic, put_noted)
        return calls_with(replace(handler, call=form.adapted(taking.call)), form, order.mode)
    return calls_with(_sending_traced(handler, default_topic, form, put_noted), form, order.mode)


def _sending_traced(
    handler: Handler, default_topic: str | None, form: Form, put: Callable[[list[Outgoing]], None]
) -> Handler:
    """Outputs are made within the handler's span, where a generator's body runs, too; they are put behind its end,
    which may raise what the user's span processors raise: the record has failed by that."""
    from kunicorn.handler.tracing import with_context

    made: list[Outgoing] = []

    def put_traced(outputs: list[Outgoing]) -> None:
        for output in outputs:
            headers = with_context(output.topic, output.value, output.headers or [])
            made.append(msgspec.structs.replace(output, headers=headers))

    taking = sending(handler, default_topic, put_traced)
    within_span = form.adapted(taking.call)

    def call(argument: Any) -> object:
        made.clear()
        said = within_span(argument)
        if made:
            put(made.copy())
        return said

    async def call_async(argument: Any) -> object:
        made.clear()
        said = await within_span(argument)
        if made:
            put(made.copy())
        return said

    return replace(handler, call=call_async if handler.is_async else call)


def sending(handler: Handler, default_topic: str | None, put: Callable[[list[Outgoing]], None]) -> Handler:
    """The handler with its outputs taken out: `put` gets those of one call, and what else the handler says is
    returned.

    A record that is to be skipped or tried again leaves nothing.
    """
    handle = handler.call

    def take(outputs: list[Outgoing], said: object) -> object:
        if outputs and leaves(said):
            # What the record fails by has to be known before: what was put would go out, and its offset with it.
            heed(said)
            put(outputs)
        return said

    def call(*arguments: Any) -> object:
        if (returned := handle(*arguments)) is None:
            return None
        if type(returned) is Send:  # By far the most usual, and cheap.
            put([outgoing(returned, default_topic)])
            return None
        return take(*outputs_of(returned, default_topic))

    async def call_async(*arguments: Any) -> object:
        return take(*outputs_of(await handle(*arguments), default_topic))

    async def call_yielding(*arguments: Any) -> object:
        return take(await outputs_of_async(handle(*arguments), default_topic), None)

    if not handler.is_async:
        return replace(handler, call=call)
    return replace(handler, call=call_yielding if handler.yields else call_async)


def leaves(said: object) -> bool:
    """Whether outputs beside that are sent: a record that is to be skipped or tried again leaves nothing."""
    return isinstance(said, Done) or not isinstance(said, Outcome)


def gathering(handler: Handler) -> Handler:
    """The handler such that what it yields one by one, on a loop, is returned at once."""
    if not handler.yields or not handler.is_async:
        return handler
    handle = handler.call

    async def call(record: Any) -> object:
        return [each async for each in handle(record)]

    return replace(handler, call=call)


def outputs_of(returned: object, default_topic: str | None) -> tuple[list[Outgoing], object]:
    """What a handler's return value asks to send, and what else it says: an outcome, or nothing.

    Runs a generator to its end. Raises `NotToBeSent`, and what the generator raises.
    """
    if isinstance(returned, Send):
        return [outgoing(returned, default_topic)], None
    if isinstance(returned, list | tuple):
        return [_item(item, default_topic, "returned") for item in returned], None
    if isinstance(returned, Iterator):
        sends: list[Outgoing] = []
        try:
            while True:
                sends.append(_item(next(returned), default_topic, "yielded"))
        except StopIteration as end:
            return sends, end.value
        except BatchError as error:
            _refuse_partial(error, sends)
            raise
    return [], returned


async def outputs_of_async(yielding: AsyncIterator[Any], default_topic: str | None) -> list[Outgoing]:
    """As `outputs_of`, of an `async def` handler that yields."""
    sends: list[Outgoing] = []
    try:
        async for item in yielding:
            sends.append(_item(item, default_topic, "yielded"))
    except BatchError as error:
        _refuse_partial(error, sends)
        raise
    return sends


def _refuse_partial(error: BatchError, sends: Sequence[Outgoing]) -> None:
    """Which of them the records that are done have left, nobody knows; and without theirs these are not done. Raises
    `NotToBeSent`, which is the whole batch's failure, where something was yielded and something may be done."""
    if sends and (error.failed is not None or error.done):
        raise NotToBeSent(
            f"the handler yielded {len(sends)} to send, then raised BatchError: the records that it names as done "
            f"would count as done while nothing of theirs is sent; raise any other exception, which fails the whole "
            f"batch, or set handler.mode = 'record'"
        ) from error


def _item(item: object, default_topic: str | None, how: str) -> Outgoing:
    if isinstance(item, Send):
        return outgoing(item, default_topic)
    if isinstance(item, Outcome):
        raise NotToBeSent(f"the handler {how} {type(item).__name__} among records to send: raise it instead")
    raise NotToBeSent(f"the handler {how} {type(item).__name__} where kunicorn.Send is wanted")


def outgoing(send: Send, default_topic: str | None) -> Outgoing:
    """The record as the client takes it. Raises `NotToBeSent`."""
    topic, value, key = send.topic or default_topic, send.value, send.key
    if topic is None:
        raise NotToBeSent("a Send without a topic: name one, or set [producing] topic")
    if not isinstance(topic, str):
        raise NotToBeSent(f"a Send whose topic is {type(topic).__name__}: it is a text")
    if len(topic) > _LONGEST_TOPIC:
        raise NotToBeSent(f"a Send whose topic has {len(topic)} characters: {_LONGEST_TOPIC} are the most")
    _check_name(topic, "topic")
    return Outgoing(
        topic,
        value if type(value) is bytes else _bytes(value, "value"),
        key if type(key) is bytes else _bytes(key, "key"),
        _headers(send.headers) if send.headers else None,
        _BY_KEY if send.partition is None else _number(send.partition, "partition", _LARGEST_PARTITION),
        _NOW if send.timestamp is None else _number(send.timestamp, "timestamp", 2**63 - 1),
    )


def _bytes(given: object, what: str) -> bytes | None:
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise NotToBeSent(f"a Send whose {what} is {type(given).__name__}: it is bytes, text (sent as UTF-8) or None")


def _headers(given: Any) -> list[tuple[str, HeaderValue]]:
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        every = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise NotToBeSent("a Send whose headers are not pairs of name and value") from None
    if any(not isinstance(name, str) for name, _ in every):
        raise NotToBeSent("a Send with a header whose name is no text")
    for name, _ in every:
        _check_name(name, "header's name")
    return [(name, _bytes(value, f"header {name!r}")) for name, value in every]


def _check_name(name: str, what: str) -> None:
    """The client would break, or cut it off. Raises `NotToBeSent`."""
    if "\0" in name:
        raise NotToBeSent(f"a Send whose {what} has a NUL in it: {name!r}")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise NotToBeSent(f"a Send whose {what} cannot be sent as UTF-8 (a lone surrogate): {name!a}") from None


def _number(given: object, what: str, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= most:
        raise NotToBeSent(f"a Send whose {what} is {given!r}: it is a whole number from 0 to {most}, or None")
    return given
