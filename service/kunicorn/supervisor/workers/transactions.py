"""The workers' transactions: under which ids, as which member, and which of them are about to commit.

`TransactionalIds`: the same after a restart, and never those of two living members by chance. An id belongs to a slot
of the pool, so that a dead worker's successor ends what it left open. While a worker is replaced in order two processes
have its slot, and the successor must not fence the one that still drains: slots have two ids, which successors in order
take in turns.

`OpenTransactions`: a transaction is open from the answer as whom to commit until its end; a worker may have several. A
JoinGroup that overtakes one makes the broker refuse its offsets (ILLEGAL_GENERATION): the transaction is aborted and
sent again, nothing is lost but time. So joins wait for those that are open, and not for long.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import socket
from collections.abc import Callable
from itertools import count

from kunicorn.errors import ConfigError
from kunicorn.ipc import clock
from kunicorn.ipc.messages import CommitAs, CommitOver, CommitWanted
from kunicorn.observe import logs
from kunicorn.settings import Settings
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers.process import WorkerProcess

log = logs.get("kunicorn.commits")

_LONGEST = 3.0
"""Seconds that a join waits: as long as a heartbeat may take to be answered."""


_Transaction = tuple[WorkerProcess, int]
"""Whose it is, and its number there."""


class OpenTransactions:
    """Transactions of workers that are about to commit. Runs on the loop."""

    def __init__(self, member: MemberState, tasks: ServiceTasks) -> None:
        self._member = member
        self._tasks = tasks
        self._asked: list[_Transaction] = []
        self._open: set[_Transaction] = set()
        self._changed = Notifier()
        self._answering: asyncio.Task[None] | None = None

    def on_message(self, worker: WorkerProcess, message: CommitWanted | CommitOver) -> None:
        """Answer a worker that wants to commit, or note the end. Between two generations, the answer waits for the
        next."""
        transaction = worker, message.number
        if isinstance(message, CommitOver):
            self._close(lambda each: each == transaction)
            return
        self._asked.append(transaction)
        self._answer()
        if self._asked and (self._answering is None or self._answering.done()):
            self._answering = self._tasks.start(self._go_on())

    def worker_died(self, worker: WorkerProcess) -> None:
        """Drop the transactions of a dead worker."""
        self._close(lambda transaction: transaction[0] is worker)

    async def wait_ended(self) -> None:
        """Wait until those that are open now have ended, three seconds at most. Where the member may not commit, none
        opens meanwhile."""
        waiting = set(self._open)
        if not await self._changed.wait(lambda: not waiting & self._open, clock.now() + _LONGEST):
            left = len(waiting & self._open)
            log.warning(f"{left} transactions of workers have not ended yet: going on nevertheless")

    def _close(self, over: Callable[[_Transaction], bool]) -> None:
        self._asked = [transaction for transaction in self._asked if not over(transaction)]
        self._open = {transaction for transaction in self._open if not over(transaction)}
        self._changed.notify()

    async def _go_on(self) -> None:
        while self._asked:
            await self._member.changed.wait(lambda: self._member.may_commit or not self._asked)
            self._answer()

    def _answer(self) -> None:
        if not self._member.may_commit:
            return
        asked, self._asked = self._asked, []
        for worker, number in asked:
            if not worker.is_dead():
                self._open.add((worker, number))
                member = self._member
                whom = member.generation, member.member_id, member.instance_id, member.cluster_id
                worker.send(CommitAs(number, *whom))


def id_prefix(settings: Settings, own_name: Callable[[], str]) -> str:
    """What the transactional ids of this member's workers begin with. `own_name`: of a member without another name."""
    group, prefix = settings.group, settings.producing.transactional_id_prefix
    return f"{group.id}-{group.group_instance_id or own_name()}" if prefix is None else prefix


class TransactionalIds:
    """Transactional ids of this member's workers, which no other living member has."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._group = settings.group.id
        self._prefix: str | None = None
        self._mark: socket.socket | None = None

    def of(self, place: int, turn: int) -> str:
        """The id for a worker's slot; `turn` is 0 or 1."""
        if self._prefix is None:
            self._prefix = id_prefix(self._settings, self._own_name)
        return f"{self._prefix}-{place}-{turn % 2}"

    def close(self) -> None:
        """Another process may have the name from now on."""
        if self._mark is not None:
            self._mark.close()

    def _own_name(self) -> str:
        """The host's name, with a number where several members of the group run on it.

        The first free number is marked by a socket in the abstract namespace: the kernel lets go of it with the process
        however that ends, so a restart finds the number that it had. In a container the name is the pod's.
        """
        host = socket.gethostname()
        for number in count():
            if self._take(f"{host}\0{self._group}\0{number}"):
                return host if number == 0 else f"{host}.{number}"
        raise AssertionError("unreachable")

    def _take(self, what: str) -> bool:
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(b"\0kunicorn-" + hashlib.sha256(what.encode()).hexdigest().encode())
        except OSError as error:
            mark.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise ConfigError(
                f"no name of its own can be had for this member ({error}): set producing.transactional_id_prefix"
            ) from error
        self._mark = mark
        return True
