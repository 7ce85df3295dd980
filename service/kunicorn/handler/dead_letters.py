"""Dead letters and retry records: what a record looks like in the topic that a failure sends it to.

Key, value and headers are the original's. Origin, error and tries are added as headers whose names begin with
`kunicorn-`, as UTF-8 text; headers that the original already had under these names are replaced. A dead letter keeps
the original's timestamp. A record in a retry topic has that of its sending, since the topic's delay and retention count
from there; its origin stands in headers (`kunicorn.handler.record`).

Used by workers, by the drivers of Spark jobs, and by `kunicorn dlq`. Pure: no Kafka client is called here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from kunicorn.handler import letter_styles
from kunicorn.handler.config import RetryTopic
from kunicorn.handler.load import error_message, user_traceback
from kunicorn.handler.record import ATTEMPTS, OFFSET, PARTITION, RETRY_TOPIC, TIMESTAMP, TOPIC, Record
from kunicorn.handler.retry import End, Policies, Reason, reason_of

GROUP = "kunicorn-group"
ERROR_TYPE, ERROR_MESSAGE, ERROR_STACK = "kunicorn-error-type", "kunicorn-error-message", "kunicorn-error-stack"
TIME = "kunicorn-time"
"""When it was given up, milliseconds since 1970."""
STYLE = "kunicorn-headers"
"""Whose headers a letter has beside ours: "spring", "connect" or "karafka"."""
REPLAYS = "kunicorn-replays"
"""How often the record was sent back to its topic by `kunicorn dlq replay`; stays with the record."""

OURS = frozenset(
    {
        *(TOPIC, PARTITION, OFFSET, TIMESTAMP, ATTEMPTS, RETRY_TOPIC, GROUP),
        *(ERROR_TYPE, ERROR_MESSAGE, ERROR_STACK, TIME, STYLE, REPLAYS),
    }
)
"""Names that headers of ours have; others that begin alike are the producer's."""

WORKER_DIED = "WorkerDied"
"""The error's type where the record killed its workers."""

_LONGEST_MESSAGE = 1_000
_LONGEST_STACK = 8_000
_STACK_FRAMES = 20

Headers = Sequence[tuple[str, bytes | None]]


class Source(Protocol):
    """Fields of a record that a dead letter is made of; `kunicorn.Record` has them."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """`Source` with explicit fields: made of an outcome row, or of a retry record's origin."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a record could not be handled. Texts are bounded: they become headers."""

    type: str
    message: str
    stack: str
    attempts: int
    reason: str = ""
    """For what it was given up (`Reason`), and `topic`: where the rule of its exception sends such records. Only jobs
    keep both here; a worker decides on the spot."""
    topic: str | None = None


def topic_of_letters(reason: str, by_rule: str | None, own: str | None, by_reason: Mapping[str, str]) -> str | None:
    """Dead-letter topic of a record that was given up for `reason`, where the settings name another than that of the
    service: of the exception's rule, by the reason, or of the handler."""
    return by_rule or by_reason.get(reason) or own


_TOLD_AS = {
    "kunicorn.worker.produce.sender.LetterRefused": "kunicorn.worker.refusals.LetterRefused",
    "kunicorn.worker.produce.sender.NotDelivered": "kunicorn.worker.refusals.NotDelivered",
}
"""What dead letters call exceptions of ours: whoever counts letters goes by these names, wherever the classes stand."""


def cause_of(error: BaseException, attempts: int) -> Cause:
    """Cause of a failure, from its exception: class with module, message, and the user's part of the traceback."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    name = _TOLD_AS.get(name, name)
    stack = user_traceback(error, _STACK_FRAMES)
    # The end of a stack says where it was raised, the beginning of a message what happened.
    return Cause(name, error_message(error)[:_LONGEST_MESSAGE], stack[-_LONGEST_STACK:], attempts)


def given_up_by(error: BaseException, failures: int, policies: Policies) -> Cause:
    """Likewise, after the record's `failures`-th failure, with the reason and the topic of the exception's rule."""
    policy = policies.of(error)
    reason = reason_of(error, failures, policy.max_attempts)
    return replace(cause_of(error, failures), reason=reason, topic=policy.dead_letter_topic)


def died(text: str, deaths: int) -> Cause:
    """Cause of a record that killed so many processes."""
    return Cause(WORKER_DIED, text, "", deaths, Reason.POISON)


@dataclass(frozen=True, slots=True)
class Letter:
    """Record to produce to a dead-letter or retry topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None
    """Milliseconds since 1970; None: the record had none."""


def letter_of(record: Source, group: str, cause: Cause, now_ms: int, style: str = letter_styles.OWN) -> Letter:
    """Dead letter of `record` in `group`, given up at `now_ms` (milliseconds since 1970). `style`: whose headers it has
    beside ours; the record's own of these names are dropped."""
    added = {
        TOPIC: record.topic,
        PARTITION: str(record.partition),
        OFFSET: str(record.offset),
        GROUP: group,
        ERROR_TYPE: cause.type,
        ERROR_MESSAGE: cause.message,
        ERROR_STACK: cause.stack,
        ATTEMPTS: str(cause.attempts),
        TIME: str(now_ms),
    }
    if style == letter_styles.OWN:
        return Letter(record.key, record.value, with_ours(record.headers, added), record.timestamp)
    facts = letter_styles.Facts(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        group,
        cause.type,
        cause.message,
        cause.stack,
        cause.attempts,
    )
    own = [(name, value) for name, value in record.headers if not letter_styles.is_of(style, name)]
    headers = [*with_ours(own, {**added, STYLE: style}), *letter_styles.written(style, facts)]
    return Letter(record.key, record.value, headers, record.timestamp)


