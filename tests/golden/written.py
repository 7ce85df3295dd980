"""What some code writes for the inputs, as text that people can read and compare.

The code comes as a `Code`: that of today, or that of the commit whose bytes count. Neither is imported here.
"""

from __future__ import annotations

import builtins as _builtins
import json
import linecache
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from tests.golden import inputs

Table = dict[str, Any]
PLACE = ("orders", 3, 41)
_SHOP = "/srv/shop/handlers.py"
_SLOT, _GRANT = 5, 9
_NEXT, _STOP, _STATE, _DIED, _OF_PROCESSES = 0, 1, 2, 2, slice(3, 8)


@dataclass(frozen=True)
class Code:
    """What is asked of either code, by the names that today's has."""

    # commits
    ledger: Any
    position: Any
    done_text: Any
    replayed: Any
    # letters
    record: Any
    cause: Any
    cause_of: Any
    dead_letters: Any
    retries: Any
    retry_topic: Any
    ours: Mapping[str, Callable[[str], BaseException]]
    # the classic protocol
    topic_partition: Any
    assignors: Any
    subscription: Any
    encode_subscription: Any
    encode_assignment: Any
    # jobs
    offset_range: Any
    run_state: Any
    counts: Any
    run: Any
    runs: Any
    save_export: Callable[[str, Any, tuple[bool, str, str]], None]
    offsets_as_json: Any
    take_up: Any
    directory: Any
    outcome_schema: Any

    def tps(self, places: Any) -> list[Any]:
        return [self.topic_partition(*place) for place in places]


def everything(code: Code) -> dict[str, Table]:
    """By the name of the file."""
    return {
        "commits": commits(code),
        "letters": letters(code),
        "classic": classic(code),
        "jobs": jobs(code),
    }


def as_file(table: Table) -> str:
    """One header a line."""
    text = json.dumps(table, indent=1, ensure_ascii=False)
    return re.sub(r"\[\n +(.*),\n +(null|\".*\"|\{\n.*\n +\})\n +\]", lambda pair: _on_one_line(pair[0]), text) + "\n"


def _on_one_line(text: str) -> str:
    return json.dumps(json.loads(text), ensure_ascii=False)


# -- commits


def commits(code: Code) -> Table:
    return {
        "done ahead": {name: _done_ahead(code, *state) for name, state in inputs.DONE_AHEAD.items()},
        "replayed letters": {name: _replayed(code, ranges) for name, ranges in inputs.REPLAYED.items()},
    }


def _done_ahead(code: Code, first: int, done: list[range]) -> str:
    """By way of the ledger, as a worker writes and a supervisor reads it."""
    ledger = code.ledger.create(16)
    try:
        ledger.open_slot(_SLOT, _GRANT, code.position(first, 0))
        for offset in (offset for offsets in done for offset in offsets if 0 <= offset - first < 4096):
            ledger.done(_SLOT).mark(offset)
        in_ledger = ledger.done(_SLOT).from_offset(ledger.read(_SLOT, _GRANT).consumed.offset)
        text: str = code.done_text(first, in_ledger)
        assert text == code.done_text(first, [offset for offsets in done for offset in offsets])
        return text
    finally:
        ledger.close()


def _replayed(code: Code, ranges: list[range]) -> str:
    replayed = code.replayed(2)
    for offset in (offset for offsets in ranges for offset in offsets):
        replayed.add(offset)
    text: str = replayed.metadata()
    return text


# -- letters


def letters(code: Code) -> Table:
    plain, failed = inputs.RECORDS["plain"], _cause(code, "the user's own", 3)
    dead = code.dead_letters(inputs.DEAD_LETTERS)
    first, second = (code.retries(code.retry_topic(*each)) for each in inputs.RETRY_TOPICS)
    table: Table = {f"failure: {name}": _sent(code, dead, plain, _cause(code, name, 1)) for name in inputs.FAILURES}
    table["failure: the worker died"] = _sent(code, dead, plain, code.cause(*inputs.WORKER_DIED))
    for name, record in inputs.RECORDS.items():
        table[f"record: {name}"] = _sent(code, dead, record, failed)
        table[f"record: {name}; in its first retry topic"] = once = _sent(code, first, record, failed)
        table[f"record: {name}; in its second retry topic"] = twice = _sent(
            code, second, _again(once), failed, (first.topic, 0, 5)
        )
        table[f"record: {name}; given up behind both"] = _sent(code, dead, _again(twice), failed, (second.topic, 1, 6))
    return table


def _cause(code: Code, name: str, attempts: int) -> Any:
    kind, message, depth = inputs.FAILURES[name]
    shop = _shop()
    error = code.ours[kind](message) if kind in inputs.OURS else (shop.get(kind) or getattr(_builtins, kind))(message)
    return code.cause_of(shop["raised"](error, depth), attempts)


def _shop() -> dict[str, Any]:
    """The user's module, as if it lay on a disk."""
    linecache.cache[_SHOP] = (len(inputs.SHOP), None, inputs.SHOP.splitlines(keepends=True), _SHOP)
    module: dict[str, Any] = {"__name__": "shop.handlers"}
    exec(compile(inputs.SHOP, _SHOP, "exec"), module)
    return module


