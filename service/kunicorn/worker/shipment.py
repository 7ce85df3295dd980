"""Entries that are delivered together, and how far they are beside those before them. No client is used here.

1. Shipments are taken, and committed, in the order in which their records were handled.
2. What was produced behind a transaction that is aborted is aborted as well, and produced again behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kunicorn.worker.steps import BEHIND, CLOSED, Step

if TYPE_CHECKING:
    from kunicorn.worker.outbox import Entry


class Turn(Enum):
    """Whether a shipment may go on."""

    OURS = "ours"
    NOT_YET = "not yet"
    #: The one before was aborted behind our back.
    BROKEN = "broken"


@dataclass(slots=True, eq=False)
class Shipment:
    """Made by the outbox. What is about transactions is changed by `Succession` alone."""

    entries: list[Entry]
    """Those of a refused record, and what is behind it in its partition, leave; under the outbox's lock."""
    nbytes: int = 0
    taken_at: float = 0.0
    before: Shipment | None = None
    """The one that was taken before it; once this one is settled, the last one before it that is not, if any. The table
    may hear of this one first: those behind it count on that one none the less."""
    aborts: int = 0
    """How often its transaction was aborted."""
    aborts_before: int = 0
    """How often the one before was, when this one's transaction began."""
    passed: set[Step] = field(default_factory=set)
    """The steps of its transaction that have ended well."""

    def all_before(self) -> Iterator[Shipment]:
        """Those that were taken before it and are not settled, the last one first."""
        before = self.before
        while before is not None:
            yield before
            before = before.before

    def forget_before(self, settled: Callable[[Shipment], bool]) -> None:
        """This one is settled: let go of those right before it that are as well. Else all that was ever sent stays in
        memory; but what lies behind them and is not settled, those behind this one reach through it alone."""
        while self.before is not None and settled(self.before):
            self.before = self.before.before

    def turn(self, step: Step) -> Turn:
        """Whether that step may be taken now."""
        behind, before = BEHIND.get(step), self.before
        if behind is None or before is None:
            return Turn.OURS
        if before.aborts != self.aborts_before and step not in CLOSED:
            return Turn.BROKEN
        return Turn.OURS if behind in before.passed or Step.DONE in before.passed else Turn.NOT_YET


class Succession:
    """Tells the senders of one another's progress. Caller: their threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def begin(self, shipment: Shipment) -> None:
        """Its transaction begins: from now on it depends on that of the one before."""
        with self._changed:
            if shipment.before is not None:
                shipment.aborts_before = shipment.before.aborts

    def wait(self, shipment: Shipment, step: Step, seconds: float) -> Turn:
        """Wait so long for its turn to take that step."""
        with self._changed:
            self._changed.wait_for(lambda: shipment.turn(step) is not Turn.NOT_YET, seconds)
            return shipment.turn(step)

    def passed(self, shipment: Shipment, step: Step) -> None:
        """That step has ended well."""
        with self._changed:
            shipment.passed.add(step)
            self._changed.notify_all()

    def aborted(self, shipment: Shipment) -> None:
        """Its transaction is given up."""
        with self._changed:
            shipment.passed.clear()
            shipment.aborts += 1
            self._changed.notify_all()

    def delivered(self, shipment: Shipment) -> None:
        """It is committed, or nothing of it is left, and the table knows."""
        with self._changed:
            shipment.forget_before(lambda before: Step.DONE in before.passed)
            shipment.passed.add(Step.DONE)
            self._changed.notify_all()
