"""`kunicorn replay-one`: calls the handler with one real record, in this process, for its author at the desk. No group
is joined, nothing is committed, sent or registered; what the handler itself does is real.
"""

from __future__ import annotations

import logging
import os
import pdb  # noqa: T100 - it is what --pdb asks for
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from kunicorn.clients.access import range_consumer
from kunicorn.clients.config import consumer_properties, encoding_of, handler_configs
from kunicorn.clients.range_reader import RangeReader, RangeUnreadable
from kunicorn.clients.session import cluster_session
from kunicorn.commands.kept_offsets import refuse_kept_offsets
from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.handler.load import error_message, load, user_traceback
from kunicorn.handler.outcome import Outcome as Said
from kunicorn.handler.outcome import Wait
from kunicorn.handler.record import Record
from kunicorn.handler.retry import Expired, Policies, TryAgain, has_it_wait, policies_of
from kunicorn.ipc.messages import Token
from kunicorn.kafka.admin import IsolationLevel
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import HandlerSettings, Settings
from kunicorn.testing.bench import Bench, NotTakenOn
from kunicorn.testing.memory import SentRecord, given_of
from kunicorn.testing.outcome import Handled, Run
from kunicorn.testing.registry import register_nothing
from kunicorn.text import json_bytes, printable, shown_bytes, utc


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of the call."""

    record: Record
    run: Run
    seconds: float
    policies: Policies
    """Retry rules of its handler in the service."""
    raised: Sequence[BaseException]
    """What the handler raised, outcomes included, and behind that what its teardown did."""

    @property
    def handled(self) -> Handled:
        """The record's own part of the result."""
        return self.run.records[0]

    @property
    def error(self) -> BaseException | None:
        """Exception that the handler, or else its teardown, raised, other than an outcome. A record that is too old
        does not come to it."""
        return next((each for each in self.raised if not isinstance(each, Said | Expired)), None)

    @property
    def waits(self) -> BaseException | None:
        """Why the service would have the record wait, and call the handler again: no try of it has failed."""
        return next((each for each in self.run.errors if has_it_wait(each)), None)

    @property
    def then(self) -> str | None:
        """What else the service would do with it, if it failed likewise each time."""
        if self.waits is not None:
            return _again(self.waits)
        verdicts = [self.policies.verdict(each, failures=1, failing_ns=0, random=0.0) for each in self.run.errors]
        attempts = next((each.attempts or 1 for each in verdicts if isinstance(each, TryAgain)), 1)
        return f"try it {attempts} times before that" if attempts > 1 else None

    @property
    def outputs(self) -> list[SentRecord]:
        """Records that the handler would send."""
        return [each for each in self.run.sent if not (each.is_letter or each.is_retry)]

    @property
    def outcome(self) -> str:
        """How the record ended, by one word."""
        return str(self.handled.outcome) if self.waits is None else _WAITS

    def lines(self) -> Iterator[str]:
        record, error = self.record, self.error
        yield f"record    {record.topic}-{record.partition}@{record.offset}, {utc(record.timestamp, 'milliseconds')}"
        yield f"key       {shown_bytes(record.key)}"
        for name, value in record.headers:
            yield f"header    {printable(name)}: {shown_bytes(value)}"
        yield f"value     {shown_bytes(record.value)}"
        yield f"outcome   {self.outcome} after {self.seconds * 1000:.1f} ms"
        if error is not None:
            yield f"error     {type(error).__name__}: {printable(error_message(error))}"
            yield from (f"          {printable(line)}" for line in user_traceback(error).splitlines())
        if (then := self.then) is not None:
            yield f"then      the service would {printable(then)}"
        for why in self.run.halted.values():
            yield f"halted    its partition would halt before it: {printable(why.splitlines()[0])}"
        for letter in self.run.dead_letters:
            yield f"letter    would go to {letter.topic}: {printable(letter.error_type)}: {printable(letter.error)}"
        for retry in self.run.retries:
            yield f"retry     would go to {retry.topic}"
        outputs = self.outputs
        for output in outputs[:_MOST_SHOWN]:
            yield f"output    would go to {printable(output.topic)}: key {_key(output)}, value {_value(output)}"
        if (more := len(outputs) - _MOST_SHOWN) > 0:
            yield f"outputs   {more} more; --json has them all"
        yield "nothing was committed or sent"

    def as_json(self) -> dict[str, Any]:
        record, error = self.record, self.error
        return {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": json_bytes(record.key),
            "value": json_bytes(record.value),
            "headers": _headers(record.headers),
            "outcome": self.outcome,
            "seconds": self.seconds,
            "error": None if error is None else f"{type(error).__name__}: {error_message(error)}",
            "traceback": "" if error is None else user_traceback(error),
            "then": self.then,
            "halted": next(iter(self.run.halted.values()), None),
            "dead_letters": [
                {"topic": letter.topic, "headers": _headers(letter.raw_headers)} for letter in self.run.dead_letters
            ],
            "retries": [{"topic": retry.topic} for retry in self.run.retries],
            "outputs": [
                {
                    "topic": output.topic,
                    "partition": output.partition,
                    "key": json_bytes(output.key),
                    "value": json_bytes(output.value),
                    "headers": _headers(output.raw_headers),
                }
                for output in self.outputs
            ],
        }


