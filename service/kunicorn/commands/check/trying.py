"""Child process in which `kunicorn check --try` tries the handler: it fetches and calls as a worker does, answers and
ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle, groupby
from typing import Any

import msgspec
from confluent_kafka import Message

from kunicorn.clients.access import range_consumer
from kunicorn.clients.range_reader import RangeReader, RangeUnreadable
from kunicorn.commands.check.trial import Order, Result
from kunicorn.commands.kept_offsets import refuse_kept_offsets
from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError
from kunicorn.handler.call import Calls, OfSome, calls_for
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.decode.decoders import Part
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.handler.encode.readers import OutputReaders
from kunicorn.handler.filter import EXPIRED
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler, error_message, print_line_by_line, user_traceback
from kunicorn.handler.outcome import Done, Outcome
from kunicorn.handler.outputs import Outgoing, calls_sending, refuse_two_committers
from kunicorn.handler.registry import HandlerRegistry, Handling, as_loaded, concurrency_of
from kunicorn.handler.retry import Expired
from kunicorn.handler.rows import fitting
from kunicorn.observe import prints
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.testing.registry import register_nothing
from kunicorn.worker.executors.together import by_rows

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
    _answer(
        lambda handlings, order, tally: handle(handlings, _fetched(order), tally, order.limits_ms), refuse_kept_offsets
    )


Use = Callable[[HandlerRegistry[Calls], Order, "Tally"], None]
"""What is done with the handlers that are set up."""


def _answer(use: Use, made: Callable[[Handler], Handler] = as_loaded) -> None:
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
    _answer(lambda handlings, order, tally: None)


def _try(order: Order, use: Use, made: Callable[[Handler], Handler]) -> tuple[int, bytes]:
    tally = Tally()
    try:
        worker = Worker(0, os.getpid(), order.group, str(order.client.get("client.id", "")))
        shown = _Shown(order)
        form = _form(order, shown)
        handlings = HandlerRegistry.set_up(
            order.handlers, worker, form, made, yields=order.delivery is not None, on_filtered=lambda _: tally.dropped
        )
        use(handlings, order, tally)
        for handling in handlings.every:
            handling.tear_down()
    except (HandlerLoadError, ConfigError) as error:
        return error.exit_code, str(error).encode(errors="backslashreplace")
    except BaseException as error:
        said = f"{type(error).__name__}: {error_message(error)}\n{user_traceback(error)}"
        return ExitCode.HANDLER, said.encode(errors="backslashreplace")
    return ExitCode.CLEAN, msgspec.json.encode(tally.result(shown.count))


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
        return called
    register_nothing(order.encoding)
    encoder = None if order.encoding is None else Encoder(order.encoding, order.output_topic)

    def showing(handler: Handler, config: HandlerConfig) -> Calls:
        refuse_two_committers(handler, order.delivery)
        encoded = handler if encoder is None else encoder.around(handler)
        return _where_a_worker_does(calls_sending(encoded, config, order.output_topic, shown.show), handler, config)

    return showing


def called(handler: Handler, config: HandlerConfig) -> Calls:
    """How a worker calls a handler of which nothing is sent. Raises `HandlerLoadError`."""
    calls = calls_for(by_rows(handler) if config.batching.batch_across_partitions else handler, config)
    return _where_a_worker_does(calls, handler, config)


def _where_a_worker_does(calls: Calls, handler: Handler, config: HandlerConfig) -> Calls:
    """A worker has several calls of a plain function at a time in threads. Raises `ConfigError`."""
    several = concurrency_of(handler.is_async, config.mode, config.ordering, config.concurrency) > 1
    return InThreads(calls) if several and not handler.is_async else calls


class InThreads:
    """Has two threads call in turn, so that what belongs to the one that has made it, such as a connection of `setup`
    or of the call before, fails as it would in the service. Hooks stay in the main thread.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._turns = cycle([ThreadPoolExecutor(1, "handler"), ThreadPoolExecutor(1, "handler")])
        self.run, self.close = calls.run, calls.close
        self.interrupt, self.calling = calls.interrupt, calls.calling

    def __call__(
        self,
        messages: Sequence[Message],
        following: Sequence[int],
        cells: memoryview,
        at: int,
        interrupts: list[None],
        origin: Any = None,
    ) -> None:
        def met() -> BaseException | None:
            # Raised through the pool, it would have its frames in the traceback.
            try:
                self._calls(messages, following, cells, at, interrupts, origin)
            except BaseException as error:
                return error
            return None

        if (error := next(self._turns).submit(met).result()) is not None:
            raise error


def _fetched(order: Order) -> list[Message]:
    """The latest records of the logs, by partition and offset."""
    consumer = range_consumer(order.client, order.token)
    reader = RangeReader(consumer, _PATIENCE, "try again")
    try:
        return latest(
            [OffsetRange(*each) for each in order.logs],
            order.records,
            lambda ranges: [message for some in reader.read(*ranges) for message in some],
        )
    except RangeUnreadable as error:
        raise ConfigError(str(error)) from error
    finally:
        consumer.close()


_FURTHER = 4
"""So many times as much the next look reads, of what lies before."""


