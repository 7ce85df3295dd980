"""The assignment: partitions that are ours, handed out to workers under grants and taken back.

1. A partition is handed out only when nobody here holds it: after `FetcherStopped`, or after the death of its worker
   was seen and the ledger read (invariant 4).
2. Every partition is in a state that says why it is or is not fetched (invariant 7).

`WorkerDeaths` says what a worker's death means for the partitions that it held, and for the records that it had in
hand; which records are to blame, `poison` decides.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.ipc import clock
from kunicorn.ipc.messages import CommitOver, CommitWanted, Failed, FailureKind, FetcherStopped, StopFetcher
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position, TopicPartition
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.partitions.balance import workers_wanted
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.partitions.poison import Offsets, Poison, blamed
from kunicorn.supervisor.partitions.table import OPEN, WHENEVER, Distribution, Grants, PartitionTable
from kunicorn.supervisor.workers.pool import Pool
from kunicorn.supervisor.workers.process import FENCED, WorkerProcess
from kunicorn.supervisor.workers.transactions import OpenTransactions
from kunicorn.text import listed

_GOING_ON = frozenset({PartitionState.STARTING, PartitionState.RESOLVING})


class WorkerDeaths:
    """What a worker's death means for its partitions and for the records it had in hand. Caller: `Assignment`, on the
    loop, once the worker's ledger is final."""

    def __init__(self, in_force: SettingsInForce, halt: Callable[[TopicPartition, str], None]) -> None:
        """After `max_crashes` deaths with the same record, and no other, in hand or on its way its partition halts;
        unless `poison_halts`, the next worker is told to keep it from the handler."""
        self._in_force = in_force
        self._halt = halt

    def charge(
        self,
        worker: WorkerProcess,
        held: Collection[Partition],
        how: str,
        *,
        unsure: bool,
        end: Callable[[Partition, Position | None], None],
    ) -> bool:
        """Release the dead worker's partitions by `end`, and charge the crash to the records that were in flight, but
        for one by `FENCED`. Returns whether there was such a record, or the worker had handled anything.

        `unsure`: its last transaction may be committed or not, only the brokers know.
        """
        for partition in held:
            partition.read_ledger()
        had = {
            partition: partition.held(batches=self._in_force.handling(partition.tp.topic).batches) for partition in held
        }
        anything = any(each.every for each in had.values()) or any(partition.reading.handled > 0 for partition in held)
        killed = worker.killed_by_us is not None
        # No record has its producer refused: brokers, another member or a setting do, whatever was in hand.
        charged = {} if how == FENCED else had
        against = {p: blamed(each, killed_for=p.tp in worker.blamed, killed=killed) for p, each in charged.items()}
        alone = sum(map(len, against.values())) == 1
        for partition in held:
            offsets = against.get(partition, range(0))
            returned = partition.reading.in_hand == NO_OFFSET
            end(partition, None)
            if unsure:
                partition.forget_position()
            partition.advance(PartitionEvent.LET_GO_UNSURE if unsure else PartitionEvent.LET_GO, "its worker died")
            if offsets and alone:
                self._name(partition, next(iter(offsets)), how, before=had[partition].before, returned=returned)
            elif offsets:
                self._share(partition, offsets)
        return anything

    def _name(self, partition: Partition, offset: int, how: str, *, before: int, returned: bool) -> None:
        max_crashes = self._in_force.workers.max_crashes
        deaths = partition.blame.name(offset, max_crashes, before=before)
        if deaths >= max_crashes and partition.state in _GOING_ON:
            self._meet_poison(partition, Poison(offset, deaths, how, returned))

    def _share(self, partition: Partition, offsets: Offsets) -> None:
        deaths = self._in_force.workers.max_crashes
        if partition.blame.share(offsets, deaths):
            log.warning(
                f"{partition.tp}: {deaths} workers died with offset {min(offsets)} and others in hand, or "
                f"not delivered: each is handled with nothing beside it now, until one is to blame or all are done"
            )

    def _meet_poison(self, partition: Partition, poison: Poison) -> None:
        if self._in_force.handling(partition.tp.topic).poison_halts:
            self._halt(partition.tp, str(poison))
        elif poison.deaths >= 2 * self._in_force.workers.max_crashes:
            # It never came to the handler again: what stands for it in the dead-letter topic cannot be sent, either.
            self._halt(partition.tp, f"{poison}, and so does what ends it without the handler")
        else:
            partition.blame.meet(poison)
            log.warning(f"{partition.tp}: {poison}: it is kept from the handler")


