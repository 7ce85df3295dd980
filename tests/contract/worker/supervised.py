"""What a story's supervisor has: its partitions, and of one worker after the other the ledger and the pipe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FromWorker, ToWorker
from tests.contract.worker.assembled import watched
from tests.contract.worker.stepping import STEPS, Strand, nanoseconds
from tests.contract.worker.truth import Log, Order, Record


class Looker(Protocol):
    """Who looks at what the worker says."""

    def storing(self, at: int) -> None:
        """The worker is about to store that word of the ledger."""

    def moved(self, slot: int) -> None:
        """The worker has stored how far it is."""

    def marked(self) -> None:
        """It has stored what is done beyond that, or in hand."""

    def applied(self, message: ToWorker) -> None:
        """The worker has done as it was told."""

    def heard(self, message: FromWorker) -> None:
        """It reports."""


class Partition:
    """What the supervisor knows of one."""

    def __init__(self, log: Log, slot: int, position: int) -> None:
        self.log, self.slot, self.position = log, slot, position
        self.committed, self.committed_done = position, frozenset[int]()
        self.stored: int | None = None
        """By a handler that keeps its offsets."""
        self.unsure = False
        """Where it goes on the brokers know."""
        self.done: frozenset[int] = frozenset()
        self.grant = 0
        self.order: Order
        self.stopping = self.applied = self.lost = self.overdue = False
        self.in_hand_then: Collection[int] = ()
        """What was in hand when the worker had been told to stop."""
        self.halted = ""
        self.running: list[Record] = []
        self.timed_out: set[int] = set()

    @property
    def free(self) -> bool:
        """Nobody handles it, and somebody may."""
        return not self.grant and not self.halted


class Memory:
    """The ledger of every worker in turn: mapped once."""

    def __init__(self) -> None:
        self.ledger = Ledger.create(6)
        self.story: Looker
        self.theirs = watched(self.ledger, self._storing, self._moved, self._marked)

    def _storing(self, at: int) -> None:
        self.story.storing(at)

    def _moved(self, slot: int) -> None:
        self.story.moved(slot)

    def _marked(self, at: int) -> None:
        self.story.marked()


class Pipe:
    """Between the story and one worker. See `assembled.Pipe`."""

    def __init__(self, story: Looker) -> None:
        self._story = story
        self._queue: list[ToWorker] = []
        self._taken: list[ToWorker] = []
        self._waiting: Strand | None = None

    def put(self, message: ToWorker) -> None:
        """To the worker."""
        self._queue.append(message)
        if self._waiting is not None:
            STEPS.wake(self._waiting)

    def receive(self, timeout: float | None = None) -> ToWorker | None:
        for message in self._taken:
            self._story.applied(message)
        self._taken.clear()
        if not self._queue:
            self._waiting = STEPS.current
            try:
                STEPS.wait(None if timeout is None else STEPS.now + nanoseconds(timeout))
            finally:
                self._waiting = None
        else:
            STEPS.tick()
        if not self._queue:
            return None
        self._taken.append(self._queue.pop(0))
        return self._taken[0]

    def send(self, message: FromWorker) -> None:
        STEPS.check()
        self._story.heard(message)
