"""Child process in which `kunicorn check --try` tries the handler: it fetches and calls as a worker does, answers and
ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
from confluent_kafka import Message

from kunicorn.clients.access import range_consumer
from kunicorn.clients.range_reader import RangeReader, RangeUnreadable
from kunicorn.commands.check.trial import Order, Result
from kunicorn.commands.kept_offsets import refuse_kept_offsets
from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError
from kunicorn.handler.call import Calls, OfFirst, OfSome, calls_for
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.decode.decoders import Part
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.handler.encode.readers import OutputReaders
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler, error_message, print_line_by_line, user_traceback
from kunicorn.handler.outcome import Done, Outcome
from kunicorn.handler.outputs import Outgoing, calls_sending, refuse_two_committers
from kunicorn.handler.registry import HandlerRegistry, as_loaded
from kunicorn.observe import prints
from kunicorn.positions import OffsetRange

_PATIENCE = 30.0
"""Seconds without a record."""
_LONGEST_ANSWER = 60_000
"""An error's text; nobody reads more of it."""
_LONGEST_ERROR = 8_000
_SHOWN = 20
"""Outputs that are printed."""
_LONGEST_OUTPUT = 300


def main() -> None:
    """Read the order from standard input, answer on the descriptor that is the second argument.

    Leaves by `_exit`: threads that the handler started must not keep it.
    """
    _answer(lambda handlings, order: _called(handlings, list(_chunks(handlings, _fetched(order)))), refuse_kept_offsets)


def _answer(
    use: Callable[[HandlerRegistry[Calls], Order], Result], made: Callable[[Handler], Handler] = as_loaded
) -> None:
    print_line_by_line()
    prints.take_over_as_text(sys.argv[3])
    answer = int(sys.argv[2])
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    code, said = _try(order, use, made)
    os.write(answer, said[:_LONGEST_ANSWER])
    with contextlib.suppress(Exception):
        prints.finish()
    os._exit(code)


def set_up() -> None:
    """As `main`, but only `setup` and `teardown` are called."""
    _answer(lambda handlings, order: Result(0, 0, 0.0, 0.0, {}, ""))


def _try(
    order: Order, use: Callable[[HandlerRegistry[Calls], Order], Result], made: Callable[[Handler], Handler]
) -> tuple[int, bytes]:
    try:
        worker = Worker(0, os.getpid(), order.group, str(order.client.get("client.id", "")))
        shown = _Shown(order)
        form = _form(order, shown)
        handlings = HandlerRegistry.set_up(order.handlers, worker, form, made, yields=order.delivery is not None)
        result = msgspec.structs.replace(use(handlings, order), outputs=shown.count)
        for handling in handlings.every:
            handling.tear_down()
    except (HandlerLoadError, ConfigError) as error:
        return error.exit_code, str(error).encode(errors="backslashreplace")
    except BaseException as error:
        said = f"{type(error).__name__}: {error_message(error)}\n{user_traceback(error)}"
        return ExitCode.HANDLER, said.encode(errors="backslashreplace")
    return ExitCode.CLEAN, msgspec.json.encode(result)


class _Shown:
    """Outputs of the handler: the first are printed, decoded, and all are counted. None is sent."""

    def __init__(self, order: Order) -> None:
        self.count = 0
        self._readers = OutputReaders(order.encoding)

    def show(self, origin: Any, first: int, following: int, outputs: Sequence[Outgoing]) -> None:
        for output in outputs:
            self.count += 1
            if self.count <= _SHOWN:
                key, value = (self._text(output, part) for part in (Part.KEY, Part.VALUE))
                print(f"would send to {output.topic}: key {key}, value {value}", flush=True)

    def _text(self, output: Outgoing, part: Part) -> str:
        written = output.value if part is Part.VALUE else output.key
        headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in output.headers or ()]
        with contextlib.suppress(Exception):  # Of a record that is sent on as it was, in another format.
            return repr(self._readers.read(output.topic, part, written, headers))[:_LONGEST_OUTPUT]
        return repr(written)[:_LONGEST_OUTPUT]


