"""`kunicorn dlq list` and `show`: counts, and one letter whole. Text for people; control characters are escaped."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from kunicorn.dlq.topic import Found, LettersTopic
from kunicorn.errors import ConfigError
from kunicorn.tables import json_bytes, printable, shown_bytes


def summary(topic: str, letters: Iterable[Found], latest: int) -> Iterator[str]:
    """Counts by where from and why, times, the latest letters, and what is no letter of ours."""
    counts: Counter[tuple[str, str, int]] = Counter()
    foreign: Counter[str] = Counter()
    last: deque[Found] = deque(maxlen=latest)
    times: list[int] = []
    for found in letters:
        if found.told is None:
            foreign[found.why] += 1
            continue
        counts[found.told.cause.type, found.told.topic, found.told.partition] += 1
        times = [min([found.told.time_ms, *times]), max([found.told.time_ms, *times])]
        last.append(found)
    total = sum(counts.values())
    span = f", {_time(times[0])} to {_time(times[1])}" if times else ""
    yield f"{topic}: {total} dead letter{'' if total == 1 else 's'}{span}"
    for (error, source, partition), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:>8}  {error}  {source}-{partition}"
    for why, count in foreign.items():
        yield f"{count:>8}  no dead letters of kunicorn's: {why}"
    if last:
        yield "the latest, for `kunicorn dlq show`:"
    for found in last:
        told = found.told
        assert told is not None
        source = f"{told.topic}-{told.partition}@{told.offset}"
        error = f"{told.cause.type}: {_one_line(told.cause.message)}"
        yield f"  {found.partition}@{found.offset}  {_time(told.time_ms)}  {source}  {error}"


def summary_json(topic: str, letters: Iterable[Found], latest: int) -> str:
    """The same for a program."""
    counts: Counter[tuple[str, str, int]] = Counter()
    foreign = 0
    last: deque[Found] = deque(maxlen=latest)
    for found in letters:
        if found.told is None:
            foreign += 1
        else:
            counts[found.told.cause.type, found.told.topic, found.told.partition] += 1
            last.append(found)
    groups = [
        {"error": error, "topic": source, "partition": partition, "count": count}
        for (error, source, partition), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    told = {"topic": topic, "letters": sum(counts.values()), "foreign": foreign, "groups": groups}
    return json.dumps({**told, "latest": [_plain(found) for found in last]}, ensure_ascii=False)


def one(topic: LettersTopic, place: str) -> Found:
    """The letter at "partition@offset". Raises `ConfigError`."""
    number, at, offset = place.partition("@")
    if not (at and number.isdecimal() and offset.isdecimal()):
        raise ConfigError(f"{place!r} is not the place of a letter; `kunicorn dlq list` shows them, such as 0@12")
    first, end = topic.bounds.get(int(number), (0, 0))
    if first <= int(offset) < end:
        ends = {other: bound[1] for other, bound in topic.bounds.items() if other != int(number)}
        for found in topic.letters({**ends, int(number): int(offset)}):
            if found.offset == int(offset):
                return found
            break
    raise ConfigError(f"there is no record at {place} of {topic.name!r}: it has {_shown_bounds(topic)}")


def _shown_bounds(topic: LettersTopic) -> str:
    return ", ".join(f"{number}@{first} to {number}@{end - 1}" if end > first else f"nothing in {number}"
                     for number, (first, end) in topic.bounds.items())  # fmt: skip


def whole(found: Found) -> Iterator[str]:
    """One letter for a person."""
    record, told = found.record, found.told
    if told is None:
        yield f"no dead letter of kunicorn's: {found.why}"
    else:
        yield f"from      {told.topic}-{told.partition}@{told.offset}, group {told.group}"
        yield f"given up  {_time(told.time_ms)} after {told.cause.attempts} attempts, {told.replays} replays before"
        yield f"error     {told.cause.type}: {_one_line(told.cause.message)}"
        yield from (f"          {printable(line)}" for line in told.cause.stack.splitlines())
    yield f"timestamp {_time(record.timestamp) if record.timestamp is not None else 'none'}"
    yield f"key       {shown_bytes(record.key)}"
    for name, value in told.headers if told is not None else record.headers:
        yield f"header    {printable(name)}: {shown_bytes(value)}"
    yield f"value     {shown_bytes(record.value)}"


def as_json(found: Found) -> str:
    """One letter for a program; bytes that are not UTF-8 are base64."""
    return json.dumps(_plain(found), ensure_ascii=False)


def _plain(found: Found) -> dict[str, Any]:
    record, told = found.record, found.told
    letter: dict[str, Any] = {
        "place": f"{found.partition}@{found.offset}",
        "timestamp": record.timestamp,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [[name, json_bytes(value)] for name, value in (told.headers if told else record.headers)],
    }
    if told is not None:
        letter |= {"topic": told.topic, "partition": told.partition, "offset": told.offset, "group": told.group}
        letter |= {"error": told.cause.type, "message": told.cause.message, "stack": told.cause.stack}
        letter |= {"attempts": told.cause.attempts, "time": told.time_ms, "replays": told.replays}
    return letter


def _one_line(text: str) -> str:
    return printable(text.splitlines()[0] if text else "")[:200]


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
