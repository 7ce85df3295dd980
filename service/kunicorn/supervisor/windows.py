"""Transactions that workers are about to commit: as whom, and how joins wait for them.

A window is open from the answer as whom to commit until the transaction's end; a worker may have several. A JoinGroup
that overtakes one makes the broker refuse its offsets (ILLEGAL_GENERATION): the transaction is aborted and sent again,
nothing is lost but time. So joins wait for open windows, and not for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


Window = tuple[WorkerProcess, int]
"""Whose it is, and its number there."""


class Windows:
    """Answers the workers. Runs on the loop."""

    def __init__(self, instance_id: str | None) -> None:
        self.standing: Standing
        """Set by the service: it and the membership need one another."""
        self._instance_id = instance_id
        self._asked: list[Window] = []
        self._open: set[Window] = set()
        self._changed = asyncio.Event()
        self._answering: asyncio.Task[None] | None = None

    def hear(self, worker: WorkerProcess, message: CommitWanted | CommitOver) -> None:
        """A worker asks, or is through. One that asks between two generations is answered in the next one."""
        window = worker, message.number
        if isinstance(message, CommitOver):
            self._close(lambda each: each == window)
            return
        self._asked.append(window)
        self._answer()
        if self._asked and (self._answering is None or self._answering.done()):
            self._answering = asyncio.ensure_future(self._go_on())

    def forget(self, worker: WorkerProcess) -> None:
        """It is dead."""
        self._close(lambda window: window[0] is worker)

    async def quiet(self) -> None:
        """Until no window that is open now is open any more, three seconds at most.

        Where the member may not commit, none opens meanwhile.
        """
        until, waiting = clock.now() + _LONGEST, set(self._open)
        while (waiting := waiting & self._open) and (left := until - clock.now()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                log.warning(f"{len(waiting)} transactions of workers have not ended yet: going on nevertheless")

    def _close(self, over: Callable[[Window], bool]) -> None:
        self._asked = [window for window in self._asked if not over(window)]
        self._open = {window for window in self._open if not over(window)}
        self._changed.set()

    async def _go_on(self) -> None:
        while self._asked:
            await asyncio.sleep(_POLL)
            self._answer()

    def _answer(self) -> None:
        if not self.standing.may_commit:
            return
        asked, self._asked = self._asked, []
        for worker, number in asked:
            if not worker.is_dead():
                self._open.add((worker, number))
                worker.send(CommitAs(number, self.standing.generation, self.standing.member_id, self._instance_id))