log = logs.get("kunicorn.fetchers")

_DENIED_PAUSE = 10.0
"""Seconds until a topic that we may not read is tried again: rights are granted while the service runs."""
_LONG_WAIT = 10.0
"""Seconds without a worker after which a partition's log is looked at again: most begin well before."""
_SETTLE_PAUSE = 0.05
"""Seconds from one round of settling what has failed to the next: each looks at all partitions there are."""
_OF_BROKERS = frozenset({FailureKind.OUT_OF_RANGE, FailureKind.TRUNCATED, FailureKind.DENIED})
"""What brokers answer to whoever fetches. Behind a pause the next fetch is answered so again; to settle it before would
end the pause."""

_LOOK_AGAIN = 1.0
"""Seconds from one look to the next whether the topic of a partition that drains was deleted."""
_LEAVING = frozenset({PartitionState.STOPPING, PartitionState.STUCK, PartitionState.RELEASED})


class Assignment:
    """Assigns, revokes, loses and distributes partitions over the workers. Runs on the loop; nothing blocks."""

    def __init__(
        self,
        table: PartitionTable,
        pool: Pool,
        in_force: SettingsInForce,
        metrics: Metrics,
        transactions: OpenTransactions | None = None,
    ) -> None:
        """`transactions`: where workers commit, in transactions."""
        self.table = table
        self.pool = pool
        self.transactions = transactions
        self._deaths = WorkerDeaths(in_force, lambda tp, reason: self.halt(tp, reason, by_handler=True))
        self._metrics = metrics
        self._grants = Grants(metrics)
        self.distribution = Distribution(self.table, self._grants, metrics)
        self._wanted_again: set[TopicPartition] = set()
        self._elsewhere: set[TopicPartition] = set()
        """In the table, and another member's since, as far as we can tell, even if they came back."""
        self._failed: list[Partition] = []
        """Reported, and not settled yet."""
        self._settle_at = float("-inf")
        """Not before that time of the loop."""
        self._denied: list[Partition] = []
        """Halted because this user may not read them; tried again all at the same time."""

    # -- from the group ------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Take up partitions that are ours from now on. One that a worker still drains is taken up when that is
        over."""
        fresh: list[Partition] = []
        for tp in partitions:
            if tp in self.table:
                self._wanted_again.add(tp)
            else:
                fresh.append(self.table.enter(tp))
        self._take_up(fresh)

    def _take_up(self, fresh: list[Partition]) -> None:
        self.pool.want(workers_wanted(len(self.table), len(self.pool.slots)))
        if fresh:
            self.table.look_up(fresh)

    def revoke(
        self, partitions: Collection[TopicPartition], deadline: float, give_up: float
    ) -> Coroutine[Any, Any, None]:
        """Stop these at once; what is returned drains them until `deadline`. A worker that does not let go meets the
        escalation, until `give_up`.

        Those that no transaction can commit any more are given up, and what was handled of them with that.

        Both are seconds of `clock.now`. Partitions in no worker's hands are released at once. Afterwards the consumed
        offsets of those released are final, and the partitions stay in the table until `forget`.
        """
        # A plan may give back what still drains for the plan before it, and the next one take it away again.
        self._wanted_again -= set(partitions)
        # In this turn of the loop, not when the drain is awaited: until then one that was lost, and came back, may be
        # entered anew. Its name would be stopped, and never forgotten by whoever knows the one before.
        leaving = [self.table[tp] for tp in partitions if tp in self.table]
        self._stop(leaving, deadline, lost=False, why="revoked")
        return self._drain(leaving, deadline, give_up)

    async def _drain(self, leaving: Collection[Partition], deadline: float, give_up: float) -> None:
        if self.table.workers_commit:
            await self._until_drained_or_deleted(leaving, deadline)
        await self._see_off(leaving, deadline, give_up)

    def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """Take these from their workers for good, however long that takes: nobody waits for them. `revoke` hurries."""
        self._stop([self.table[tp] for tp in partitions], WHENEVER, lost=False, why="let go of for good")

    async def _until_drained_or_deleted(self, leaving: Collection[Partition], deadline: float) -> None:
        """Wait until all are released, and give up those whose topic was deleted. Brokers with the consumer protocol
        take such partitions away before our metadata says why: it is asked for if the drain takes long."""
        looked = False
        while left := [p for p in leaving if p.state is PartitionState.STOPPING and not p.lost]:
            over = [partition for partition in left if self.table.cannot_be_committed(partition)]
            if over:
                self._stop_lost(over, deadline, "its topic was deleted")
                continue
            if (now := clock.now()) >= deadline:
                return
            await self._until_released(left, min(deadline, now + _LOOK_AGAIN))
            if not looked:
                self.table.doubt_topics()
                looked = True

    async def lose(self, partitions: Collection[TopicPartition], deadline: float, give_up: float) -> None:
        """Stop partitions that another member may own, before this first awaits; nothing of them is committed.

        What a worker still has in hand is waited for like a revoke's: until then the partition cannot be ours again.
        """
        self._wanted_again -= set(partitions)
        self._elsewhere.update(tp for tp in partitions if tp in self.table)
        await self._drop(partitions, deadline, give_up)

    async def _drop(self, partitions: Collection[TopicPartition], deadline: float, give_up: float) -> None:
        leaving = [self.table[tp] for tp in partitions if tp in self.table]
        self._stop_lost(leaving, deadline, "lost to another member")
        self.forget([p.tp for p in leaving if p.state is PartitionState.RELEASED])
        await self._see_off([p for p in leaving if p.state is not PartitionState.RELEASED], deadline, give_up)

    async def renew(self, partitions: Collection[TopicPartition], deadline: float, give_up: float) -> None:
        """Drop what was consumed of topics that were created anew, and begin with the new ones.

        Not with those that leave us already: another member has the new ones.
        """
        held = (self.table[tp] for tp in partitions if tp in self.table)
        self._wanted_again |= {partition.tp for partition in held if partition.state not in _LEAVING}
        await self._drop(partitions, deadline, give_up)

    async def _see_off(self, leaving: Collection[Partition], deadline: float, give_up: float) -> None:
        """Wait until all are released: until `deadline` for the records in hand, then with the escalation, until
        `give_up`."""
        await self._until_released(leaving, deadline)
        clinging = _by_worker(p for p in leaving if p.state is PartitionState.STOPPING)
        await asyncio.gather(*(self._escalate(worker, held) for worker, held in clinging.items()))
        for partition in leaving:
            if partition.state is PartitionState.STOPPING:
                partition.advance(PartitionEvent.CLING, "its worker outlives SIGKILL")
        await self._until_released(leaving, give_up)

    async def _escalate(self, worker: WorkerProcess, held: Collection[Partition]) -> None:
        named = ", ".join(str(p.tp) for p in list(held)[:3])
        reason = f"still had {named} in hand when the drain budget was over"

        def left() -> list[int]:
            return [p.grant for p in held if p.worker is worker]

        await self.pool.escalate(worker, reason, lambda: not left(), lambda: worker.interrupt_handler(left()))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop released partitions, whose offsets are committed or not ours to commit; take up those that came back
        since.

        What a worker clings to goes on without us: another member may be given it, so that nothing more of it is
        committed, and it is dropped when that worker is gone.
        """
        again: list[Partition] = []
        for tp in partitions:
            partition = self.table.get(tp)
            if partition is not None and partition.state is PartitionState.STUCK:
                partition.lose()
                self._elsewhere.add(tp)
            if partition is None or partition.state is not PartitionState.RELEASED:
                continue
            del self.table[tp]
            ours_throughout = tp not in self._elsewhere
            self._elsewhere.discard(tp)
            if tp in self._wanted_again:
                self._wanted_again.discard(tp)
                again.append(self.table.enter_again(partition, ours_throughout=ours_throughout))
        if again:
            self._take_up(again)

    def _stop_lost(self, leaving: Collection[Partition], deadline: float, why: str) -> None:
        for partition in leaving:
            partition.lose()
        self._stop(leaving, deadline, lost=True, why=why)

    def _stop(self, leaving: Collection[Partition], deadline: float, *, lost: bool, why: str) -> None:
        held: dict[WorkerProcess, list[Partition]] = defaultdict(list)
        for partition in leaving:
            if partition.state is PartitionState.RELEASED:
                continue
            partition.read_ledger()
            partition.advance(PartitionEvent.STOP, why)
            if partition.worker is not None:
                held[partition.worker].append(partition)
            elif partition.state is PartitionState.STOPPING:
                partition.advance(PartitionEvent.LET_GO)
        for worker, partitions in held.items():
            stop = StopFetcher([p.grant for p in partitions], deadline, lost)
            if self._elsewhere.isdisjoint(p.tp for p in partitions):
                worker.send(stop)
            else:
                worker.take_away(stop)
        self.table.changed.notify()

    async def _until_released(self, leaving: Collection[Partition], deadline: float) -> None:
        await self.table.changed.wait(lambda: all(p.state is PartitionState.RELEASED for p in leaving), deadline)

    # -- from the start offsets ----------------------------------------------------------------------------------

    def resolved(self, starts: dict[TopicPartition, Position], committed: dict[TopicPartition, int]) -> None:
        """Hand out partitions whose start offsets are known (and, where a policy chose them, committed)."""
        if not starts:
            return
        for tp, start in starts.items():
            partition = self.table.get(tp)
            if partition is None or partition.state is not PartitionState.RESOLVING:
                continue
            partition.begin_at(start)
            if tp in committed:
                partition.commit_seen(committed[tp], start.done)
            partition.advance(PartitionEvent.RESOLVED, "waiting for a worker")
        self.distribute()

    def found_truncated(self, partitions: Collection[TopicPartition]) -> None:
        """Count partitions whose position is not in the log any more, before they begin elsewhere, or halt."""
        for partition in (self.table[tp] for tp in partitions):
            partition.found_cut()
        if partitions:
            self._metrics.count(catalogue.OFFSET_RESETS, len(partitions), reason=FailureKind.TRUNCATED.value)

    def halt(self, tp: TopicPartition, reason: str, *, by_handler: bool = False) -> None:
        """Halt a partition: nothing of it is handled until a person acts; the others go on."""
        partition = self.table.get(tp)
        if partition is None:
            return
        partition.halt(reason, by_handler=by_handler)
        log.error(f"{tp} is halted: {reason}", topic=tp.topic, partition=tp.partition)
        self.table.changed.notify()

    def deny(self, reasons: Mapping[Partition, str]) -> None:
        """Halt partitions whose offsets this user may not read, or not commit; tried again as denied fetches are."""
        for partition, reason in reasons.items():
            self._deny(partition, reason)
        self._tell_denied(reasons)
        self.table.changed.notify()

    def resume(self, partitions: Collection[Partition], why: str) -> None:
        """Go on with some that are paused or halted; their records get as many tries as new ones. `distribute` comes
        next."""
        for partition in partitions:
            partition.forgive()
        self._go_on(partitions, why)

    def _go_on(self, partitions: Iterable[Partition], why: str) -> None:
        unknown: list[Partition] = []
        for partition in partitions:
            # Halted before it had begun: where to begin may be known by now. Or nobody has fetched it for a while: the
            # log may have been cut, and have grown again. A worker would notice that before its position, but not
            # between that and what is done ahead of it: the records that are there now would pass for done.
            if partition.position is None or self._unwatched(partition):
                partition.advance(PartitionEvent.LOOK_UP, why)
                unknown.append(partition)
            else:
                partition.advance(PartitionEvent.RESUME, why)
        if unknown:
            self.table.look_up(unknown)

    def _unwatched(self, partition: Partition) -> bool:
        """Whether its log is to be looked at before it goes on. Where a handler keeps offsets, it knows where, but not
        whether what is done ahead of there is still the same records."""
        known = partition.position is not None and partition.position.leader_epoch != NO_EPOCH
        told = bool(partition.done.bits) or not self.table.handler_keeps_offsets(partition.tp.topic)
        return known and partition.worker is None and told

    def drain(self, paused: Iterable[Partition]) -> None:
        """Have the workers let go of these when what they have in hand is done, however long that takes."""
        for worker, held in _by_worker(paused).items():
            worker.send(StopFetcher([partition.grant for partition in held], WHENEVER))

    def code_replaced(self, why: str) -> int:
        """See `PoolListener`. Nothing else that is halted is resumed."""
        halted = [p for p in self.table.values() if p.state is PartitionState.HALTED and p.by_handler]
        if halted:
            self.resume(halted, why)
            self.distribute()
        return len(halted)

    # -- handing out ---------------------------------------------------------------------------------------------

    def distribute(self) -> None:
        """Give every startable partition to its worker; see `Distribution`."""
        self.distribution.distribute(self.pool)

    # -- from the pool -------------------------------------------------------------------------------------------

    def worker_ready(self, worker: WorkerProcess) -> None:
        starting = (p for p in self.table.values() if p.state is PartitionState.STARTING)
        late = clock.now() - _LONG_WAIT
        self._go_on([p for p in starting if p.since <= late and self._unwatched(p)], "had no worker for a while")
        self.distribute()

    def fewer_expected(self) -> None:
        self.distribute()

    def in_hand_of(self, worker: WorkerProcess) -> Partition | None:
        """The partition of which that worker has a record in hand, as its ledger says; looks at all it holds."""
        return next((p for p in self._grants.of(worker) if p.busy), None)

    def held_by(self, worker: WorkerProcess) -> list[Partition]:
        """The partitions that worker has been handed and not let go of."""
        return self._grants.of(worker)

    def worker_retires(self, worker: WorkerProcess) -> None:
        for partition in self._grants.of(worker):
            if partition.state in OPEN:
                partition.read_ledger()
                partition.advance(PartitionEvent.MOVE, f"moving to the successor of {worker}")

    def worker_reported(self, worker: WorkerProcess) -> None:
        """See `PoolListener`. Whoever wants the position of one that runs looks for itself: with a thousand partitions,
        looking at all of them twice a second is most of what an idle supervisor would do."""
        for partition in self._grants.of(worker):
            if partition.state is PartitionState.STARTING:
                partition.read_ledger()

    def worker_stopped(self, worker: WorkerProcess, report: FetcherStopped) -> None:
        ended: list[Partition] = []
        for stopped in report.partitions:
            if (partition := self._grants.find(worker, stopped.grant)) is not None:
                self._grants.end(partition, Position(stopped.offset, stopped.leader_epoch, stopped.done))
                partition.advance(PartitionEvent.LET_GO)
                ended.append(partition)
        self._forget_lost(ended)
        # In a revoke workers report the ends of thousands of partitions one by one, and none of them is to be handed
        # out: to share out all that we have for each report would keep heartbeats waiting.
        if any(partition.state in OPEN for partition in ended):
            self.distribute()

    def worker_failed(self, worker: WorkerProcess, report: Failed) -> None:
        partition = self._grants.find(worker, report.grant)
        if partition is None:
            return
        self._grants.end(partition, Position(report.offset, report.leader_epoch, report.done))
        if report.kind is FailureKind.DENIED and self.table.workers_commit:
            # The worker has let go of what is in a transaction, which may be committed yet: only the brokers know.
            partition.forget_position()
        paused = partition.state is PartitionState.PAUSED
        if partition.state in (PartitionState.STOPPING, PartitionState.STUCK) or (
            paused and report.kind in _OF_BROKERS
        ):
            partition.advance(PartitionEvent.LET_GO)
        elif report.kind in (FailureKind.OUT_OF_RANGE, FailureKind.TRUNCATED):
            self._metrics.count(catalogue.OFFSET_RESETS, reason=report.kind.value)
            partition.out_of_range(report.error)
        elif report.kind is FailureKind.DENIED:
            self._deny(partition, report.error)
        else:
            if report.kind is FailureKind.HANDLER:
                partition.record_seen(report.offset)
            else:
                # Its topic may have been created anew: left alone, the metadata would tell so minutes later.
                self.table.doubt_topics()
            self.halt(partition.tp, report.error, by_handler=report.kind is FailureKind.HANDLER)
        self._settle_soon(partition)

    def _deny(self, partition: Partition, reason: str) -> None:
        if not self._denied:
            asyncio.get_running_loop().call_later(_DENIED_PAUSE, self._try_denied)
        self._denied.append(partition)
        partition.halt(f"{reason}; tried again every {_DENIED_PAUSE:.0f} s", denied=True)

    def _try_denied(self) -> None:
        # Once each: one that was resumed by a person meanwhile, and denied again, is listed twice.
        denied, self._denied = dict.fromkeys(self._denied), []
        waiting = [p for p in denied if self.table.get(p.tp) is p and p.waits_for_the_right]
        self._go_on(waiting, "tried again: the right to read it may have been granted")
        self.distribute()

    def _settle_soon(self, failed: Partition) -> None:
        """Collect reports of one moment: each partition reports for itself, ten thousand of them where the logs have
        moved on behind a stopped group. To distribute and look up all partitions for each report would starve
        heartbeats."""
        if not self._failed:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._settle_at:
                loop.call_soon(self._settle_failed)
            else:
                loop.call_at(self._settle_at, self._settle_failed)
        self._failed.append(failed)

    def _settle_failed(self) -> None:
        self._settle_at = asyncio.get_running_loop().time() + _SETTLE_PAUSE
        failed, self._failed = self._failed, []
        # Whatever has left us meanwhile may be here again, as another one of the same name.
        failed = [partition for partition in failed if self.table.get(partition.tp) is partition]
        if outside := [partition for partition in failed if partition.state is PartitionState.RESOLVING]:
            log.warning(f"{len(outside)} positions are not in the log: looking for new ones", partitions=_told(outside))
            self.table.look_up(outside)
        self._tell_denied([partition for partition in failed if partition.waits_for_the_right])
        self._after_reports(failed)

    def _tell_denied(self, denied: Collection[Partition]) -> None:
        now = clock.now()
        if news := [partition for partition in denied if now >= partition.denied_until]:
            log.error(f"{len(news)} partitions are halted: this user may not read them", partitions=_told(news))
        for partition in denied:
            partition.denial_told(now + 3 * _DENIED_PAUSE)

    def worker_commits(self, worker: WorkerProcess, message: CommitWanted | CommitOver) -> None:
        if self.transactions is not None:
            self.transactions.on_message(worker, message)

    def worker_died(self, worker: WorkerProcess, how: str) -> bool:
        if self.transactions is not None:
            self.transactions.worker_died(worker)
        held = self._grants.of(worker)
        anything = self._deaths.charge(worker, held, how, unsure=self.table.workers_commit, end=self._grants.end)
        self._grants.bury(worker)
        if unsettled := [partition for partition in held if partition.state is PartitionState.RESOLVING]:
            self.table.look_up(unsettled)
        self._after_reports(held)
        return anything

    def _after_reports(self, ended: Iterable[Partition]) -> None:
        self._forget_lost(ended)
        self.distribute()

    def _forget_lost(self, ended: Iterable[Partition]) -> None:
        """After grants have ended: partitions that were lost are forgotten at once, as no commit waits for them."""
        self.forget([p.tp for p in ended if p.lost and p.state is PartitionState.RELEASED])
        self.table.changed.notify()


def _told(partitions: Collection[Partition]) -> str:
    """The first twenty and the reason of their state, for one line in the log."""
    told = listed(f"{p.tp}@{p.position.offset if p.position is not None else '?'}" for p in partitions)
    reason = next(p.reason for p in partitions)
    return f"{told}: {reason}"


def _by_worker(partitions: Iterable[Partition]) -> dict[WorkerProcess, list[Partition]]:
    held: dict[WorkerProcess, list[Partition]] = defaultdict(list)
    for partition in partitions:
        if partition.worker is not None:
            held[partition.worker].append(partition)
    return held