def message_of(record: Mapping[str, Any], place: tuple[str, int, int] = PLACE) -> Message:
    """As the client hands it out."""
    at = record["timestamp"]
    kind = TIMESTAMP_NOT_AVAILABLE if at is None else TIMESTAMP_CREATE_TIME
    return Message(
        topic=place[0],
        partition=place[1],
        offset=place[2],
        key=record["key"],
        value=record["value"],
        headers=list(record["headers"]) or None,
        timestamp=(kind, at or 0),
    )


def _sent(
    code: Code, address: Any, record: Mapping[str, Any], cause: Any, place: tuple[str, int, int] = PLACE
) -> Table:
    letter = address.letter(code.record.of(message_of(record, place)), inputs.GROUP, cause, inputs.NOW_MS)
    return {
        "topic": address.topic,
        "key": _shown(letter.key),
        "value": _shown(letter.value),
        "timestamp": letter.timestamp,
        "headers": [[name, _shown(value)] for name, value in letter.headers],
    }


def _again(sent: Table) -> Table:
    """A record that was sent, as it is read."""
    return {
        "key": told(sent["key"]),
        "value": told(sent["value"]),
        "timestamp": sent["timestamp"],
        "headers": [(name, told(value)) for name, value in sent["headers"]],
    }


def _shown(data: bytes | None) -> Any:
    """Text, where it is some; else `{"hex": …}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def told(shown: Any) -> bytes | None:
    """The reverse."""
    if shown is None:
        return None
    return bytes.fromhex(shown["hex"]) if isinstance(shown, Mapping) else str(shown).encode()


# -- the classic protocol


def classic(code: Code) -> Table:
    return {
        "subscriptions": {
            assignor: {name: _subscribed(code, assignor, member).hex() for name, member in inputs.SUBSCRIPTIONS.items()}
            for assignor in inputs.ASSIGNORS
        },
        "assignments": {
            name: code.encode_assignment(code.tps(places)).hex() for name, places in inputs.ASSIGNMENTS.items()
        },
    }


def subscription_of(code: Code, assignor: str, member: Mapping[str, Any]) -> Any:
    """What a member says of itself under this assignor, as it joins."""
    return code.subscription(
        topics=tuple(member["topics"]),
        owned=tuple(code.tps(member["owned"])),
        generation=member["generation"],
        rack=member["rack"],
        user_data=code.assignors[assignor].user_data(member["generation"], code.tps(member["assigned"])),
    )


def _subscribed(code: Code, assignor: str, member: Mapping[str, Any]) -> bytes:
    data: bytes = code.encode_subscription(assignor, subscription_of(code, assignor, member))
    return data


# -- jobs


def jobs(code: Code) -> Table:
    return {
        "manifests": {name: _manifest(code, run) for name, run in inputs.RUNS.items()},
        "export": _export(code),
        "stream": code.offsets_as_json({code.topic_partition(*tp): at for tp, at in inputs.STREAM.items()}),
        "hands": {name: _hand(code, *cells) for name, cells in inputs.HANDS.items()},
        "outcomes": [str(field) for field in code.outcome_schema],
    }


def state_of(code: Code, run: Mapping[str, Any]) -> Any:
    """A run's state of the inputs."""
    offsets, seconds, busy = run.get("last", (0, 0.0, 0.0))
    return code.run_state(
        ranges=tuple(code.offset_range(*each) for each in run["ranges"]),
        positions={code.topic_partition(*tp): at for tp, at in run.get("positions", {}).items()},
        halted={code.topic_partition(*tp): why for tp, why in run.get("halted", {}).items()},
        underway=tuple(code.offset_range(*each) for each in run.get("underway", ())),
        rounds=run.get("rounds", 0),
        counts=code.counts(*run.get("counts", ())),
        seconds=run.get("seconds", 0.0),
        last_offsets=offsets,
        last_seconds=seconds,
        last_busy=busy,
    )


def _manifest(code: Code, run: Mapping[str, Any]) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        made = code.run(inputs.RUN_ID, run["job"], inputs.HANDLER, inputs.STARTED, state_of(code, run), run["request"])
        code.runs(directory).save(made)
        return _only_json(Path(directory) / inputs.RUN_ID)


def _export(code: Code) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        code.save_export(directory, state_of(code, inputs.RUNS["an export that is through"]), inputs.FORM)
        return _only_json(Path(directory))


def _only_json(directory: Path) -> list[str]:
    """Its lines."""
    (file,) = directory.rglob("*.json")
    return file.read_text().splitlines(keepends=True)


def _hand(code: Code, following: int, stop: int) -> str:
    """The cells of a task that has died; which processes those were is left out."""
    with tempfile.TemporaryDirectory() as outcomes:
        hand = code.take_up(code.offset_range(*inputs.TASK), code.directory(outcomes))
        hand.cells[_NEXT], hand.cells[_STOP], hand.cells[_STATE] = following, stop, _DIED
        (file,) = Path(outcomes).rglob("*.cells")
        cells = list(memoryview(file.read_bytes()).cast("q"))
        cells[_OF_PROCESSES] = [0] * 5
        hand.cells.release()
        name = file.relative_to(outcomes)
        return f"{name.parent}/{name.name[:-38]} {' '.join(map(str, cells))}"
