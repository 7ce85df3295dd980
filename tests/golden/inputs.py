"""What both commits write down: plain data, which knows of no code.

Whoever changes it makes the files anew; see `tests.golden.make`.
"""

from __future__ import annotations

from typing import Any

# -- commits

DONE_AHEAD: dict[str, tuple[int, list[range]]] = {
    "nothing is done ahead": (100, []),
    "one record": (100, [range(102, 103)]),
    "the records behind the first": (0, [range(1, 10)]),
    "islands": (5_000_000_000, [range(5_000_000_001, 5_000_000_004), range(5_000_000_100, 5_000_000_101)]),
    "the last offset of the window": (7, [range(7 + 4095, 7 + 4096)]),
    "offsets outside the window": (4096, [range(4000, 4010), range(4097, 4098), range(8192, 8200)]),
    "every other record of the window": (10_000, [range(10_001, 14_096, 2)]),
    "the whole window but its first record": (1, [range(2, 4097)]),
}
"""The lowest unfinished offset, and those that are done beyond it."""

REPLAYED: dict[str, list[range]] = {
    "nothing": [],
    "single letters and ranges": [range(3, 4), range(7, 10), range(1_000_000, 1_000_001)],
    "more ranges than a commit carries": [range(number, number + 1) for number in range(100_000, 103_000, 2)],
}
"""Letters behind the side group's offset that were replayed already."""

# -- dead letters and retry topics

NOW_MS = 1_767_225_600_123
GROUP = "shop"
RETRY_TOPICS = [("shop.retry.5s", 5_000), ("shop.retry.10m", 600_000)]
DEAD_LETTERS = "shop.dead-letters"

SHOP = '''\
class NoStock(Exception):
    """The user's own."""


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def down(depth, error):
    if depth == 0:
        raise error
    else:
        up(depth, error)


def up(depth, error):
    down(depth - 1, error)


def raised(error, depth):
    try:
        down(depth, error)
    except BaseException as caught:
        return caught
'''
"""A user's module: every statement that calls or raises has a line to itself, so that every Python shows it alike."""

FAILURES: dict[str, tuple[str, str, int]] = {
    "a builtin": ("ValueError", "the total is negative", 0),
    "the user's own": ("NoStock", "sold out", 1),
    "without a message": ("NoStock", "", 0),
    "a long message": ("ValueError", "0123456789" * 300, 0),
    "more text than ASCII": ("ValueError", "größer als 9 €", 0),
    "half a character": ("ValueError", "caf\udce9", 0),
    "a deep stack": ("NoStock", "below", 40),
    "an exception without a text": ("Odd", "", 0),
    "the handler asks for a dead letter": ("DeadLetter", "a negative total", 0),
    "the handler asks for a retry": ("Retry", "later", 0),
    "a record of a batch": ("BatchError", "the third", 0),
    "no JSON": ("Undecodable", "orders-3@41: its value is no JSON", 0),
    "an output that is too large": ("NotDelivered", "MSG_SIZE_TOO_LARGE", 0),
}
"""Class, message and depth of the stack. Classes without a dot are builtins, the user's, or ours."""

OURS = frozenset({"DeadLetter", "Retry", "BatchError", "Undecodable", "NotDelivered"})

WORKER_DIED = ("WorkerDied", "2 workers died (SIGKILL) with offset 41 in hand", "", 2)
"""Type, message, stack and attempts, where the record killed its workers."""

RECORDS: dict[str, dict[str, Any]] = {
    "plain": {"key": b"k", "value": b'{"total": 3}', "headers": [], "timestamp": 1_767_225_600_000},
    "with headers": {
        "key": b"\x00\xff",
        "value": b"v",
        "headers": [("trace", b"\x01\xfe"), ("trace", b"again"), ("empty", None), ("none", b"")],
        "timestamp": 1,
    },
    "with headers under our names": {
        "key": b"k",
        "value": b"v",
        "headers": [("kunicorn-topic", b"another"), ("mine", b"1"), ("kunicorn-replays", b"2"), ("kunicorn-x", b"y")],
        "timestamp": 1_767_225_600_000,
    },
    "a tombstone without a timestamp": {"key": b"k", "value": None, "headers": [], "timestamp": None},
    "without a key": {"key": None, "value": b"", "headers": [], "timestamp": 0},
}
"""All of them are at orders-3@41."""