def with_ours(headers: Headers, added: Mapping[str, str]) -> Headers:
    """`headers` with the `added` ones; earlier ones of the same names are dropped."""
    kept = [(name, value) for name, value in headers if name not in OURS or name == REPLAYS]
    return [*kept, *((name, text.encode(errors="replace")) for name, text in added.items())]


class Unreadable(ValueError):
    """Record in the dead-letter topic that is no letter; the message says which header of ours is missing."""


@dataclass(frozen=True, slots=True)
class Told:
    """Content of a dead letter's headers, and the original record's own headers."""

    topic: str
    partition: int
    offset: int
    group: str
    cause: Cause
    time_ms: int
    replays: int
    headers: Headers


def read(headers: Iterable[tuple[str, bytes | None]], timestamp: int | None = None) -> Told:
    """Parse a dead letter's headers: ours, or those of Spring, Kafka Connect or Karafka. `timestamp`: the letter's, for
    those who do not tell when it was given up. Raises `Unreadable`."""
    every = list(headers)
    ours = {name: value.decode(errors="replace") for name, value in every if name in OURS and value}
    others = None if TOPIC in ours else letter_styles.read_any(every)
    style = ours.get(STYLE, letter_styles.OWN)
    missing = [name for name in (TOPIC, PARTITION, OFFSET, ERROR_TYPE, TIME) if name not in ours]
    if missing and others is None:
        raise Unreadable(f"no header {missing[0]}")
    try:
        replays = int(ours.get(REPLAYS, "0"))
        if others is not None:
            return _of_others(*others, every, timestamp or 0, replays)
        cause = Cause(
            ours[ERROR_TYPE], ours.get(ERROR_MESSAGE, ""), ours.get(ERROR_STACK, ""), int(ours.get(ATTEMPTS, "1"))
        )
        return Told(
            ours[TOPIC],
            int(ours[PARTITION]),
            int(ours[OFFSET]),
            ours.get(GROUP, ""),
            cause,
            int(ours[TIME]),
            replays,
            [pair for pair in every if not (pair[0] in OURS or letter_styles.is_of(style, pair[0]))],
        )
    except ValueError as error:
        raise Unreadable(f"a header that is no number: {error}") from error


def _of_others(style: str, facts: letter_styles.Facts, every: Headers, time_ms: int, replays: int) -> Told:
    """A letter that somebody else has written, which kunicorn replays as its own."""
    cause = Cause(facts.error, facts.message, facts.stack, facts.attempts)
    own = [pair for pair in every if not (pair[0] in OURS or letter_styles.is_of(style, pair[0]))]
    return Told(facts.topic, facts.partition, facts.offset, facts.group, cause, time_ms, replays, own)


def replayed(told: Told) -> Headers:
    """Headers for sending the original back to its topic: its own, and a count of replays."""
    return [*told.headers, (REPLAYS, str(told.replays + 1).encode())]


@dataclass(frozen=True, slots=True)
class Destination:
    """Topic that failed records go to, and how a record is written for it."""

    topic: str
    kind: str
    """For people: "dead-letter topic"."""
    end: End
    """How the record has ended by that; a partition waits for this by the same name."""
    letter: Callable[[Record, str, Cause, int], Letter]
    """Of a record, the group, what it failed by, and now (milliseconds since 1970)."""


def dead_letters(topic: str, style: str = letter_styles.OWN) -> Destination:
    """The dead-letter topic, as a destination. `style`: whose headers letters have beside ours."""
    return Destination(topic, "dead-letter topic", End.DEAD_LETTER, partial(_dead_letter, style))


def retries(topic: RetryTopic) -> Destination:
    """A retry topic, as a destination."""

    def letter(record: Record, group: str, cause: Cause, now_ms: int) -> Letter:
        return retry_of(record, group, cause, now_ms, topic.name)

    return Destination(topic.name, "retry topic", End.RETRY_TOPIC, letter)


def retry_of(record: Record, group: str, cause: Cause, now_ms: int, topic: str) -> Letter:
    """Record for the retry topic `topic`, where it waits from `now_ms` on."""
    origin = record.origin
    added = {
        RETRY_TOPIC: topic,
        TOPIC: origin.topic,
        PARTITION: str(origin.partition),
        OFFSET: str(origin.offset),
        GROUP: group,
        ERROR_TYPE: cause.type,
        ERROR_MESSAGE: cause.message,
        ATTEMPTS: str(origin.attempts + cause.attempts),
    }
    if origin.timestamp is not None:
        added[TIMESTAMP] = str(origin.timestamp)
    return Letter(record.key, record.value, with_ours(record.headers, added), now_ms)


def _dead_letter(style: str, record: Record, group: str, cause: Cause, now_ms: int) -> Letter:
    """Dead letter with the record's origin as its place, and all tries counted, those before a retry topic included."""
    origin = record.origin
    first = SourceRecord(
        origin.topic, origin.partition, origin.offset, origin.timestamp, record.key, record.value, record.headers
    )
    return letter_of(first, group, replace(cause, attempts=origin.attempts + cause.attempts), now_ms, style)
