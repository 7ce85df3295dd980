"""Failed records of a worker: tried again, passed over, sent to the dead-letter topic or to a retry topic, or left for
a person, as the retry rules say.

Nothing here holds up the other partitions: one whose record waits is parked, and its records are fetched again later.
1. A record is passed over only after that topic has acknowledged it, or a rule says to skip it. 2. A partition that is
stopped while its record waits is reported at once; the record is not done, and the partition's next owner begins with
it. A letter on its way by then may arrive as well: letters come at least once.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from confluent_kafka import KafkaError, Message

from kunicorn.handler.call import following_offsets
from kunicorn.handler.dead_letters import WORKER_DIED, Cause, Destination, cause_of, retries
from kunicorn.handler.retry import End, Policies, Reason, TryAgain, describe, reason_of
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.librdkafka.errors import fault_of
from kunicorn.worker.produce.sender import Delivery, LetterRefused
from kunicorn.worker.progress import Attempt, F

log = logging.getLogger("kunicorn.worker")

_LOG_EVERY_NS = NANOSECONDS
_PROMPT_SECONDS = 0.05
"""So long the runner waits for an acknowledgement before it parks the partition: fetching it again costs as much.
Not at all while the topic is in trouble: the other partitions would pay."""
_NO_TOPIC = "no dead-letter topic is set; set dead_letters.topic"


class Table(Protocol[F]):
    """The table of partitions, as failures see it: either of the two kinds, which explain the methods."""

    def park(self, attempt: Attempt[F], waits_for: str, why: str) -> bool: ...
    def pass_over(self, attempt: Attempt[F], end: End, label: str | None) -> bool: ...
    def give_up(self, attempt: Attempt[F], error: str) -> None: ...
    def begin_again(self, grant: F, now: int) -> bool: ...
    def explain_wait(self, grant: F, why: str) -> None: ...


F_contra = TypeVar("F_contra", contravariant=True)


class Letters(Protocol[F_contra]):
    """Sender of letters: `sender.LetterProducer`, which explains the methods, or `LettersAmongOutputs`."""

    @property
    def dead_letters(self) -> Destination | None: ...
    def send(self, destination: Destination, messages: Sequence[Message], cause: Cause, of: F_contra) -> Delivery: ...
    def deliver(self, delivery: Delivery, seconds: float) -> bool: ...
    def serve(self) -> None: ...
    def start_anew(self) -> None: ...


class Observer:
    """Observer of records that the handler did not just handle; this one does nothing. Caller: the runner, before
    anything is done about them.
    """

    def raised(self, records: Sequence[Message], error: BaseException) -> None:
        """Note that the handler raised over these records, or that their outputs were refused."""

    def ended(self, records: Sequence[Message], end: End) -> None:
        """Note that these records are not tried again."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """End of the records of an attempt that is not repeated, and its reason."""

    end: End
    label: str | None
    """Of the counter of such ends: a `Reason`, or a retry topic's delay. None: it is counted already."""
    cause: Cause
    text: str
    """The cause for people, with the traceback's last lines."""
    destination: Destination | None = None
    """Where they go; None: nowhere, or no such topic is set."""


@dataclass(slots=True)
class _Posted(Generic[F]):
    """Letters of one record or batch that are not acknowledged yet."""

    attempt: Attempt[F]
    ending: _Ending
    destination: Destination
    delivery: Delivery
    refusals: int = 0
    again_at: int | None = None
    """When they are sent anew; None while they are on their way."""