# -- the classic protocol

ASSIGNORS = ["range", "roundrobin", "sticky", "cooperative-sticky"]
SUBSCRIPTIONS: dict[str, dict[str, Any]] = {
    "a new member": {"topics": ["orders"], "owned": [], "assigned": [], "generation": -1, "rack": None},
    "one that owns something": {
        "topics": ["refunds", "orders"],
        "owned": [("orders", 3), ("orders", 0), ("refunds", 7)],
        "assigned": [("orders", 0), ("orders", 3), ("refunds", 7)],
        "generation": 42,
        "rack": None,
    },
    "one that gives something up, in a rack": {
        "topics": ["orders"],
        "owned": [("orders", 2)],
        "assigned": [("orders", 1), ("orders", 2)],
        "generation": 2**31 - 1,
        "rack": "eu-central-1a",
    },
    "of many topics": {
        "topics": [f"topic-{number:02}" for number in range(20, 0, -1)],
        "owned": [(f"topic-{number:02}", partition) for number in (1, 2, 20) for partition in range(12)],
        "assigned": [(f"topic-{number:02}", partition) for number in (1, 2, 20) for partition in range(12)],
        "generation": 1,
        "rack": "b",
    },
}
ASSIGNMENTS: dict[str, list[tuple[str, int]]] = {
    "nothing": [],
    "one partition": [("orders", 0)],
    "several topics": [("refunds", 1), ("orders", 11), ("orders", 2), ("größen", 0)],
}

# -- jobs

RUNS: dict[str, dict[str, Any]] = {
    "a backfill that has just begun": {
        "job": "backfill",
        "request": '[1767225600000, null, null, ["orders"]]',
        "ranges": [("orders", 0, 100, 5_000), ("orders", 1, 0, 40)],
    },
    "a backfill amid a round": {
        "job": "backfill",
        "request": "[null, null, null, []]",
        "ranges": [("orders", 0, 100, 5_000), ("orders", 1, 0, 40)],
        "positions": {("orders", 0): 2_100, ("orders", 1): 40},
        "underway": [("orders", 0, 2_100, 4_100)],
        "rounds": 2,
        "counts": (2_040, 3, 1),
        "seconds": 12.34567,
        "last": (1_000, 6.1, 5.4321),
    },
    "a catch-up with a partition that halts": {
        "job": "catch-up",
        "request": "",
        "ranges": [("orders", 0, 0, 100), ("refunds", 2, 7, 9)],
        "positions": {("orders", 0): 41, ("refunds", 2): 9},
        "halted": {("orders", 0): "orders-0@41: shop.handlers.NoStock: sold out"},
        "rounds": 1,
        "counts": (43, 0, 0),
        "seconds": 3.0,
        "last": (102, 3.0, 1.5),
    },
    "an export that is through": {
        "job": "export",
        "request": "",
        "ranges": [("orders", 0, 0, 3)],
        "positions": {("orders", 0): 3},
        "rounds": 1,
        "counts": (3, 0, 0),
        "seconds": 0.5,
        "last": (3, 0.5, 0.25),
    },
}
RUN_ID, STARTED, HANDLER = "a-run", "2026-01-01T00:00:00+00:00", "shop.handlers:handle"
FORM = (True, "json", "text")
"""An export's table, its values and its keys."""

STREAM: dict[tuple[str, int], int] = {("orders", 0): 41, ("orders", 10): 7, ("orders", 2): 0, ("refunds", 0): 12}
"""Where a stream is, as Spark's checkpoint has it."""

HANDS: dict[str, tuple[int, int]] = {"one record": (41, -1), "a batch": (40, 60)}
"""The next offset of a task that died, and the end of the batch that it had in hand; −1 for a single record."""
TASK = ("orders", 3, 0, 1_000)
