"""One record through the handler, as a worker would call it, in this process; and what came of it, in words."""

from __future__ import annotations

import pdb  # noqa: T100 - it is what --pdb asks for
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Message

from kunicorn.handlers import user_traceback
from kunicorn.outcomes import Outcome as Said
from kunicorn.records import Record
from kunicorn.settings import Settings
from kunicorn.tables import json_bytes, printable, shown_bytes
from kunicorn.testing.bench import Bench
from kunicorn.testing.outcome import Handled, Run
from kunicorn.testing.records import GivenRecord


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    record: Record
    run: Run
    seconds: float

    @property
    def handled(self) -> Handled:
        """The record's own part."""
        return self.run.records[0]

    @property
    def error(self) -> BaseException | None:
        """What the handler raised, other than an outcome."""
        return next((each for each in self.run.errors if not isinstance(each, Said)), None)


def replay(settings: Settings, message: Message, *, debug: bool = False) -> Replayed:
    """Set up, handle once, tear down; with `debug` in the debugger where the handler raises, before the teardown.

    Raises `HandlerLoadError`. What the handler prints goes to standard error. Blocks for as long as the handler does.
    """
    record = Record.of(message)
    # One try shows all there is to see; somebody who steps through the handler must not be interrupted.
    limits: dict[str, Any] = {"max_attempts": 1, **({"handler_timeout_ms": None} if debug else {})}
    handler = settings.handler_of(record.topic)
    rules = tuple(rule.model_copy(update={"max_attempts": 1}) for rule in handler.failures)
    once = handler.model_copy(update={**limits, "failures": rules})
    given = GivenRecord(
        record.value,
        record.key,
        tuple(record.headers),
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
    )
    bench = Bench(
        settings.model_copy(update={"handler": once, "handlers": ()}), [given], None, post_mortem if debug else None
    )
    try:
        with redirect_stdout(sys.stdout if debug else sys.stderr):
            bench.work()
        return Replayed(record, bench.outcome(), bench.took)
    finally:
        bench.close()


def post_mortem(error: BaseException) -> None:
    """The debugger, at the line that raised; `up` leads to the handler, `q` goes on."""
    if isinstance(error, Said):
        return
    traceback.print_exception(error)
    pdb.post_mortem(error.__traceback__)


def lines(replayed: Replayed, settings: Settings) -> Iterator[str]:
    """For a person."""
    record, handled, error = replayed.record, replayed.handled, replayed.error
    yield f"record    {record.topic}-{record.partition}@{record.offset}, {_time(record.timestamp)}"
    yield f"key       {shown_bytes(record.key)}"
    for name, value in record.headers:
        yield f"header    {printable(name)}: {shown_bytes(value)}"
    yield f"value     {shown_bytes(record.value)}"
    yield f"outcome   {handled.outcome} after {replayed.seconds * 1000:.1f} ms"
    if error is not None:
        yield f"error     {type(error).__name__}: {printable(str(error))}"
        yield from (f"          {printable(line)}" for line in user_traceback(error).splitlines())
        if (attempts := settings.handler_of(record.topic).max_attempts) > 1:
            yield f"then      the service would try it {attempts} times before that"
    for why in replayed.run.halted.values():
        yield f"halted    its partition would halt before it: {printable(why.splitlines()[0])}"
    for letter in replayed.run.dead_letters:
        yield f"letter    would go to {letter.topic}: {printable(letter.error_type)}: {printable(letter.error)}"
    yield "nothing was committed or sent"


def as_json(replayed: Replayed) -> dict[str, Any]:
    """For a program."""
    record, error = replayed.record, replayed.error
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [[name, json_bytes(value)] for name, value in record.headers],
        "outcome": str(replayed.handled.outcome),
        "seconds": replayed.seconds,
        "error": None if error is None else f"{type(error).__name__}: {error}",
        "traceback": "" if error is None else user_traceback(error),
        "halted": next(iter(replayed.run.halted.values()), None),
        "dead_letters": [
            {"topic": letter.topic, "headers": [[name, json_bytes(value)] for name, value in letter.raw_headers]}
            for letter in replayed.run.dead_letters
        ],
    }


def _time(ms: int | None) -> str:
    if ms is None:
        return "without a timestamp"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
