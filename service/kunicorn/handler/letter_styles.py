"""Headers of dead letters in the names and encodings of Spring Kafka, Kafka Connect and Karafka, written and read.

Spring's numbers are big-endian, of four bytes and eight (`DeadLetterPublishingRecoverer`); all else is UTF-8 text
(`DeadLetterQueueReporter`, Karafka's enhanced dead letter queue). A letter of kunicorn's has its own headers as well
(`kunicorn.handler.dead_letters`), and says in one of them which others it has. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

OWN = "kunicorn"
"""The style of letters that have kunicorn's headers alone."""

_SPRING, _CONNECT, _KARAFKA = "kafka_dlt-", "__connect.errors.", "source_"
_OF_KARAFKA = frozenset({"topic", "partition", "offset", "key", "consumer_group", "attempts", "trace_id"})
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_NO_TIMESTAMP = -1
_STAGE = "TASK_PUT"
"""What Connect calls the step in which a sink takes records."""


class Facts(NamedTuple):
    """What such headers tell."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    """Milliseconds since 1970, of the original record; None: it had none, or the style does not tell."""
    group: str
    error: str
    message: str
    stack: str
    attempts: int


def _spring(facts: Facts) -> Mapping[str, bytes]:
    timestamp = _NO_TIMESTAMP if facts.timestamp is None else facts.timestamp
    return {
        "original-topic": _text(facts.topic),
        "original-partition": _INT.pack(facts.partition),
        "original-offset": _LONG.pack(facts.offset),
        "original-timestamp": _LONG.pack(timestamp),
        "original-consumer-group": _text(facts.group),
        "exception-fqcn": _text(facts.error),
        "exception-message": _text(facts.message),
        "exception-stacktrace": _text(facts.stack),
    }


def _connect(facts: Facts) -> Mapping[str, bytes]:
    return {
        "topic": _text(facts.topic),
        "partition": _text(facts.partition),
        "offset": _text(facts.offset),
        "connector.name": _text(facts.group),
        "stage": _text(_STAGE),
        "exception.class.name": _text(facts.error),
        "exception.message": _text(facts.message),
        "exception.stacktrace": _text(facts.stack),
    }


def _karafka(facts: Facts) -> Mapping[str, bytes]:
    return {
        "topic": _text(facts.topic),
        "partition": _text(facts.partition),
        "offset": _text(facts.offset),
        "consumer_group": _text(facts.group),
        "attempts": _text(facts.attempts),
    }


def _text(value: object) -> bytes:
    return str(value).encode(errors="replace")


def _of_spring(told: Mapping[str, bytes]) -> Facts:
    timestamp = _LONG.unpack(told["original-timestamp"])[0] if "original-timestamp" in told else _NO_TIMESTAMP
    return Facts(
        _read(told, "original-topic"),
        _INT.unpack(told["original-partition"])[0],
        _LONG.unpack(told["original-offset"])[0],
        timestamp if timestamp >= 0 else None,
        _read(told, "original-consumer-group", ""),
        # Spring wraps what a listener raised; its cause is what people look for.
        _read(told, "exception-cause-fqcn", _read(told, "exception-fqcn", "")),
        _read(told, "exception-message", ""),
        _read(told, "exception-stacktrace", ""),
        1,
    )


def _of_connect(told: Mapping[str, bytes]) -> Facts:
    return Facts(
        _read(told, "topic"),
        int(_read(told, "partition")),
        int(_read(told, "offset")),
        None,
        _read(told, "connector.name", ""),
        _read(told, "exception.class.name", ""),
        _read(told, "exception.message", ""),
        _read(told, "exception.stacktrace", ""),
        1,
    )


def _of_karafka(told: Mapping[str, bytes]) -> Facts:
    place = _read(told, "topic"), int(_read(told, "partition")), int(_read(told, "offset"))
    return Facts(*place, None, _read(told, "consumer_group", ""), "", "", "", int(_read(told, "attempts", "1")))


def _read(told: Mapping[str, bytes], name: str, otherwise: str | None = None) -> str:
    """Text of a header. Raises `KeyError` where it is missing and nothing is said in its place."""
    if name not in told and otherwise is not None:
        return otherwise
    return told[name].decode(errors="replace")


class _Style(NamedTuple):
    prefix: str
    names: Collection[str] | None
    """Behind the prefix; None: whatever has it."""
    write: Callable[[Facts], Mapping[str, bytes]]
    read: Callable[[Mapping[str, bytes]], Facts]


_STYLES: Mapping[str, _Style] = {
    "spring": _Style(_SPRING, None, _spring, _of_spring),
    "connect": _Style(_CONNECT, None, _connect, _of_connect),
    "karafka": _Style(_KARAFKA, _OF_KARAFKA, _karafka, _of_karafka),
}


def written(style: str, facts: Facts) -> list[tuple[str, bytes | None]]:
    """Headers of that style; none for kunicorn's own."""
    if style == OWN:
        return []
    found = _STYLES[style]
    return [(found.prefix + name, value) for name, value in found.write(facts).items()]


def is_of(style: str, name: str) -> bool:
    """Whether a letter in that style has a header of that name from whoever wrote the letter, not from its record."""
    if (found := _STYLES.get(style)) is None or not name.startswith(found.prefix):
        return False
    return found.names is None or name.removeprefix(found.prefix) in found.names


def read_any(headers: Sequence[tuple[str, bytes | None]]) -> tuple[str, Facts] | None:
    """Style of a letter that somebody else wrote, and what it tells; None where it is of none of these."""
    for style, found in _STYLES.items():
        told = {name.removeprefix(found.prefix): value for name, value in headers if is_of(style, name) and value}
        try:
            return style, found.read(told)
        except (KeyError, ValueError, struct.error):
            continue
    return None
