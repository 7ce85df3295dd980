"""The only place that commits offsets.

1. One OffsetCommit in flight; none is ever cancelled: a cancelled one may be overtaken by its own successor.
2. Only partitions owned, only consumed offsets, looked up anew for each request and each retry (invariants 1, 3).
3. None between JoinGroup sent and SyncGroup answered (invariant 2); but a leaving member's, while its JoinGroup waits.
4. What one request cannot have (`first_piece`) goes out in several, those first that somebody waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple, Protocol

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer
from kunicorn.group.reactions import COORDINATOR_MOVED, Api, Reaction, reaction
from kunicorn.ipc import bitmap, clock
from kunicorn.kafka.coordinator import first_piece
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.workers.transactions import OpenTransactions
from kunicorn.text import listed

log = logs.get("kunicorn.commits")

_RETRY_PAUSE = 0.1
_HELD = 10.0
"""Seconds after an undecided commit in which heartbeats may be held: until the next one is out, at the usual interval
(5 s), and decided (offsets.commit.timeout.ms: 5 s)."""
_UNDECIDED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})
"""In the log, but not on all replicas in time (`CoordinatorRuntime.java`): it may yet count."""


_NO_SUCH_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""A coordinator that lags behind says so of a new topic, too: the metadata decides."""
_UNANSWERED = "unanswered"
_UNSAID = -1
"""The answer leaves the partition out; also Kafka's own code for an error that has none."""
_AWAY = COORDINATOR_MOVED | {ErrorCode.REQUEST_TIMED_OUT}
"""No coordinator takes commits now: it has moved, is still loading the group, or reaches too few replicas."""
_NOT_SENT = "no coordinator takes commits of this member now: it is looked up, or a rebalance is under way"


class CommitTarget(Protocol):
    """What the committer needs of the membership."""

    @property
    def may_commit(self) -> bool:
        """Whether the broker takes commits of our generation now."""

    @property
    def changed(self) -> Notifier:
        """Notified when `may_commit` has changed, and when a partition is not ours any more."""

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        """One OffsetCommit under the current member id and generation; raises `PeerError`."""

    def commit_refused(self, error: int) -> None:
        """Report an error of a commit that concerns the membership."""

    def is_gone(self, topic: str) -> bool:
        """Whether the newest metadata says that there is no such topic."""


class _Outcome(NamedTuple):
    """The result of one OffsetCommit, or of several on end."""

    complete: bool
    """Nothing in it has to be sent again."""
    accepted: Sequence[TopicPartition] = ()
    given_up: Mapping[TopicPartition, int] = {}
    """By the error that no repetition in the next seconds cures. It stays uncommitted."""
    refused: Mapping[TopicPartition, int] = {}
    """By the error that a repetition may cure."""
    result: str = "ok"
    """As the metric has it; of several the last that is not ok."""

    def and_then(self, later: _Outcome) -> _Outcome:
        return _Outcome(
            self.complete and later.complete,
            [*self.accepted, *later.accepted],
            {**self.given_up, **later.given_up},
            {**self.refused, **later.refused},
            self.result if later.result == "ok" else later.result,
        )

    @property
    def away(self) -> bool:
        """Whether no coordinator was there to take it."""
        return self.result == _UNANSWERED or not _AWAY.isdisjoint(self.refused.values())


class _Limits:
    """Until when somebody waits for a commit. Up to `away_until` the time without a coordinator puts that off."""

    def __init__(self, deadline: float, away_until: float = 0.0) -> None:
        self.deadline = deadline
        self._away_until = away_until

    @property
    def latest(self) -> float:
        """The deadline, if there is no coordinator from now on."""
        return max(self.deadline, self._away_until)

    def was_away(self, since: float) -> None:
        """Put the deadline off: since then there was no coordinator."""
        self.deadline = max(self.deadline, min(self.deadline + clock.now() - since, self._away_until))