def _form(order: Order, shown: _Shown) -> Callable[[Handler, HandlerConfig], Calls]:
    """How the handler is called: outputs are made as in a worker, shown, and dropped. Raises `HandlerLoadError`."""
    if order.delivery is None:
        return calls_for
    encoder = None if order.encoding is None else Encoder(order.encoding, order.output_topic)

    def showing(handler: Handler, config: HandlerConfig) -> Calls:
        refuse_two_committers(handler, order.delivery)
        encoded = handler if encoder is None else encoder.around(handler)
        return calls_sending(encoded, config, order.output_topic, shown.show)

    return showing


def _fetched(order: Order) -> list[Message]:
    """The latest records of the ranges, by partition and offset."""
    consumer = range_consumer(order.client, order.token)
    try:
        read = RangeReader(consumer, _PATIENCE, "try again").read(*(OffsetRange(*each) for each in order.ranges))
        found = [message for some in read for message in some]
    except RangeUnreadable as error:
        raise ConfigError(str(error)) from error
    finally:
        consumer.close()
    youngest = sorted(found, key=lambda message: message.timestamp()[1])[-order.records :]
    return sorted(youngest, key=_place)


def _place(message: Message) -> tuple[str, int, int]:
    return (message.topic() or "", message.partition() or 0, message.offset() or 0)


def _chunks(handlings: HandlerRegistry[Calls], messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Records of each call."""

    def together(message: Message) -> object:
        topic, partition, _ = _place(message)
        handling = handlings.of(topic)
        return handling.handler if handling.batching.batch_across_partitions else (topic, partition)

    for _, run in groupby(messages, key=together):
        rest = list(run)
        size = handlings.of(_place(rest[0])[0]).batch_max_records or 1
        yield from (rest[at : at + size] for at in range(0, len(rest), size))


def _said(some: OfSome) -> Counter[str]:
    """Number of the records with each outcome."""
    groups = [(type(each.error).__name__, each.records) for each in some.groups if isinstance(each.error, Outcome)]
    return sum((Counter({name: count}) for name, count in groups), Counter[str]())


def _several(chunk: Sequence[Message]) -> bool:
    return _place(chunk[0])[:2] != _place(chunk[-1])[:2]


def _called(handlings: HandlerRegistry[Calls], chunks: Sequence[Sequence[Message]]) -> Result:
    handled = failed = 0
    seconds = worst = 0.0
    error_text, outcomes = "", Counter[str]()
    todo = deque(chunks)
    while todo:
        chunk = todo.popleft()
        began, cell = time.perf_counter(), memoryview(array("q", [0]))
        # Counted in places: offsets of several partitions do not ascend.
        following = range(1, len(chunk) + 1) if _several(chunk) else [_place(message)[2] + 1 for message in chunk]
        try:
            handlings.of(_place(chunk[0])[0]).calls(chunk, following, cell, 0, [])
        except BaseException as raised:
            some = raised if isinstance(raised, OfSome) else OfSome(raised, count=len(chunk))
            if isinstance(some, OfFirst) and isinstance(some.error, Outcome):
                # It says nothing of those behind, which come to the handler in the next call.
                todo.appendleft(chunk[some.count :])
                chunk = chunk[: some.count]
            said = _said(some)
            outcomes.update(said)
            done = bisect_right(following, cell[0]) + len(some.ahead) + said.total()
            handled += done
            # Of a batch in which one record failed the rest is not tried, either: it counts as failed.
            failed += len(chunk) - done
            if done < len(chunk):
                error = next((each.error for each in some.groups if not isinstance(each.error, Outcome)), some.error)
                topic, partition, offset = _place(chunk[0])
                place = f"{topic}-{partition}@{offset}"
                said_it = f"{type(error).__name__}: {error_message(error)}"
                error_text = error_text or f"{place}: {said_it}\n{user_traceback(error)}"
        else:
            handled += len(chunk)
        took = time.perf_counter() - began
        seconds, worst = seconds + took, max(worst, took)
    del outcomes[Done.__name__]
    return Result(handled, failed, seconds, worst, dict(outcomes), error_text[:_LONGEST_ERROR])