_MOST_SHOWN = 20
"""Outputs."""


def _headers(pairs: Iterable[tuple[str, bytes | None]]) -> list[list[Any]]:
    return [[name, json_bytes(value)] for name, value in pairs]


def _key(output: SentRecord) -> str:
    return _shown(lambda: output.key_data, output.key)


def _value(output: SentRecord) -> str:
    return _shown(lambda: output.data, output.value)


def _shown(read: Callable[[], Any], written: bytes | None) -> str:
    """What a reader of the topic would decode; the bytes, where they are not encoded here."""
    with suppress(Exception):  # A record that is sent on as it came has another format.
        if (data := read()) is not written:
            return shown_bytes(repr(data).encode(errors="backslashreplace"))
    return shown_bytes(written)


_WAITS = "waits"
"""Outcome of a record that the handler would get again, as often as it says so."""


def _again(waits: BaseException) -> str:
    if not isinstance(waits, Wait):
        return "try it again until what decodes (encodes) it is back"
    why = f": {waits.reason}" if waits.reason else ""
    return f"call the handler again after {waits.seconds:g} s{why}"


def handler_for(settings: Settings, topic: str) -> HandlerSettings:
    """Handler that gets that topic's records. Raises `ConfigError` for a topic without one."""
    try:
        return settings.handler_of(topic)
    except LookupError as error:
        raise ConfigError(
            f"{error}; of a dead letter name the place it came from, which `kunicorn dlq show` has"
        ) from error


def replay(settings: Settings, message: Message, *, debug: bool = False) -> Replayed:
    """Set up, handle once, tear down; with `debug` in the debugger where the handler raises, before the teardown.

    Raises `HandlerLoadError`, also where the handler does not take the record's partition on, and `ConfigError` for a
    topic that no handler takes, and for a handler that keeps its offsets itself. What the handler prints goes to
    standard error. Blocks for as long as the handler does.
    """
    record = Record.of(message)
    handler = handler_for(settings, record.topic)
    with _printing_aside():
        refuse_kept_offsets(load(handler.entrypoint, yields=True))
    register_nothing(encoding_of(settings))
    alone = _alone(settings, _once(handler, timed=not debug))

    raised: list[BaseException] = []

    def met(error: BaseException) -> None:
        raised.append(error)
        if debug:
            post_mortem(error)
        if has_it_wait(error):
            bench.end()  # Its clock would be turned on to the next call at once, and the next, each with its effects.

    bench = Bench(alone, [given_of(record)], None, met)
    try:
        with nullcontext() if debug else _printing_aside(), _worker_silent():
            bench.work()
        return Replayed(record, bench.outcome(), bench.took, _policies(settings, handler), raised)
    except NotTakenOn as error:
        raise HandlerLoadError(str(error)) from error
    finally:
        bench.close()


@contextmanager
def _printing_aside() -> Iterator[None]:
    """Have what the handler prints, and what programs print that it starts, go to standard error: standard output is
    the answer's.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    try:
        os.dup2(_STDERR, _STDOUT)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


_STDOUT, _STDERR = 1, 2


@contextmanager
def _worker_silent() -> Iterator[None]:
    """Nothing of a worker's log: it says that the record goes to a topic, which nobody sends here."""
    log = logging.getLogger("kunicorn.worker")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _policies(settings: Settings, handler: HandlerSettings) -> Policies:
    """The handler's retry rules, as its workers have them."""
    configs = zip(settings.every_handler, handler_configs(settings), strict=True)
    return policies_of(next(config for each, config in configs if each is handler))