class OffsetCommitter:
    """Commits consumed offsets: on a timer, and whenever a caller waits for it."""

    def __init__(
        self,
        target: CommitTarget,
        consumed: Callable[[], dict[TopicPartition, Position]],
        committed: Callable[[TopicPartition, Position], None],
        metrics: Metrics,
        transactions: OpenTransactions | None = None,
    ) -> None:
        """`consumed` gives what may be committed now; `committed` is told what the broker has accepted;
        `transactions`: where workers commit, in transactions."""
        self.last_ok_at: float | None = None
        self.last_result: str | None = None
        self._transactions = transactions
        self._target = target
        self._consumed = consumed
        self._committed = committed
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()
        self._awaited = 0
        """So many wait for the commit in flight: none is sent behind it before them."""
        self._out = False
        self._held_until = float("-inf")
        self._given_up: set[TopicPartition] = set()
        """The brokers refused these for good when they were last in a request."""
        self._refused_with: Set[int] = frozenset()
        """What they refused when they last answered, for a repetition to cure; it is in the log."""
        self._metadata = iter(_METADATA)
        self._shortened = next(self._metadata)
        """What the brokers take of the metadata."""

    @property
    def pending(self) -> bool:
        """Whether the broker may still hold a commit of ours, waiting for its replicas; it holds heartbeats behind it.

        That outlasts our own time-out: while a replica is frozen, the next one is held as well.
        """
        return self._out or clock.now() < self._held_until

    async def commit_every(self, interval: float) -> None:
        """Commit every `interval` seconds, for ever; a commit that fails is made up for by the next."""
        while True:
            await asyncio.sleep(interval)
            if self._target.may_commit:
                await self._commit_once(self._consumed, "timer")

    async def commit_all(self, leaving: Collection[TopicPartition], within: float, away_until: float = 0.0) -> bool:
        """Commit until nothing that `leaving` consumed is uncommitted; False if that takes longer, or if the brokers
        will not take it.

        `within`: seconds, from when the commit in flight is over: one that is stuck must not use up the time of this.
        Up to `away_until` (seconds of `clock.now`) those in which no coordinator can take a commit do not count: a dead
        one has a successor after seven to twelve seconds. What goes on elsewhere is committed along with it where there
        is room, but not waited for.
        """
        given_up: set[TopicPartition] = set()

        def left() -> set[TopicPartition]:
            consumed = self._consumed()
            return {tp for tp in leaving if tp in consumed}

        def note(outcome: _Outcome) -> None:
            given_up.update(outcome.given_up)

        if not left():
            return True
        await self._in_flight_answered()
        limits = _Limits(clock.now() + within, away_until)
        await self._until(lambda: left() <= given_up, self._consumed, limits, note, frozenset(leaving))
        return not left()

    async def commit_starts(
        self,
        positions: Mapping[TopicPartition, Position],
        owned: Callable[[TopicPartition], bool],
        deadline: float,
        settled: Callable[[Collection[TopicPartition], Mapping[TopicPartition, str]], None] = lambda *_: None,
    ) -> Mapping[TopicPartition, str]:
        """Commit start offsets that a policy chose, before anything is fetched from there (invariant 9).

        `owned` is asked at each try: a partition that left us meanwhile is not committed (invariant 3). `settled` is
        told after each try which are committed, so that they may be fetched now, and why others cannot be for as long
        as this user may not read them. Returns those for which the deadline came before that, and why.
        """
        left, why = dict(positions), dict[TopicPartition, str]()

        def wanted() -> dict[TopicPartition, Position]:
            return {tp: position for tp, position in left.items() if owned(tp)}

        def note(outcome: _Outcome) -> None:
            accepted = [tp for tp in outcome.accepted if left.pop(tp, None) is not None]
            errors = {**outcome.refused, **outcome.given_up}
            denied = {
                tp: f"its start offset cannot be committed: {_explained(error, tp)}"
                for tp, error in outcome.given_up.items()
                if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED and left.pop(tp, None) is not None
            }
            if outcome.result == _UNANSWERED:
                why.update(dict.fromkeys(left, "the coordinator has not answered the commit"))
            why.update({tp: _explained(error, tp) for tp, error in errors.items()})
            if accepted or denied:
                settled(accepted, denied)

        await self._until(lambda: not wanted(), wanted, _Limits(deadline), note)
        return {tp: why.get(tp, _NOT_SENT) for tp in wanted()}

    async def wait_answered(self) -> None:
        """Wait for the commit in flight, if there is one, and for transactions that workers are about to commit.

        Bounded by the time-out of that request, and by `OpenTransactions.wait_ended`.
        """
        if self._transactions is not None:
            await self._transactions.wait_ended()
        await self._in_flight_answered()

    async def _in_flight_answered(self) -> None:
        self._awaited += 1
        try:
            async with self._one_at_a_time:
                return
        finally:
            self._awaited -= 1

    async def _until(
        self,
        done: Callable[[], bool],
        wanted: Callable[[], dict[TopicPartition, Position]],
        limits: _Limits,
        note: Callable[[_Outcome], None],
        leaving: Set[TopicPartition] = frozenset(),
    ) -> None:
        while not done() and (began := clock.now()) < limits.deadline:
            if not self._target.may_commit:
                await self._target.changed.wait(lambda: self._target.may_commit or done(), limits.latest)
                limits.was_away(since=began)
                continue
            outcome = await self._commit_once(wanted, "wait", leaving, limits.deadline)
            note(outcome)
            if not outcome.complete and not done():
                await asyncio.sleep(_RETRY_PAUSE)
            if outcome.away:
                limits.was_away(since=began)

    async def _commit_once(
        self,
        wanted: Callable[[], dict[TopicPartition, Position]],
        why: str,
        leaving: Set[TopicPartition] = frozenset(),
        deadline: float = float("inf"),
    ) -> _Outcome:
        """Commit what there is to commit, in as many requests as that takes; where partitions are leaving, these first,
        and no more requests than they take.

        It stays incomplete where the deadline comes in between, or somebody who waits for the commit in flight; and
        where sending the next one would meet what this one has met.
        """
        async with self._one_at_a_time:
            outcome = _Outcome(complete=True)
            sent: set[TopicPartition] = set()
            while offsets := _unsent(wanted(), sent, leaving):
                if sent and leaving and leaving.isdisjoint(offsets):
                    break
                if not self._target.may_commit or (sent and (self._awaited or clock.now() >= deadline)):
                    outcome = outcome._replace(complete=False)
                    break
                piece = first_piece(offsets)
                sent.update(piece)
                answered = await self._send(piece, why)
                outcome = outcome.and_then(answered)
                if len(piece) == len(offsets) or _concerns_all(answered):
                    break
            if sent:
                self._note_outcome(outcome)
            return outcome

    async def _send(self, offsets: Mapping[TopicPartition, Position], why: str) -> _Outcome:
        """Send one OffsetCommit."""
        self._out = True
        began = clock.now()
        try:
            answer = await self._target.send_commit(
                {tp: position._replace(done=self._shortened(position.done)) for tp, position in offsets.items()}
            )
        except PeerError as error:
            self._held_until = clock.now() + _HELD
            self._note(_UNANSWERED, began, _UNANSWERED)
            log.warning(
                f"a commit of {len(offsets)} offsets went unanswered: {error}; the next one repeats it", why=why
            )
            return _Outcome(complete=False, result=_UNANSWERED)
        finally:
            self._out = False
        return self._read_answer(offsets, answer, began)

    def _read_answer(self, offsets: Mapping[TopicPartition, Position], answer: CommitAnswer, began: float) -> _Outcome:
        too_long = False
        accepted: list[TopicPartition] = []
        given_up: dict[TopicPartition, int] = {}
        refused: dict[TopicPartition, int] = {}
        for tp, position in offsets.items():
            error = answer.errors.get(tp, _UNSAID)
            verdict = self._verdict(tp, error)
            if verdict is Reaction.PROCEED:
                self._committed(tp, position)
                accepted.append(tp)
            elif error == ErrorCode.OFFSET_METADATA_TOO_LARGE and self._shortened(position.done):
                too_long = True
            elif verdict is Reaction.GIVE_UP:
                given_up[tp] = error
            else:
                refused[tp] = error
        self._log_given_up(given_up, offsets)
        if too_long:
            self._shorten_metadata()
        if not refused:
            self._held_until = float("-inf")
            result = self._note_answer(next(iter(given_up.values()), 0), began)
            return _Outcome(not (given_up or too_long), accepted, given_up, result=result)
        worst = list(refused.values())[-1]
        if worst in _UNDECIDED:
            self._held_until = clock.now() + _HELD
        result = self._note_answer(worst, began)
        self._target.commit_refused(worst)
        return _Outcome(False, accepted, given_up, refused, result)

    def _verdict(self, tp: TopicPartition, error: int) -> Reaction:
        if error == _UNSAID:
            return Reaction.RETRY
        if error in _NO_SUCH_TOPIC and self._target.is_gone(tp.topic):
            return Reaction.GIVE_UP
        return reaction(Api.COMMIT, error)

    def _log_given_up(self, given_up: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, Position]) -> None:
        """Log a refusal once, however often the timer meets it: an offset that is refused is in every later request."""
        news = [tp for tp in given_up if tp not in self._given_up]
        self._given_up.difference_update(offsets)
        if given_up:
            self._given_up.intersection_update(self._consumed())  # Without those that have left.
            self._given_up.update(given_up)
        for error in {given_up[tp] for tp in news}:
            about = [tp for tp in news if given_up[tp] == error]
            shown = listed(f"{tp}@{offsets[tp].offset}" for tp in about)
            log.error(f"{len(about)} offsets cannot be committed: {_explained(error, about[0])}", positions=shown)

    def _shorten_metadata(self) -> None:
        self._shortened = next(self._metadata)
        log.warning(
            "the brokers' offset.metadata.max.bytes is too small for what is committed with an offset, which goes on "
            "with less: a hand-over may repeat what is done ahead of it; the default of 4096 is enough"
        )

    def _note_outcome(self, outcome: _Outcome) -> None:
        """Note what came of all the requests together."""
        self.last_result = outcome.result
        if outcome.result == _UNANSWERED:
            return
        nothing_taken = outcome.given_up and not outcome.accepted
        if not outcome.refused and not nothing_taken:
            self.last_ok_at = clock.now()
        errors = outcome.refused.values()
        for error in set(errors) - self._refused_with:
            about = [tp for tp, code in outcome.refused.items() if code == error]
            tell = log.warning if reaction(Api.COMMIT, error) in (Reaction.RETRY, Reaction.FAIL) else log.info
            tell(f"{len(about)} offsets are not committed: {_explained(error, about[0])}", positions=listed(about))
        self._refused_with = set(errors)

    def _note_answer(self, error: int, began: float) -> str:
        result = f"error {error}" if error else "ok"
        self._note(result, began, fault(error).name if error else "")
        return result

    def _note(self, result: str, began: float, error_type: str = "") -> None:
        self._metrics.count(catalogue.COMMITS, result=result)
        seconds = clock.now() - began
        self._metrics.observe(catalogue.COMMIT_SECONDS, seconds)
        self._metrics.observe(catalogue.OPERATION_SECONDS, seconds, operation="commit", error_type=error_type)


def _unsent(
    wanted: Mapping[TopicPartition, Position], sent: Set[TopicPartition], leaving: Set[TopicPartition]
) -> dict[TopicPartition, Position]:
    """Those that are leaving come first."""
    ordered = chain((tp for tp in wanted if tp in leaving), (tp for tp in wanted if tp not in leaving))
    return {tp: wanted[tp] for tp in ordered if tp not in sent}


def _concerns_all(outcome: _Outcome) -> bool:
    """Whether the next request would meet the same: no coordinator answers, or it is not ours any more, or we are not
    its member."""
    once_more = all(reaction(Api.COMMIT, error) is Reaction.RETRY for error in outcome.refused.values())
    return outcome.result == _UNANSWERED or not once_more


def _number_alone(metadata: str) -> str:
    return bitmap.with_partitions(bitmap.partitions(metadata), "")


_METADATA: Sequence[Callable[[str], str]] = (str, _number_alone, lambda _: "")
"""What is committed with an offset, where brokers take less and less; nothing is never too long."""


def _explained(error: int, tp: TopicPartition) -> str:
    remedy = fault(error).remedy(topic=f"topic {tp.topic!r}", rights="READ", setting="group.topics")
    return f"{describe(error)}: {remedy}"
