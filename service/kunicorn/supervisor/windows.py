"""Transactions that workers are about to commit: as whom, and how joins wait for them.

A window is open from the answer as whom to commit until the transaction's end. A JoinGroup that overtakes it makes the
broker refuse its offsets (ILLEGAL_GENERATION): the transaction is aborted and sent again, nothing is lost but time. So
joins wait for open windows, and not for long.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from kunicorn.observe import logs
from kunicorn.pipes import clock
from kunicorn.pipes.messages import CommitAs, CommitOver, CommitWanted
from kunicorn.supervisor.worker import WorkerProcess

log = logs.get("kunicorn.commits")

_POLL = 0.02
_LONGEST = 3.0
"""Seconds that a join waits: as long as a heartbeat may take to be answered."""


class Standing(Protocol):
    """What is asked of the membership."""

    @property
    def may_commit(self) -> bool:
        """Whether the broker takes commits of our generation now."""

    @property
    def member_id(self) -> str:
        """The current one."""

    @property
    def generation(self) -> int:
        """The current one; the member epoch with the consumer protocol."""


class Windows:
    """Answers the workers. Runs on the loop."""

    def __init__(self, instance_id: str | None) -> None:
        self.standing: Standing
        """Set by the service: it and the membership need one another."""
        self._instance_id = instance_id
        self._asked: dict[WorkerProcess, int] = {}
        self._open: dict[WorkerProcess, int] = {}
        self._changed = asyncio.Event()
        self._answering: asyncio.Task[None] | None = None

    def hear(self, worker: WorkerProcess, message: CommitWanted | CommitOver) -> None:
        """A worker asks, or is through. One that asks between two generations is answered in the next one."""
        if isinstance(message, CommitOver):
            self.forget(worker)
            return
        self._asked[worker] = message.number
        self._answer()
        if self._asked and (self._answering is None or self._answering.done()):
            self._answering = asyncio.ensure_future(self._go_on())

    def forget(self, worker: WorkerProcess) -> None:
        """It is through, or dead."""
        self._asked.pop(worker, None)
        self._open.pop(worker, None)
        self._changed.set()

    async def quiet(self) -> None:
        """Until no window is open, three seconds at most. None opens meanwhile, if the member may not commit now."""
        until = clock.now() + _LONGEST
        while self._open and (left := until - clock.now()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                log.warning(f"{len(self._open)} workers have not ended their transactions yet: joining nevertheless")

    async def _go_on(self) -> None:
        while self._asked:
            await asyncio.sleep(_POLL)
            self._answer()

    def _answer(self) -> None:
        if not self.standing.may_commit:
            return
        asked, self._asked = self._asked, {}
        for worker, number in asked.items():
            if not worker.is_dead():
                self._open[worker] = number
                worker.send(CommitAs(number, self.standing.generation, self.standing.member_id, self._instance_id))
