"""Partitions that are taken away while a hook that was offered them fails."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

from kunicorn.ipc.messages import FetcherStart, FromWorker
from kunicorn.worker.hooks import Hooks, Revocations
from kunicorn.worker.progress import Interrupts

LATER = 10**12


class Table:
    """What is started of it, and stopped."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.stopped: list[int] = []

    def start(self, starts: Collection[FetcherStart]) -> None:
        self.started += [start.grant for start in starts]

    def stop(self, grants: Collection[int], lost: bool = False) -> None:
        self.stopped += grants


class Counters:
    """The control thread has its turn where something is counted: it takes the same lock."""

    turn: Callable[[], None] = staticmethod(lambda: None)

    def count(self, *counted: object) -> None:
        turn, self.turn = self.turn, lambda: None
        turn()


def test_a_stop_that_comes_as_a_hook_fails_is_not_lost() -> None:
    fails = [True, False]

    def on_assigned(offsets: object) -> None:
        if fails.pop(0):
            raise RuntimeError("the database is away")

    handler = SimpleNamespace(
        on_assigned=on_assigned, on_revoked=None, on_lost=None, load_offsets=None, store_offsets=None, entrypoint="m:h"
    )
    handling = SimpleNamespace(handler=handler, calls=SimpleNamespace(run=lambda called: called))
    handlings: Any = SimpleNamespace(every=[handling], of=lambda topic: handling)
    table, counters, interrupts, reports = Table(), Counters(), Interrupts(), list[FromWorker]()
    given: Any = (table, interrupts, counters)
    revocations = Revocations(handlings, reports.append, *given[1:])
    hooks = Hooks(handlings, revocations, *given)
    counters.turn = lambda: hooks.stop([1])
    hooks.start([FetcherStart(1, 1, "t", 0, 5, -1)])
    hooks.call_due(LATER)
    hooks.call_due(2 * LATER)
    told = [stopped.grant for report in reports for stopped in getattr(report, "partitions", [])]
    assert (table.started, told) == ([], [1])
