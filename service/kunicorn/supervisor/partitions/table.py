"""The table of partitions that are ours, their grants, and their distribution over the workers. Nothing blocks.

- `PartitionTable`: those that are ours, or still being let go of, and what may be committed of them.
- `Grants`: which worker holds which partition, under which grant, a number that is never used again. A report counts
  only under the partition's current grant (invariant 3).

`Distribution` hands our partitions out over our workers, and moves them from one worker to another inside the pool. The
group sees nothing of it. A partition that moves drains where it is, and is handed out again when its worker has
reported it (invariant 4).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.ipc.messages import FetcherStart, StartFetcher, StopFetcher
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import NO_OFFSET, Position, TopicPartition
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.partitions.balance import Move, keep, share
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.topics import Topics
from kunicorn.supervisor.workers.pool import Pool
from kunicorn.supervisor.workers.process import WorkerProcess
from kunicorn.text import topic_id_text

Unstarted = asyncio.Queue[dict[Partition, int]]
"""Partitions, and how many starts each has been given so far."""


class PartitionTable(dict[TopicPartition, Partition]):
    """Partitions by topic and number. One stays until its offsets are committed, or are not ours to commit."""

    def __init__(self, topics: Topics, in_force: SettingsInForce, *, workers_commit: bool = False) -> None:
        """`workers_commit`: consumed offsets are committed by the workers, in transactions, before their ledgers tell
        of them."""
        super().__init__()
        self.workers_commit = workers_commit
        self.without_start: Unstarted = asyncio.Queue()
        """Partitions whose start offset is to be looked up. Read by `StartLookup`, or before it by `RunUntil`."""
        self.changed = Notifier()
        """Notified when a partition was stopped, let go of or halted, and when its offset may or may not be committed
        any more, as the membership changed."""
        self._topics = topics
        self._in_force = in_force

    def enter(self, tp: TopicPartition) -> Partition:
        """Enter a partition that is ours from now on, of the topic that has this name now."""
        partition = self[tp] = Partition(tp)
        partition.entered(self._topics.topic_id(tp.topic))
        return partition

    def enter_again(self, released: Partition, *, ours_throughout: bool) -> Partition:
        """Enter a partition that came back while it was released. One of another topic of that name starts at its
        beginning; but where it is committed by now if another member may have begun with that topic, or if it had not
        begun here: it may have come to us when others knew the new topic already."""
        again = self.enter(released.tp)
        begun_with_another = released.position is not None and _other(released.topic_id, again.topic_id)
        fresh = ours_throughout and (released.fresh or begun_with_another)
        again.entered(again.topic_id, fresh=fresh)
        return again

    def held(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of these a worker of ours may still handle."""
        return frozenset(tp for tp in partitions if (p := self.get(tp)) and p.state is not PartitionState.RELEASED)

    # -- start offsets -------------------------------------------------------------------------------------------

    def look_up(self, partitions: Collection[Partition]) -> None:
        """Have the start offsets of these looked up; ends in `Assignment.resolved` or `halt`."""
        self.without_start.put_nowait({partition: partition.starts for partition in partitions})

    def handler_keeps_offsets(self, topic: str) -> bool:
        """Whether a topic's handler keeps the offsets itself, beside its effects."""
        return self._in_force.keeps_offsets(topic)

    # -- topics that are gone ------------------------------------------------------------------------------------

    def learn_topics(self, partitions: Iterable[Partition]) -> None:
        """Note to which topics those belong that were entered when the metadata had none of their name: a plan may be
        newer. Nobody would notice that another topic has the name later, and its records would be passed over."""
        for partition in partitions:
            if partition.topic_id is None:
                partition.entered(self._topics.topic_id(partition.tp.topic), fresh=partition.fresh)

    def of_gone_topics(self, *, also_disowned: bool = False) -> list[TopicPartition]:
        """Those that belong to a topic that was deleted, and created anew under the same name. `also_disowned`: and
        those that were disowned before for that."""
        held = [each for each in self.values() if not each.lost or (also_disowned and each.disowned)]
        return [each.tp for each in held if self.is_of_gone_topic(each)]

    def is_of_gone_topic(self, partition: Partition) -> bool:
        """Whether another topic has its topic's name now."""
        return _other(partition.topic_id, self._topics.topic_id(partition.tp.topic))

    def begin_uncommitted(self, partitions: Iterable[Partition]) -> None:
        """Have those begin as fresh whose topic was created anew, be it before they were ours: the group has committed
        nothing of them. Whoever begins commits its start before, so that what a handler has stored is of the topic that
        was deleted."""
        for partition in partitions:
            if self.created_anew(partition.tp.topic):
                partition.entered(partition.topic_id, fresh=True)

    def created_anew(self, topic: str) -> bool:
        """Whether another topic had that name when this service first saw it."""
        return self._topics.created_anew(topic)

    def cannot_be_committed(self, partition: Partition) -> bool:
        """Whether workers commit it, in transactions, and its topic was deleted, be it that another one has the name
        now. No transaction with its offset would end, and all others of its worker would wait for that one."""
        if not self.workers_commit:
            return False
        return self._topics.is_gone(partition.tp.topic) or self.is_of_gone_topic(partition)

    def doubt_topics(self) -> None:
        """Have the metadata asked for soon."""
        self._topics.doubt()

    def disown(self, partitions: Iterable[TopicPartition]) -> None:
        """Exclude these from commits: an offset of the old topic would count for the new one."""
        for tp in partitions:
            self[tp].disown()

    def own_again(self) -> list[TopicPartition]:
        """Take those back that were disowned, and whose topic has its name after all."""
        found = [tp for tp, partition in self.items() if partition.disowned and self._is_of_its_topic(partition)]
        for tp in found:
            self[tp].own_again()
        return found

    def _is_of_its_topic(self, partition: Partition) -> bool:
        return partition.topic_id is not None and partition.topic_id == self._topics.topic_id(partition.tp.topic)

    # -- for the committer ---------------------------------------------------------------------------------------

    def read(self, partition: Partition) -> None:
        """Read its ledger: what a worker commits itself is committed by then."""
        partition.read_ledger()
        if self.workers_commit and partition.position is not None:
            partition.commit_seen(partition.position.offset, partition.committed_done)

    def anything_unfinished(self) -> bool:
        """Whether a worker has a record in hand, or something that was handled waits for its commit."""
        return any(partition.busy for partition in self.values()) or bool(self.consumed())

    def consumed(self) -> dict[TopicPartition, Position]:
        """What may be committed now and is not yet: of owned partitions only, never past an unfinished record, and no
        position that the log does not hold: its commit could come behind that of the one that takes its place.

        Skips handlers that store their own offsets (`load_offsets`): if their store were lost, the committed offset
        would be used in its place, and records skipped.
        """
        ready: dict[TopicPartition, Position] = {}
        for tp, partition in self.items():
            self.read(partition)
            if self.workers_commit:
                continue
            position = None if partition.lost or partition.beside_the_log else partition.reached()
            if position is None or self.handler_keeps_offsets(tp.topic):
                continue
            if (position.offset, position.done) != (partition.committed, partition.committed_done):
                ready[tp] = position
        return ready

    def not_committed_here(self, topic: str) -> str | None:
        """Why offsets of that topic are not the supervisor's to set, and what to do instead; None: they are."""
        if self.workers_commit:
            return "workers commit its offsets, in transactions (producing.delivery): stop and `kunicorn offsets reset`"
        if self.handler_keeps_offsets(topic):
            return "its handler keeps the offsets itself (load_offsets): stop and change what it has stored"
        return None

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, UUID]:
        """Of those topics among them whose id is known: the one that these partitions were consumed of."""
        known = ((tp.topic, self[tp].topic_id) for tp in partitions if tp in self)
        return {topic: topic_id for topic, topic_id in known if topic_id is not None}

    def committed(self, tp: TopicPartition, position: Position) -> None:
        """Note that the broker has accepted the commit of that position."""
        if (partition := self.get(tp)) is not None:
            partition.commit_seen(position.offset, position.done)


