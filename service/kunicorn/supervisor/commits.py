"""The only place that commits offsets.

1. One OffsetCommit in flight; none is ever cancelled: a cancelled one may be overtaken by its own successor.
2. Only partitions owned, only consumed offsets, looked up anew for each request and each retry (invariants 1, 3).
3. None between JoinGroup sent and SyncGroup answered (invariant 2); but a leaving member's, while its JoinGroup waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer
from kunicorn.group.reactions import Api, Reaction, reaction
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import clock, marks
from kunicorn.supervisor.windows import Windows
from kunicorn.topics import Position, TopicPartition
from kunicorn.wire.error_codes import ErrorCode, describe

log = logs.get("kunicorn.commits")

_RETRY_PAUSE = 0.1
_POLL = 0.05
_HELD = 10.0
"""Seconds after an undecided commit in which heartbeats may be held: until the next one is out, at the usual interval
(5 s), and decided (offsets.commit.timeout.ms: 5 s)."""
_UNDECIDED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})
"""In the log, but not on all replicas in time (`CoordinatorRuntime.java`): it may yet count."""


class CommitTarget(Protocol):
    """What the committer needs of the membership."""

    @property
    def may_commit(self) -> bool:
        """Whether the broker takes commits of our generation now."""

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        """One OffsetCommit under the current member id and generation; raises `PeerError`."""

    def commit_refused(self, error: int) -> None:
        """A commit met an error that concerns membership."""


class Commits:
    """Commits what was consumed: on a timer, and whenever someone waits for it."""

    def __init__(
        self,
        target: CommitTarget,
        consumed: Callable[[], dict[TopicPartition, Position]],
        committed: Callable[[TopicPartition, Position], None],
        metrics: Metrics,
    ) -> None:
        """`consumed` gives what may be committed now; `committed` is told what the broker has accepted."""
        self.last_ok_at: float | None = None
        self.last_result: str | None = None
        self.windows: Windows | None = None
        """Set by the service where workers commit, in transactions."""
        self._target = target
        self._consumed = consumed
        self._committed = committed
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()
        self._out = False
        self._held_until = float("-inf")
        self._metadata = iter(_METADATA)
        self._shortened = next(self._metadata)
        """What the brokers take of the metadata."""

    @property
    def pending(self) -> bool:
        """Whether the broker may still hold a commit of ours, waiting for its replicas; it holds heartbeats behind it.

        That outlasts our own time-out: while a replica is frozen, the next one is held as well.
        """
        return self._out or clock.now() < self._held_until

    async def every(self, interval: float) -> None:
        """Commit every `interval` seconds, for ever; a commit that fails is made up for by the next."""
        while True:
            await asyncio.sleep(interval)
            if self._target.may_commit:
                await self._once(self._consumed, "timer")

    async def settle(self, leaving: Collection[TopicPartition], deadline: float) -> bool:
        """Commit until nothing that `leaving` consumed is uncommitted; False if `deadline` came first.

        `deadline`: seconds of `clock.now`. What goes on elsewhere is committed along with it, but not waited for.
        """

        def done() -> bool:
            consumed = self._consumed()
            return not any(tp in consumed for tp in leaving)

        return await self._until(done, self._consumed, deadline)

    async def starts(
        self, positions: Mapping[TopicPartition, Position], owned: Callable[[TopicPartition], bool], deadline: float
    ) -> bool:
        """Commit start offsets that a policy chose, before anything is fetched from there (invariant 9).

        `owned` is asked at each try: a partition that left us meanwhile is not committed (invariant 3).
        """
        left = dict(positions)

        def wanted() -> dict[TopicPartition, Position]:
            return {tp: position for tp, position in left.items() if owned(tp)}

        return await self._until(lambda: not wanted(), wanted, deadline, lambda tp: left.pop(tp, None))

    async def quiet(self) -> None:
        """Wait for the commit in flight, if there is one, and for transactions that workers are about to commit.

        Bounded by the time-out of that request, and by `Windows.quiet`.
        """
        if self.windows is not None:
            await self.windows.quiet()
        async with self._one_at_a_time:
            return

    async def _until(
        self,
        done: Callable[[], bool],
        wanted: Callable[[], dict[TopicPartition, Position]],
        deadline: float,
        accepted: Callable[[TopicPartition], object] = lambda _: None,
    ) -> bool:
        while not done():
            if clock.now() >= deadline:
                return False
            if not self._target.may_commit:
                await asyncio.sleep(_POLL)
            elif not await self._once(wanted, "wait", accepted) and not done():
                await asyncio.sleep(_RETRY_PAUSE)
        return True

    async def _once(
        self,
        wanted: Callable[[], dict[TopicPartition, Position]],
        why: str,
        accepted: Callable[[TopicPartition], object] = lambda _: None,
    ) -> bool:
        """One request; True if every offset in it was accepted."""
        async with self._one_at_a_time:
            offsets = wanted()
            if not offsets or not self._target.may_commit:
                return not offsets
            self._out = True
            began = clock.now()
            try:
                answer = await self._target.send_commit(
                    {tp: position._replace(done=self._shortened(position.done)) for tp, position in offsets.items()}
                )
            except PeerError as error:
                self._held_until = clock.now() + _HELD
                self._note("unanswered", began)
                log.warning(
                    f"a commit of {len(offsets)} offsets went unanswered: {error}; the next one repeats it", why=why
                )
                return False
            finally:
                self._out = False
            return self._take(offsets, answer, accepted, began)

    def _take(
        self,
        offsets: Mapping[TopicPartition, Position],
        answer: CommitAnswer,
        accepted: Callable[[TopicPartition], object],
        began: float,
    ) -> bool:
        worst, given_up, too_long = 0, False, False
        for tp, position in offsets.items():
            error = answer.errors.get(tp)
            if error == ErrorCode.OFFSET_METADATA_TOO_LARGE and self._shortened(position.done):
                too_long = given_up = True
                continue
            verdict = Reaction.RETRY if error is None else reaction(Api.COMMIT, error)
            if verdict is Reaction.PROCEED:
                self._committed(tp, position)
                accepted(tp)
            elif verdict is Reaction.GIVE_UP:
                # Of a start offset only this try is given up: the broker may not know a new topic yet. Not so without
                # the right to read: the fetch is refused next, and the partition halts with that for its reason.
                log.error(f"offset {position.offset} of {tp} cannot be committed: {_explained(error, tp)}")
                self._committed(tp, position)
                if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    accepted(tp)
                else:
                    given_up = True
            else:
                worst = error if error is not None else -1
        if too_long:
            self._shorten_metadata()
        if worst == 0:
            self.last_ok_at = clock.now()
            self._held_until = float("-inf")
            self._note("ok", began)
            return not given_up
        if worst in _UNDECIDED:
            self._held_until = clock.now() + _HELD
        self._note(f"error {worst}", began)
        self._target.commit_refused(worst)
        return False

    def _shorten_metadata(self) -> None:
        self._shortened = next(self._metadata)
        log.warning(
            "the brokers' offset.metadata.max.bytes is too small for what is committed with an offset, which goes on "
            "with less: a hand-over may repeat what is done ahead of it; the default of 4096 is enough"
        )

    def _note(self, result: str, began: float) -> None:
        self.last_result = result
        self._metrics.commits.labels(result=result).inc()
        self._metrics.commit_seconds.observe(clock.now() - began)


def _number_alone(metadata: str) -> str:
    return marks.with_partitions(marks.partitions(metadata), "")


_METADATA: Sequence[Callable[[str], str]] = (str, _number_alone, lambda _: "")
"""What is committed with an offset, where brokers take less and less; nothing is never too long."""


def _explained(error: int | None, tp: TopicPartition) -> str:
    if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"{describe(error)}: this user needs READ on topic {tp.topic!r}"
    return describe(error or 0)
