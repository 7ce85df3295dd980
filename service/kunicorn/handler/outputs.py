"""Outputs: the records to send, taken out of what a handler returns or yields. Pure: no client is used here.

All outputs of a call are collected before any is handed on: of a handler that yields twice and then raises, nothing is
sent. Caller: the thread that calls the handler.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from kunicorn.errors import ConfigError
from kunicorn.handler.arrow_outputs import sends_of
from kunicorn.handler.call import Calls, ReturnCheck, arguments_of, calls_with
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.load import Handler
from kunicorn.handler.outcome import (
    BatchError,
    Done,
    HeaderValue,
    NotToBeSent,
    Outcome,
    Send,
    are_outputs,
    is_columns,
    raise_outcome,
)


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One record with the arguments of the client's `produce`. A struct, as one is made for every record."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, HeaderValue]] | None
    partition: int
    """−1: the client's partitioner chooses."""
    timestamp: int
    """0: now."""


def size_of(outputs: Sequence[Outgoing]) -> int:
    """Approximate memory of waiting outputs, in bytes."""
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


class Made(msgspec.Struct, frozen=True, gc=False):
    """Outputs of one call, and what else it said."""

    outputs: Sequence[Outgoing]
    said: object = None


def refuse_two_committers(handler: Handler, delivery: str | None) -> None:
    """Raise `ConfigError` for a handler that stores its own offsets where transactions commit them, too."""
    if handler.keeps_offsets and delivery == "transactions":
        raise ConfigError(
            f'producing.delivery = "transactions", but {handler.entrypoint} keeps its offsets itself (load_offsets): '
            f"they would be committed in two places, of which one may fail; remove load_offsets, or run this handler "
            f"in a service and group of its own, without [producing]"
        )


Put = Callable[[Any, int, int, Sequence[Outgoing]], None]
"""Takes the outputs of a call: under which origin, by the records from an offset up to the one to go on from."""


def calls_sending(handler: Handler, config: HandlerConfig, default_topic: str | None, put: Put) -> Calls:
    """The `Calls` for a handler whose outputs go to `put`.

    It has one record, or one batch, in hand at a time, `async def` or not. Raises like `calls_of`.
    """
    form = arguments_of(handler, config.mode, config.decoding, config.tracing)
    heed_said = ReturnCheck(handler.entrypoint)

    def on_return(returned: object, origin: Any, first: int, following: int) -> None:
        if type(returned) is Made:
            put(origin, first, following, returned.outputs)
            returned = returned.said
        heed_said(returned)

    called = form.adapted(sending(handler, default_topic, traced=config.tracing is not None).call)
    return calls_with(replace(handler, call=called), form, config.mode, on_return)


def sending(handler: Handler, default_topic: str | None, *, traced: bool = False) -> Handler:
    """The handler with its outputs taken out: it returns them as `Made`, or any outcome. Whatever calls a handler whose
    outputs are sent has this one within its span and middlewares, and they see the failure of one that cannot be sent.

    A record that is to be skipped or tried again leaves no outputs. `traced`: they carry the context that the handler
    is called in. Nothing is sent yet when the call is over: the end of its span may raise what the user's span
    processors raise, and then the record has failed.
    """
    handle, made = handler.call, _maker(handler, traced=traced)

    def taken_out(outputs: list[Outgoing], said: object) -> object:
        if outputs and isinstance(said, BatchError) and said.fails_none:
            said = Done()
        if not outputs or not leaves(said):
            return said
        # What the record fails by has to be known before: what was put would go out, and its offset with it.
        raise_outcome(said)
        return made(outputs, said)

    def made_of(returned: object) -> object:
        if type(returned) is Send:  # By far the most usual, and cheap.
            return made((outgoing(returned, default_topic),))
        return taken_out(*outputs_of(returned, default_topic))

    def call(*arguments: Any) -> object:
        return None if (returned := handle(*arguments)) is None else made_of(returned)

    async def call_async(*arguments: Any) -> object:
        return None if (returned := await handle(*arguments)) is None else made_of(returned)

    async def call_yielding(*arguments: Any) -> object:
        return taken_out(*await outputs_of_async(handle(*arguments), default_topic))

    if not handler.is_async:
        return replace(handler, call=call)
    return replace(handler, call=call_yielding if handler.yields else call_async)


def _maker(handler: Handler, *, traced: bool) -> Callable[..., Made]:
    """What makes `Made` of a call's outputs, and of what else it said."""
    if handler.keeps_offsets:
        return _refused
    if not traced:
        return Made
    from kunicorn.handler.tracing import with_context

    def told(output: Outgoing) -> Outgoing:
        headers = with_context(output.topic, output.value, output.headers or [])
        return msgspec.structs.replace(output, headers=headers)

    def in_context(outputs: Sequence[Outgoing], said: object = None) -> Made:
        return Made(list(map(told, outputs)), said)

    return in_context


