"""What is done about records that failed: tried again, passed over, sent to the dead-letter topic or to a retry topic,
or left for a person.

Nothing here holds up the other partitions: one whose record waits is parked, and its records are fetched again later.
1. A record is passed over only after that topic has acknowledged it, or a rule says to skip it.
2. A partition that is stopped while its record waits is reported at once; the record is not done, and whoever has the
   partition next begins with it. A letter on its way by then may arrive as well: letters come at least once.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol

from confluent_kafka import KafkaError, Message

from kunicorn.handler.call import following_offsets
from kunicorn.handler.dead_letters import WORKER_DIED, Address, Cause, cause_of, retries
from kunicorn.handler.retry import End, Policies, Reason, TryAgain, describe, reason_of
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.worker.produce.sender import Delivery, LetterRefused, Letters
from kunicorn.worker.progress import Attempt, F

log = logging.getLogger("kunicorn.worker")

_LOG_EVERY_NS = NANOSECONDS
_PROMPT_SECONDS = 0.05
"""So long the runner waits for an acknowledgement before it parks the partition: fetching it again costs as much.
Not at all while the topic is in trouble: the other partitions would pay."""
_NO_TOPIC = "no dead-letter topic is set; set dead_letters.topic"


class Table(Protocol[F]):
    """Where what failed is kept: the fetcher's table of grants, or that of records in flight; the former explains."""

    def park(self, attempt: Attempt[F], waits_for: str, why: str) -> bool: ...
    def pass_over(self, attempt: Attempt[F], end: End, label: str | None) -> bool: ...
    def give_up(self, attempt: Attempt[F], error: str) -> None: ...
    def retake(self, grant: F, now: int) -> bool: ...
    def waits(self, grant: F, why: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the records of an attempt end that nobody tries again, and why."""

    end: End
    label: str | None
    """Of the counter of such ends: a `Reason`, or a retry topic's delay. None: it is counted already."""
    cause: Cause
    text: str
    """The cause for people, with the traceback's last lines."""
    address: Address | None = None
    """Where they go; None: nowhere, or no such topic is set."""


@dataclass(slots=True)
class _Posted(Generic[F]):
    """Letters of one record or batch that are not acknowledged."""

    attempt: Attempt[F]
    ending: _Ending
    address: Address
    delivery: Delivery
    refusals: int = 0
    again_at: int | None = None
    """When they are sent anew; None while they are on their way."""


class Failures(Generic[F]):
    """Caller: the runner, for everything. `now` is nanoseconds of `clock.now_ns`."""

    def __init__(self, fetcher: Table[F], policies: Callable[[str], Policies], letters: Letters | None) -> None:
        """`policies` gives the rules for a topic's records."""
        self._fetcher = fetcher
        self._policies = policies
        self._letters = letters
        self._prompt = True
        self._parked: list[tuple[int, int, int, F, Message]] = []
        """Heap of (when to try again, grant's number, a number of its own, grant, the first record that waits)."""
        self._numbers = count()
        self._posted: dict[int, _Posted[F]] = {}
        """By the grant's number."""
        self._logged_at = 0

    # -- a failure ---------------------------------------------------------------------------------------------------

    def meet(self, attempt: Attempt[F], error: BaseException, now: int) -> bool:
        """The handler raised; whether the partition's next records may be handled right away."""
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
        reason = reason_of(error, grant.failures, policy.attempts)
        return self._end(attempt, _Ending(verdict, reason, cause, text, self._dead_letters), now)

    def meet_poison(self, grant: F, messages: Sequence[Message], now: int) -> bool:
        """The first of these killed the workers before us: it ends as its rule says, without the handler."""
        text, grant.poison = grant.poison, ""
        attempt = Attempt(grant, messages[:1], following_offsets(messages[:1])[0], calls=0)
        cause = Cause(WORKER_DIED, text, "", attempts=grant.poison_deaths)
        on_failure = self._policies(grant.tp.topic).default.on_failure
        return self._end(attempt, _Ending(on_failure, Reason.POISON, cause, text, self._dead_letters), now)

    def meet_refusal(self, attempt: Attempt[F], error: BaseException, refusals: int, now: int) -> bool:
        """The brokers refused what the handler returned for this record, so often by now: it has failed by that."""
        # The handler's return had made an end of the failures before.
        attempt.grant.failures = refusals - 1
        return self.meet(attempt, error, now)

    def _park(self, attempt: Attempt[F], verdict: TryAgain, error: BaseException, now: int) -> None:
        grant = attempt.grant
        tries = verdict.counted(grant.failures)
        why = f"offset {attempt.offset} is tried again ({tries}): {type(error).__name__}"
        if self._fetcher.park(attempt, "retry", why):
            waits = now + verdict.wait_ns, grant.number, next(self._numbers), grant, attempt.records[0]
            heapq.heappush(self._parked, waits)
            wait = verdict.wait_ns / NANOSECONDS
            text = f"the handler failed on {grant.tp}@{attempt.offset} ({tries}), again in {wait:.3f} s"
            self._log_seldom(f"{text}: {describe(error)}", now)

    def _end(self, attempt: Attempt[F], ending: _Ending, now: int) -> bool:
        if ending.end is End.HALT:
            self._fetcher.give_up(attempt, ending.text)
            return False
        if ending.end in (End.DEAD_LETTER, End.RETRY_TOPIC):
            return self._post(attempt, ending, now)
        if ending.end is End.SKIP:
            log.warning(f"{_named(attempt)} is skipped: {ending.text}")
        return self._fetcher.pass_over(attempt, ending.end, ending.label)

    # -- letters --------------------------------------------------------------------------------------------------

    @property
    def _dead_letters(self) -> Address | None:
        return self._letters.dead_letters if self._letters is not None else None

    def _post(self, attempt: Attempt[F], ending: _Ending, now: int) -> bool:
        if self._letters is None or (address := ending.address) is None:
            self._fetcher.give_up(attempt, f"{_NO_TOPIC}. {ending.text}")
            return False
        delivery = self._letters.send(address, attempt.records, ending.cause, attempt.grant)
        posted = _Posted(attempt, ending, address, delivery)
        if self._letters.deliver(posted.delivery, _PROMPT_SECONDS if self._prompt else 0.0):
            if posted.delivery.error is None:
                self._log_seldom(f"{_named(attempt)} is in {address.topic} now: {ending.text}", now)
                return self._fetcher.pass_over(attempt, ending.end, ending.label)
            if (why := self._hopeless(posted)) is not None:
                self._fetcher.give_up(attempt, why)
                return False
        self._prompt = False
        if self._fetcher.park(attempt, ending.end.value, self._waits(posted, "it is not acknowledged yet")):
            self._posted[attempt.grant.number] = posted
        return False

    def _post_later(self, attempt: Attempt[F], error: LetterRefused, now: int) -> None:
        """They were given up, and their letters, sent among outputs, were refused: they wait, and are sent anew."""
        grant, (address, cause) = attempt.grant, error.given_up
        ending = _Ending(address.end, None, cause, str(error), address)
        again_at = now + self._policies(grant.tp.topic).default.backoff_ns(grant.failures, random.random())
        posted = _Posted(attempt, ending, address, Delivery(0), grant.failures, again_at)
        why = self._waits(posted, str(error))
        if self._fetcher.park(attempt, ending.end.value, why):
            self._posted[grant.number] = posted
            self._log_seldom(f"{grant.tp}: {why}", now)

    def _settle(self, posted: _Posted[F], now: int) -> None:
        """The fate of letters that took longer."""
        grant, error = posted.attempt.grant, posted.delivery.error
        later = Attempt(grant, posted.attempt.records, posted.attempt.following, calls=0)
        if error is None:
            self._prompt = True
            del self._posted[grant.number]
            if self._fetcher.retake(grant, now):
                self._fetcher.pass_over(later, posted.ending.end, posted.ending.label)
        elif (why := self._hopeless(posted)) is not None:
            del self._posted[grant.number]
            if self._fetcher.retake(grant, now):
                self._fetcher.give_up(later, why)
        else:
            posted.refusals += 1
            posted.again_at = now + self._policies(grant.tp.topic).default.backoff_ns(posted.refusals, random.random())
            why = self._waits(posted, error.str())
            self._fetcher.waits(grant, why)
            self._log_seldom(f"{grant.tp}: {why}", now)

    def _send_again(self, posted: _Posted[F]) -> None:
        assert self._letters is not None
        error = posted.delivery.error
        if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
            self._letters.start_anew()
        posted.again_at = None
        attempt, cause = posted.attempt, posted.ending.cause
        posted.delivery = self._letters.send(posted.address, attempt.records, cause, attempt.grant)

    def _hopeless(self, posted: _Posted[F]) -> str | None:
        """Why sending again cannot help, where that is so: nothing is cut off a record to make it fit."""
        error = posted.delivery.error
        if error is None or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return None
        cause, address = posted.ending.cause, posted.address
        return (
            f"{_named(posted.attempt)} is too large for the {address.kind} {address.topic!r}: raise that "
            f"topic's max.message.bytes (the headers come on top of the record). {cause.type}: {cause.message}"
        )

    def _waits(self, posted: _Posted[F], why: str) -> str:
        address = posted.address
        return f"offset {posted.attempt.offset} waits for the {address.kind} {address.topic!r}: {why}"

    # -- each turn -----------------------------------------------------------------------------------------------------

    def look_after_letters(self, now: int) -> None:
        """Move on what was acknowledged, send again what was refused."""
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
                self._settle(posted, now)

    def due(self, now: int) -> Iterator[tuple[F, Sequence[Message]]]:
        """Every parked record (or batch) whose wait is over, but for those that were stopped meanwhile."""
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