class Failures(Generic[F]):
    """Caller: the runner, for everything. `now` is nanoseconds of `clock.now_ns`."""

    def __init__(
        self,
        table: Table[F],
        policies: Callable[[str], Policies],
        letters: Letters[F] | None,
        observer: Observer,
    ) -> None:
        """`policies` gives the rules for a topic's records."""
        self._table = table
        self._policies = policies
        self._letters = letters
        self._observer = observer
        self._prompt = True
        self._parked: list[tuple[int, int, int, F, Message]] = []
        """Heap of (when to try again, grant's number, a number of its own, grant, the first record that waits)."""
        self._numbers = count()
        self._posted: dict[int, _Posted[F]] = {}
        """By the grant's number."""
        self._logged_at = 0

    # -- a failure ---------------------------------------------------------------------------------------------------

    def meet(self, attempt: Attempt[F], error: BaseException, now: int) -> bool:
        """React to a failed attempt; whether the partition's next records may be handled right away."""
        self._observer.raised(attempt.records, error)
        grant = attempt.grant
        grant.failures += 1
        if grant.failures == 1:
            grant.failing_since = now
        if isinstance(error, LetterRefused):
            self._post_later(attempt, error, now)
            return False
        policies = self._policies(grant.tp.topic)
        verdict = policies.verdict(error, grant.failures, now - grant.failing_since, random.random())
        if isinstance(verdict, TryAgain):
            self._park(attempt, verdict, error, now)
            return False
        policy = policies.of(error)
        cause, text = cause_of(error, grant.failures), describe(error)
        if verdict is End.RETRY_TOPIC:
            later = policy.retry_topics[0]
            return self._end(attempt, _Ending(verdict, later.delay, cause, text, retries(later)), now)
        reason = reason_of(error, grant.failures, policy.max_attempts)
        return self._end(attempt, _Ending(verdict, reason, cause, text, self._dead_letters), now)

    def meet_poison(self, grant: F, messages: Sequence[Message], now: int) -> bool:
        """End the first of these records, which killed earlier workers, as its rule says, without the handler."""
        text, grant.poison = grant.poison, ""
        attempt = Attempt(grant, messages[:1], following_offsets(messages[:1])[0], calls=0)
        cause = Cause(WORKER_DIED, text, "", attempts=grant.poison_deaths)
        on_failure = self._policies(grant.tp.topic).default.on_failure
        return self._end(attempt, _Ending(on_failure, Reason.POISON, cause, text, self._dead_letters), now)

    def meet_refusal(self, attempt: Attempt[F], error: BaseException, refusals: int, now: int) -> bool:
        """React to a record whose outputs the brokers refused, for the `refusals`-th time: it has failed by that."""
        # The handler's return had made an end of the failures before.
        attempt.grant.failures = refusals - 1
        return self.meet(attempt, error, now)

    def _park(self, attempt: Attempt[F], verdict: TryAgain, error: BaseException, now: int) -> None:
        grant = attempt.grant
        tries = verdict.counted(grant.failures)
        why = f"offset {attempt.offset} is tried again ({tries}): {type(error).__name__}"
        if self._table.park(attempt, "retry", why):
            waits = now + verdict.wait_ns, grant.number, next(self._numbers), grant, attempt.records[0]
            heapq.heappush(self._parked, waits)
            wait = verdict.wait_ns / NANOSECONDS
            text = f"the handler failed on {grant.tp}@{attempt.offset} ({tries}), again in {wait:.3f} s"
            self._log_seldom(f"{text}: {describe(error)}", now)

    def _end(self, attempt: Attempt[F], ending: _Ending, now: int) -> bool:
        if ending.end is End.HALT:
            self._give_up(attempt, ending.text)
            return False
        if ending.end in (End.DEAD_LETTER, End.RETRY_TOPIC):
            return self._post(attempt, ending, now)
        if ending.end is End.SKIP:
            log.warning(f"{_named(attempt)} is skipped: {ending.text}")
        return self._pass_over(attempt, ending.end, ending.label)

    def _pass_over(self, attempt: Attempt[F], end: End, label: str | None) -> bool:
        self._observer.ended(attempt.records, end)
        return self._table.pass_over(attempt, end, label)

    def _give_up(self, attempt: Attempt[F], error: str) -> None:
        self._observer.ended(attempt.records, End.HALT)
        self._table.give_up(attempt, error)

    # -- letters --------------------------------------------------------------------------------------------------

    @property
    def _dead_letters(self) -> Destination | None:
        return self._letters.dead_letters if self._letters is not None else None

    def _post(self, attempt: Attempt[F], ending: _Ending, now: int) -> bool:
        if self._letters is None or (destination := ending.destination) is None:
            self._give_up(attempt, f"{_NO_TOPIC}. {ending.text}")
            return False
        delivery = self._letters.send(destination, attempt.records, ending.cause, attempt.grant)
        posted = _Posted(attempt, ending, destination, delivery)
        if self._letters.deliver(posted.delivery, _PROMPT_SECONDS if self._prompt else 0.0):
            if posted.delivery.error is None:
                self._log_seldom(f"{_named(attempt)} is in {destination.topic} now: {ending.text}", now)
                return self._pass_over(attempt, ending.end, ending.label)
            if (why := self._hopeless(posted)) is not None:
                self._give_up(attempt, why)
                return False
        self._prompt = False
        if self._table.park(attempt, ending.end.value, self._waits(posted, "it is not acknowledged yet")):
            self._posted[attempt.grant.number] = posted
        return False

    def _post_later(self, attempt: Attempt[F], error: LetterRefused, now: int) -> None:
        """Have records wait whose letters, sent among outputs, were refused; they are sent anew."""
        grant, (destination, cause) = attempt.grant, error.given_up
        ending = _Ending(destination.end, None, cause, str(error), destination)
        again_at = now + self._policies(grant.tp.topic).default.backoff_ns(grant.failures, random.random())
        posted = _Posted(attempt, ending, destination, Delivery(0), grant.failures, again_at)
        why = self._waits(posted, str(error))
        if self._table.park(attempt, ending.end.value, why):
            self._posted[grant.number] = posted
            self._log_seldom(f"{grant.tp}: {why}", now)

    def _end_posted(self, posted: _Posted[F], now: int) -> None:
        """End records whose letters took longer."""
        grant, error = posted.attempt.grant, posted.delivery.error
        later = Attempt(grant, posted.attempt.records, posted.attempt.following, calls=0)
        if error is None:
            self._prompt = True
            del self._posted[grant.number]
            if self._table.begin_again(grant, now):
                self._pass_over(later, posted.ending.end, posted.ending.label)
        elif (why := self._hopeless(posted)) is not None:
            del self._posted[grant.number]
            if self._table.begin_again(grant, now):
                self._give_up(later, why)
        else:
            posted.refusals += 1
            posted.again_at = now + self._policies(grant.tp.topic).default.backoff_ns(posted.refusals, random.random())
            why = self._waits(posted, error.str())
            self._table.explain_wait(grant, why)
            self._log_seldom(f"{grant.tp}: {why}", now)

    def _send_again(self, posted: _Posted[F]) -> None:
        assert self._letters is not None
        error = posted.delivery.error
        if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
            self._letters.start_anew()
        posted.again_at = None
        attempt, cause = posted.attempt, posted.ending.cause
        posted.delivery = self._letters.send(posted.destination, attempt.records, cause, attempt.grant)

    def _hopeless(self, posted: _Posted[F]) -> str | None:
        """Why sending again cannot help; None where it may. Nothing is cut off a record to make it fit."""
        error = posted.delivery.error
        if error is None or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return None
        cause, destination = posted.ending.cause, posted.destination
        return (
            f"{_named(posted.attempt)} is too large for the {destination.kind} {destination.topic!r}: "
            f"{fault_of(error.code()).remedy()} (the headers come on top of the record). {cause.type}: {cause.message}"
        )

    def _waits(self, posted: _Posted[F], why: str) -> str:
        destination = posted.destination
        return f"offset {posted.attempt.offset} waits for the {destination.kind} {destination.topic!r}: {why}"

    # -- each turn -----------------------------------------------------------------------------------------------------

    def look_after_letters(self, now: int) -> None:
        """End records whose letters are acknowledged, and send refused ones again."""
        if not self._posted or self._letters is None:
            return
        self._letters.serve()
        for number, posted in list(self._posted.items()):
            held = posted.attempt.grant.held
            if not held or held[0] is not posted.attempt.records[0]:
                del self._posted[number]  # Stopped, or rewound, while it waited.
                continue
            if posted.again_at is not None and posted.again_at <= now:
                self._send_again(posted)
            if posted.again_at is None and posted.delivery.over:
                self._end_posted(posted, now)

    def due(self, now: int) -> Iterator[tuple[F, Sequence[Message]]]:
        """Parked records (or batches) whose wait is over, without those that were stopped meanwhile."""
        while self._parked and self._parked[0][0] <= now:
            *_, grant, first = heapq.heappop(self._parked)
            # It may have been rewound, and wait again, for another time.
            if grant.held and grant.held[0] is first:
                yield grant, grant.held

    def patience(self, now: int, longest: float) -> float:
        """Seconds until the next try is due, at most `longest`."""
        if not self._parked:
            return longest
        return min(longest, max(0.0, (self._parked[0][0] - now) / NANOSECONDS))

    def _log_seldom(self, text: str, now: int) -> None:
        if now - self._logged_at < _LOG_EVERY_NS:
            return  # A database that is down fails every partition; the counters have them all.
        self._logged_at = now
        log.warning(text)


def _named(attempt: Attempt[F]) -> str:
    records = len(attempt.records)
    return f"{attempt.grant.tp}@{attempt.offset}" + (f" (a batch of {records})" if records > 1 else "")