def _alone(settings: Settings, handler: HandlerSettings) -> Settings:
    """The service with that handler as its only one: no other one is set up. The dead-letter topic is still that of all
    of them, as any of them may be the one that asks for it.
    """
    letters = settings.dead_letters.model_copy(update={"topic": settings.dead_letter_topic})
    return settings.model_copy(update={"handler": handler, "handlers": (), "dead_letters": letters})


def _once(handler: HandlerSettings, *, timed: bool) -> HandlerSettings:
    """The handler's settings for a single try: it shows all there is to see. Not `timed`: somebody who steps through
    the handler must not be interrupted.
    """
    rules = tuple(rule.model_copy(update={"max_attempts": 1}) for rule in handler.failures)
    # An open circuit breaker has its record wait, and probes it.
    limits: dict[str, Any] = {"max_attempts": 1, "failures": rules, "circuit_breaker": None}
    return handler.model_copy(update=limits if timed else {**limits, "handler_timeout_ms": None})


def post_mortem(error: BaseException) -> None:
    """Start the debugger at the line that raised; `up` leads to the handler, `q` goes on."""
    if isinstance(error, Said):
        return
    traceback.print_exception(error)
    pdb.post_mortem(error.__traceback__)


_NEIGHBOURS = 100
"""Offsets before and behind, for the nearest records where there is none."""
_PATIENCE = 15.0


def find(settings: Settings, tp: TopicPartition, offset: int) -> Message:
    """The record at that offset. Blocks for seconds.

    Raises `ConfigError` where there is none: which of topic, partition and offset is wrong, and what there is; and for
    a topic that no handler takes.
    """
    handler_for(settings, tp.topic)
    with cluster_session(settings) as session:
        count = len(session.partitions([tp.topic], "the name"))
        if tp.partition >= count:
            raise ConfigError(f"topic {tp.topic!r} has no partition {tp.partition}: it has 0-{count - 1}")
        first, end, _ = session.edges([tp], IsolationLevel.READ_UNCOMMITTED)[tp]
        readable = session.edges([tp])[tp].end
        token = session.token
    if first >= end:
        raise ConfigError(f"{tp} is empty: its log begins and ends at offset {end}")
    if not first <= offset < end:
        raise ConfigError(f"{tp} has no offset {offset}: its log has {first} to {end - 1}")
    around = OffsetRange(*tp, max(first, offset - _NEIGHBOURS), min(end, offset + _NEIGHBOURS))
    records: list[Message] = []
    try:
        # Behind an open transaction nothing would come, however long it is waited for.
        for some in _fetched(settings, token, around._replace(stop=min(around.stop, readable)), {}):
            if (found := _at(some, offset)) is not None:
                return found
            records += some
    except RangeUnreadable as error:
        raise ConfigError(str(error)) from error
    raise ConfigError(f"{tp}@{offset} {_why(settings, token, around, offset)}; {_nearest(records, offset)}")


def _fetched(
    settings: Settings, token: Token | None, around: OffsetRange, more: Mapping[str, Any]
) -> Iterator[list[Message]]:
    own = consumer_properties(settings, f"{settings.kafka.client_id}-replay-one")
    consumer = range_consumer({**own, **more}, token)
    try:
        yield from RangeReader(consumer, _PATIENCE, "name an offset that is there").read(around)
    finally:
        consumer.close()


def _at(records: Sequence[Message], offset: int) -> Message | None:
    return next((each for each in records if each.offset() == offset), None)


def _why(settings: Settings, token: Token | None, around: OffsetRange, offset: int) -> str:
    """Why there is no record at an offset of the log. A marker, and a record that compaction took, leave the same gap
    behind; one of a transaction does not.
    """
    if settings.kafka.isolation_level == "read_committed":
        every = _fetched(settings, token, around, {"isolation.level": "read_uncommitted"})
        if any(_at(some, offset) is not None for some in every):
            return "belongs to a transaction that was aborted or is still open (kafka.isolation_level hides it)"
    return "is no record: compaction has removed it, or a transaction's marker stands there"


def _nearest(records: Sequence[Message], offset: int) -> str:
    offsets = sorted(each.offset() or 0 for each in records)
    before = max((each for each in offsets if each < offset), default=None)
    after = min((each for each in offsets if each > offset), default=None)
    near = [f"{each} {word}" for each, word in ((before, "before"), (after, "behind")) if each is not None]
    return f"the nearest records are {' and '.join(near)}" if near else f"none is within {_NEIGHBOURS} offsets of it"
