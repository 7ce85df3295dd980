"""Child process in which `kunicorn check --try` tries the handler: it fetches and calls as a worker does, answers and
ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec
from confluent_kafka import Message

from kunicorn.clients.access import range_consumer
from kunicorn.clients.range_reader import RangeReader, RangeUnreadable
from kunicorn.commands.check.trial import Order, Result
from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError
from kunicorn.handler.call import Calls, OfOne, calls_for
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler, print_line_by_line, user_traceback
from kunicorn.handler.outcome import Done, Outcome
from kunicorn.handler.outputs import calls_sending, refuse_two_committers
from kunicorn.handler.registry import HandlerRegistry
from kunicorn.positions import OffsetRange

_PATIENCE = 30.0
"""Seconds without a record."""
_LONGEST_ANSWER = 60_000
"""Less than a pipe holds: nobody reads it before this process has ended."""
_LONGEST_ERROR = 8_000


def main() -> None:
    """Read the order from standard input, answer on the descriptor that is the second argument.

    Leaves by `_exit`: threads that the handler started must not keep it.
    """
    print_line_by_line()
    answer = int(sys.argv[2])
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    code, said = _try(order)
    os.write(answer, said[:_LONGEST_ANSWER])
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _try(order: Order) -> tuple[int, bytes]:
    try:
        worker = Worker(0, os.getpid(), order.group, str(order.client.get("client.id", "")))
        handlings = HandlerRegistry.set_up(order.handlers, worker, _form(order), yields=order.delivery is not None)
        result = _called(handlings, list(_chunks(handlings, _fetched(order))))
        for handling in handlings.every:
            handling.tear_down()
    except (HandlerLoadError, ConfigError) as error:
        return ExitCode.HANDLER, str(error).encode(errors="backslashreplace")
    except BaseException as error:
        said = f"{type(error).__name__}: {error}\n{user_traceback(error)}"
        return ExitCode.HANDLER, said.encode(errors="backslashreplace")
    return ExitCode.CLEAN, msgspec.json.encode(result)


def _form(order: Order) -> Callable[[Handler, HandlerConfig], Calls]:
    """How the handler is called: outputs are made as in a worker, and dropped."""
    if order.delivery is None:
        return calls_for

    def dropping(handler: Handler, config: HandlerConfig) -> Calls:
        refuse_two_committers(handler, order.delivery)
        return calls_sending(handler, config, order.output_topic, lambda *entry: None)

    return dropping


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
    for (topic, _), run in groupby(messages, key=lambda message: _place(message)[:2]):
        rest, size = list(run), handlings.of(topic).batch_max_records or 1
        yield from (rest[at : at + size] for at in range(0, len(rest), size))


def _called(handlings: HandlerRegistry[Calls], chunks: Sequence[Sequence[Message]]) -> Result:
    handled = failed = 0
    seconds = worst = 0.0
    error_text, outcomes = "", Counter[str]()
    for chunk in chunks:
        began = time.perf_counter()
        try:
            calls = handlings.of(_place(chunk[0])[0]).calls
            calls(chunk, [_place(message)[2] + 1 for message in chunk], memoryview(array("q", [0])), 0, [])
        except Outcome as outcome:
            outcomes[type(outcome).__name__] += 0 if isinstance(outcome, Done) else len(chunk)
            handled += len(chunk)
        except BaseException as raised:
            # Of a batch in which one record failed the rest is not tried, either: it counts as failed.
            error = raised.error if isinstance(raised, OfOne) else raised
            failed += len(chunk)
            topic, partition, offset = _place(chunk[0])
            place = f"{topic}-{partition}@{offset}"
            error_text = error_text or f"{place}: {type(error).__name__}: {error}\n{user_traceback(error)}"
        else:
            handled += len(chunk)
        took = time.perf_counter() - began
        seconds, worst = seconds + took, max(worst, took)
    return Result(handled, failed, seconds, worst, dict(outcomes), error_text[:_LONGEST_ERROR])
