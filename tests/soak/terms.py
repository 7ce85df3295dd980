"""What a shape stands for: the settings of its members, the load they are under, and what they are held to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.crowds import IN_HAND, Crowd
from tests.chaos.group import DEATHS, FETCHERS, PROTOCOLS, SESSION, Terms
from tests.soak.plan import Shape
from tests.system.members import merged

KEYS = 1000
COMMIT_INTERVAL = 5.0
"""The service's default, seconds."""
_BATCH = 500
"""The default of `batch_max_records`."""

_WAYS: Mapping[str, tuple[Mapping[str, Any], str, int]] = {
    "record": ({}, "", 1),
    "batch": ({"mode": "batch"}, "_batch", _BATCH),
    "arrow": ({"mode": "arrow"}, "_columns", _BATCH),
    "threads": ({"ordering": "none", "concurrency": IN_HAND}, "", IN_HAND),
    "tasks": ({"ordering": "partition", "concurrency": IN_HAND}, "_async", IN_HAND),
    "keys": ({"ordering": "key", "concurrency": IN_HAND}, "", IN_HAND),
}
"""Of [handler], the end of its function's name, and how many records a worker has in hand."""
_KEPT = {"record": "KeptRecords", "batch": "KeptBatches", "arrow": "KeptColumns"}
"""The classes that keep offsets in a database."""
_DELIVERIES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "at least once": {"delivery": "at_least_once"},
    "transactions": {"delivery": "transactions"},
    "database": {},
}
_BATCHES = ("batch", "arrow")
LINGER_MS = 200
"""Of the load's producer. At five milliseconds nearly each of two thousand records a second is a batch of its own, in
twelve partitions of three replicas. At 3,000 records a second, brokers took 0.8 of a processor with 50 ms and 0.36
with 200 ms, one after the other on the same machine: three legs with 50 ms waited for each other."""


def rate(shape: Shape) -> int:
    """Records a second. Brokers, members, and the audit of each call may have two cores between them, and another leg
    beside. Batches and columns cost less a record; outputs are records again; a database has a transaction for each
    record."""
    by_batches = shape.way in _BATCHES
    if shape.way == "tasks" and shape.delivery == "at least once":
        # Each partition handles one record per round trip to the brokers (docs/exactly-once.md), which beside two other
        # groups takes up to a second while brokers restart: twelve of them came to 13 records a second then, and a
        # backlog of minutes was not handled within minutes.
        return 50
    if shape.delivery == "database":
        return 3_000 if by_batches else 1_000
    if shape.delivery == "none":
        return 6_000 if by_batches else 3_000
    return 2_000


def outputs_topic(topic: str) -> str:
    """Where the outputs of what is in the topic go."""
    return f"{topic}.out"


def database(directory: Path) -> Path:
    """The file in which the group of that directory keeps offsets and effects."""
    return directory / "effects.db"


def terms(shape: Shape, topic: str, directory: Path, connection: Mapping[str, str]) -> Terms:
    """Of that shape's group; `connection`: settings of [kafka] to reach the brokers."""
    handler, _, in_hand = _WAYS[shape.way]
    producing = _DELIVERIES[shape.delivery]
    settings = merged(
        {
            "kafka": {**_fetcher(shape), **connection},
            "group": {**PROTOCOLS[shape.protocol], **_session(shape), "auto_offset_reset": "earliest"},
            "workers": {"max_crashes": DEATHS},
            "log": {"level": "info"},
            "handler": {**handler, "entrypoint": _entrypoint(shape), "on_failure": "dead_letter"},
        },
        {"producing": {**producing, "topic": outputs_topic(topic)}} if producing else {},
        {"handler": {"options": {"path": str(database(directory))}}} if shape.delivery == "database" else {},
    )
    crowd = Crowd(
        handler,
        None if producing else in_hand,
        rate(shape),
        KEYS,
        str(handler.get("ordering", "partition")),
        shape.way in _BATCHES,
        LINGER_MS,
    )
    return Terms(settings, crowd, shape.session, COMMIT_INTERVAL, commits=shape.delivery != "database")


def _fetcher(shape: Shape) -> Mapping[str, Any]:
    """The default is not said: members of an earlier commit know of no other."""
    return {} if shape.fetcher == FETCHERS[0] else {"fetcher": shape.fetcher}


def _session(shape: Shape) -> Mapping[str, Any]:
    """As it comes, but for the session of the classic protocol, which members choose: the least that is allowed."""
    return {} if shape.protocol == "consumer" else {"session_timeout_ms": int(SESSION * 1000)}


def _entrypoint(shape: Shape) -> str:
    if shape.is_lethal:
        return "tests.system.handlers.lethal:handle"
    name = ("send" if _DELIVERIES[shape.delivery] else "handle") + _WAYS[shape.way][1]
    module = "soaked_columns" if shape.way == "arrow" else "soaked"
    return f"tests.system.handlers.{module}:{_KEPT[shape.way] if shape.delivery == 'database' else name}"