def _other(before: UUID | None, now: UUID | None) -> bool:
    return before is not None and now is not None and before != now


log = logs.get("kunicorn.fetchers")


class Grants:
    """The open grants of each worker. Caller: `Assignment`, on the loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._held: dict[WorkerProcess, dict[int, Partition]] = defaultdict(dict)
        self._last = 0

    def of(self, worker: WorkerProcess) -> list[Partition]:
        """The partitions that the worker holds."""
        return list(self._held.get(worker, {}).values())

    def issue(self, worker: WorkerProcess, partitions: Iterable[Partition]) -> None:
        """Hand these out to the worker, each from its position on. Nobody else may hold them."""
        starts = []
        for partition in partitions:
            assert partition.position is not None
            self._last += 1
            partition.hand_to(worker, self._last)
            self._held[worker][self._last] = partition
            starts.append(_start(partition, partition.position))
        worker.send(StartFetcher(starts))

    def find(self, worker: WorkerProcess, grant: int) -> Partition | None:
        """The partition that the worker holds under this grant. None: the grant is over, and the report refused."""
        partition = self._held.get(worker, {}).get(grant)
        if partition is None:
            self._metrics.count(catalogue.REPORTS_REFUSED, reason="old grant")
            log.warning(f"{worker} reported under grant {grant}, which is over: refused", worker=worker.number)
        return partition

    def end(self, partition: Partition, reported: Position | None) -> None:
        """End a partition's grant at the position that the worker reported; None: it is dead, and the ledger says
        where."""
        partition.read_ledger()
        if reported is None or partition.lost:
            partition.note_undelivered()
        if reported is not None and reported.offset != NO_OFFSET:
            partition.reported(reported)
        assert partition.worker is not None
        del self._held[partition.worker][partition.grant]
        partition.take_back()

    def bury(self, worker: WorkerProcess) -> None:
        """Forget a dead worker, all of whose grants have ended."""
        self._held.pop(worker, None)


def _start(partition: Partition, position: Position) -> FetcherStart:
    tp = partition.tp
    return FetcherStart(
        grant=partition.grant,
        slot=partition.slot,
        topic=tp.topic,
        partition=tp.partition,
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        stop=partition.stop,
        reset=partition.reset or partition.fresh,
        done=partition.done.beginning(position.offset).text(),
        began_with=partition.began_with,
        topic_id=topic_id_text(partition.topic_id),
        **partition.blame.warning(position.offset),
    )


OPEN = frozenset({PartitionState.STARTING, PartitionState.RUNNING})
"""A worker has it, or may have it at once."""
_SHARED = OPEN | {PartitionState.MOVING}
WHENEVER = 1e18
"""The deadline of a move inside the pool: nobody waits for it, the partition goes on where it is until then."""
_AT_A_TURN = 2_000
"""So many are handed out before the loop has another turn: heartbeats go out in between."""


class Distribution:
    """Hands partitions out to workers, and moves them between workers. Caller: `Assignment` and `Balancer`, on the
    loop."""

    def __init__(self, table: PartitionTable, grants: Grants, metrics: Metrics) -> None:
        self._table = table
        self._grants = grants
        self._metrics = metrics
        self._by_load = False
        """Loads have placed partitions: evening out their counts would undo that."""
        self._starts: dict[int, list[Partition]] = {}
        """By worker: what is handed out in the loop's next turns."""
        self._goes_on = False
        """The next of these turns is asked for."""

    def distribute(self, pool: Pool) -> None:
        """Give every startable partition to its worker, very many in several turns of the loop; and move as few as
        balance demands. Those that come back have their place kept: others would move there, and away again."""
        expected = pool.expected()
        shared = {tp: p for tp, p in self._table.items() if p.state in _SHARED or p.comes_back}
        if not expected or not shared:
            return
        starts: dict[int, list[Partition]] = defaultdict(list)
        moves: dict[WorkerProcess, list[int]] = defaultdict(list)
        for tp, number in self._target(shared, expected).items():
            partition = shared[tp]
            if partition.state not in _SHARED:
                continue
            if partition.worker is None:
                starts[number].append(partition)
            elif partition.state is PartitionState.MOVING:
                partition.move_to(number)
            elif partition.worker.number != number:
                self._metrics.count(catalogue.PARTITION_MOVES, reason="count")
                self._part(partition, number)
                moves[partition.worker].append(partition.grant)
        for worker, grants in moves.items():
            worker.send(StopFetcher(grants, WHENEVER))
        self._starts = starts
        self._start(pool)

    def _start(self, pool: Pool) -> None:
        room = _AT_A_TURN
        while self._starts and room:
            number, partitions = self._starts.popitem()
            if partitions[room:]:
                self._starts[number] = partitions[room:]
            worker = pool.accepting(number)
            # Since the turn in which they were shared out some may have left us.
            due = [p for p in partitions[:room] if p.state in OPEN and p.worker is None and self._table.get(p.tp) is p]
            if worker is not None and due:
                self._grants.issue(worker, due)
            room -= len(partitions[:room])
        if self._starts and not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on, pool)

    def _go_on(self, pool: Pool) -> None:
        self._goes_on = False
        self._start(pool)

    def share_by_count(self, pool: Pool) -> None:
        """Even out the numbers again, if loads have placed something."""
        if self._by_load:
            self._by_load = False
            self.distribute(pool)

    def move(self, move: Move) -> None:
        """Let a running partition go on in another worker. Caller: `balancer`, while nothing else is under way."""
        partition = self._table[move.tp]
        assert partition.worker is not None
        self._by_load = True
        self._metrics.count(catalogue.PARTITION_MOVES, reason=move.reason.value)
        self._part(partition, move.receiver)
        partition.worker.send(StopFetcher([partition.grant], WHENEVER))

    def fetch_anew(self, partitions: Iterable[Partition]) -> None:
        """Have the workers let go of these running partitions and take them up again where they are, under new grants:
        their clients begin with a new fetch."""
        grants: dict[WorkerProcess, list[int]] = defaultdict(list)
        for partition in partitions:
            if partition.worker is not None and partition.state is PartitionState.RUNNING:
                self._part(partition, partition.worker.number, "fetched anew")
                grants[partition.worker].append(partition.grant)
        for worker, held in grants.items():
            worker.send(StopFetcher(held, WHENEVER))

    def _target(
        self, shared: Mapping[TopicPartition, Partition], expected: Collection[int]
    ) -> dict[TopicPartition, int]:
        """The worker of each partition. One that moves counts where it goes to, else others would be sent after it."""
        current = {tp: p.last_worker for tp, p in shared.items() if p.last_worker is not None}
        self._by_load = self._by_load and any(number in expected for number in current.values())
        if not self._by_load:
            return share(list(shared), expected, current)
        return keep(list(shared), expected, current, {tp: p.demand for tp, p in shared.items()})

    def _part(self, partition: Partition, number: int, why: str | None = None) -> None:
        partition.advance(PartitionEvent.MOVE, why or f"moving to worker {number}")
        partition.move_to(number)