def latest(
    logs: Sequence[OffsetRange], count: int, read: Callable[[Sequence[OffsetRange]], list[Message]]
) -> list[Message]:
    """The latest `count` records of these logs, by partition and offset; fewer where there are no more. Looks further
    back where a log has few, and where its last offsets are none: markers of transactions, what was aborted, or what
    compaction has removed.
    """
    share, unread, found = -(-count // len(logs)), logs, list[Message]()
    while unread and len(found) < count:
        found = read([log._replace(start=max(log.start, log.stop - share)) for log in unread]) + found
        unread = [log._replace(stop=log.stop - share) for log in unread if log.stop - share > log.start]
        share *= _FURTHER
    youngest = sorted(found, key=lambda message: message.timestamp()[1])[-count:]
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
        rest, at = list(run), 0
        handling = handlings.of(_place(rest[0])[0])
        most, most_bytes = handling.batch_max_records or 1, handling.batching.batch_max_bytes
        while at < len(rest):
            size = fitting(rest[at : at + most], most_bytes)
            yield rest[at : at + size]
            at += size


@dataclass(slots=True)
class Tally:
    """What has come of the records so far."""

    passed: int = 0
    """Records that the handler is through with, one way or another."""
    failed: int = 0
    seconds: float = 0.0
    worst: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    """Records that did not come to the handler, by the filter's name."""
    error: str = ""
    overdue: int = 0

    def called(self, records: int, seconds: float, limit_ms: int | None) -> None:
        """Count a call, after which the handler is through with so many records."""
        self.overdue += limit_ms is not None and seconds > limit_ms / 1000
        self.passed += records
        self.seconds += seconds
        self.worst = max(self.worst, seconds)

    def dropped(self, message: Message, name: str, *, saved: bool) -> None:
        """Count a record that a filter drops."""
        self.filtered[name] += 1

    def ended(self, records: Sequence[Message], error: BaseException) -> None:
        """Count records that end by this error, or outcome."""
        if isinstance(error, Outcome):
            self.outcomes[type(error).__name__] += len(records)
        elif isinstance(error, Expired):
            self.filtered[EXPIRED] += len(records)
        else:
            self.failed += len(records)
            topic, partition, offset = _place(records[0])
            said = f"{topic}-{partition}@{offset}: {type(error).__name__}: {error_message(error)}"
            self.error = self.error or f"{said}\n{user_traceback(error)}"[:_LONGEST_ERROR]

    def result(self, outputs: int) -> Result:
        """The answer, with the number of outputs that would be sent."""
        del self.outcomes[Done.__name__]
        return Result(
            handled=self.passed - self.failed,
            failed=self.failed,
            seconds=self.seconds,
            worst=self.worst,
            outcomes=dict(self.outcomes),
            filtered=dict(self.filtered),
            error=self.error,
            outputs=outputs,
            overdue=self.overdue,
        )


def _several(chunk: Sequence[Message]) -> bool:
    return _place(chunk[0])[:2] != _place(chunk[-1])[:2]


def handle(
    handlings: HandlerRegistry[Calls], messages: Sequence[Message], tally: Tally, limits_ms: Sequence[int | None]
) -> None:
    """Have the records handled, by partition and offset, each once: nothing is tried again. Their handlers take the
    partitions on before, and are told of their end. `limits_ms`: see `Order`. Raises what these hooks raise.
    """
    last = {TopicPartition(*_place(message)[:2]): _place(message)[2] for message in messages}
    first = {TopicPartition(*_place(message)[:2]): _place(message)[2] for message in reversed(messages)}
    for handling, own in _by_handling(handlings, first):
        if (on_assigned := handling.handler.on_assigned) is not None:
            handling.calls.run(on_assigned(own))
    _handle_all(handlings, messages, tally, limits_ms)
    for handling, own in _by_handling(handlings, {tp: offset + 1 for tp, offset in last.items()}):
        if (on_revoked := handling.handler.on_revoked) is not None:
            handling.calls.run(on_revoked(own))


def _by_handling(
    handlings: HandlerRegistry[Calls], offsets: Mapping[TopicPartition, int]
) -> Iterator[tuple[Handling[Calls], dict[TopicPartition, int]]]:
    for handling in handlings.every:
        if own := {tp: offset for tp, offset in offsets.items() if handlings.of(tp.topic) is handling}:
            yield handling, own


def _handle_all(
    handlings: HandlerRegistry[Calls], messages: Sequence[Message], tally: Tally, limits_ms: Sequence[int | None]
) -> None:
    todo = deque(_chunks(handlings, messages))
    while todo:
        chunk = todo.popleft()
        began, cell = time.perf_counter(), memoryview(array("q", [0]))
        # Counted in places: offsets of several partitions do not ascend.
        following = range(1, len(chunk) + 1) if _several(chunk) else [_place(message)[2] + 1 for message in chunk]
        left: list[Message] = []
        handling = handlings.of(_place(chunk[0])[0])
        try:
            handling.calls(chunk, following, cell, 0, [])
        except BaseException as raised:
            some = raised if isinstance(raised, OfSome) else OfSome(raised, count=len(chunk))
            places = zip(chunk, following, strict=True)
            left = [message for message, after in places if after > cell[0] and after - 1 not in some.ahead]
            for error, count in some.groups:
                tally.ended(left[:count], error)
                left = left[count:]
        seconds = time.perf_counter() - began
        tally.called(len(chunk) - len(left), seconds, limits_ms[handlings.every.index(handling)])
        if left:
            todo.appendleft(left)  # Nobody has said anything of these: they come in a batch again, as in the service.