def _refused(outputs: Sequence[Outgoing], said: object = None) -> Made:
    """Raise for outputs of a handler that keeps its offsets: if the worker died then, nobody would send them."""
    raise NotToBeSent(
        "a handler that keeps its offsets itself (load_offsets) returned records to send, which might be lost: leave "
        "its offsets to Kafka, or store the records beside its effects and send them from there"
    )


def leaves(said: object) -> bool:
    """Whether outputs beside that outcome are sent: those of a record that is skipped or tried again are not."""
    return isinstance(said, Done) or not isinstance(said, Outcome)


def outputs_of(returned: object, default_topic: str | None) -> tuple[list[Outgoing], object]:
    """Outputs in a handler's return value, and the outcome beside them, if any.

    Runs a generator to its end. Raises `NotToBeSent`, and what the generator raises.
    """
    if isinstance(returned, Send):
        return [outgoing(returned, default_topic)], None
    if is_columns(returned):
        return [outgoing(each, default_topic) for each in sends_of(returned)], None
    if isinstance(returned, list | tuple):
        return [_item(item, default_topic, "returned") for item in returned], None
    if isinstance(returned, Iterator):
        return _outputs_yielded(returned, default_topic)
    if are_outputs(returned):
        raise NotToBeSent(
            f"the handler returned records to send as {type(returned).__name__}: return a list of them, yield them, or "
            f"return one pyarrow.RecordBatch"
        )
    return [], returned


def _outputs_yielded(yielding: Iterator[object], default_topic: str | None) -> tuple[list[Outgoing], object]:
    sends: list[Outgoing] = []
    try:
        while True:
            item = next(yielding)
            try:
                sends.append(_item(item, default_topic, "yielded"))
            except BaseException:
                # Left at an item that cannot be sent, what its `with` holds open would wait for the garbage collector.
                if isinstance(yielding, Generator):
                    yielding.close()
                raise
    except StopIteration as end:
        if isinstance(end.value, BatchError):
            _refuse_partial(end.value, sends)
        return sends, end.value
    except Done as said:
        return sends, said
    except BatchError as error:
        _refuse_partial(error, sends)
        if not error.fails_none:
            raise
        return sends, error


async def outputs_of_async(yielding: AsyncGenerator[Any], default_topic: str | None) -> tuple[list[Outgoing], object]:
    """As `outputs_of`, of an `async def` handler that yields."""
    sends: list[Outgoing] = []
    try:
        async for item in yielding:
            try:
                sends.append(_item(item, default_topic, "yielded"))
            except BaseException:
                # Left at an item that cannot be sent, its `finally` would run beside the handler's next call.
                await yielding.aclose()
                raise
    except Done as said:
        return sends, said
    except BatchError as error:
        _refuse_partial(error, sends)
        if not error.fails_none:
            raise
        return sends, error
    return sends, None


def _refuse_partial(error: BatchError, sends: Sequence[Outgoing]) -> None:
    """Raise `NotToBeSent`, which fails the whole batch, if something was yielded and some of its records are done:
    nobody knows which outputs belong to those, and without theirs they are not done.
    """
    if sends and not error.fails_none and (error.failed is not None or error.done or error.mask or error.outcomes):
        raise NotToBeSent(
            f"the handler yielded {len(sends)} to send, and then said BatchError: the records that it names as done "
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
    """The output as the client takes it. Raises `NotToBeSent`."""
    topic, value, key = send.topic or default_topic, send.value, send.key
    if topic is None:
        raise NotToBeSent("a Send without a topic: name one, or set [producing] topic")
    if not isinstance(topic, str):
        raise NotToBeSent(f"a Send whose topic is {type(topic).__name__}: it is a text")
    if len(topic) > _LONGEST_TOPIC:
        raise NotToBeSent(f"a Send whose topic has {len(topic)} characters: {_LONGEST_TOPIC} are the most")
    _check_name(topic, "topic")
    if not topic.isascii():
        # Too long in bytes, the client would refuse it each time that it is tried again, without end.
        raise NotToBeSent(f"a Send whose topic is {topic!r}: Kafka takes ASCII's letters and digits, '.', '_' and '-'")
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
    part = what.partition(" ")[0]
    setting = "headers" if part == "header" else part
    raise NotToBeSent(
        f"a Send whose {what} is {type(given).__name__}: it is bytes, text (sent as UTF-8) or None; to have other "
        f"objects encoded, set [producing] {setting}"
    )


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
    """Raise `NotToBeSent` for a name that would break the client, or that it would cut off."""
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
