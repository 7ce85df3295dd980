"""Failed records of a worker: tried again, passed over, sent to the dead-letter topic or to a retry topic, or left for
a person, as the retry rules say.

Nothing here holds up the other partitions, or keys: a lane whose record waits is left alone until then. 1. A record is
passed over only after that topic has acknowledged it, or a rule says to skip it. 2. A letter that is refused, or not
acknowledged in time, has its record wait, and is sent anew. 3. A partition that is stopped while its record waits is
reported at once; the record is not done, and the partition's next owner begins with it. A letter on its way by then may
arrive as well: letters come at least once.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from confluent_kafka import Message

from kunicorn.handler.dead_letters import Cause, Destination, cause_of, dead_letters, died, retries, topic_of_letters
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.letter_styles import OWN
from kunicorn.handler.load import error_message
from kunicorn.handler.outcome import Wait, as_failure
from kunicorn.handler.outputs import Outgoing
from kunicorn.handler.record import Record
from kunicorn.handler.retry import End, Policies, Reason, RetryPolicy, TryAgain, describe, reason_of
from kunicorn.handler.rows import apart
from kunicorn.ipc.clock import NANOSECONDS, wall_ms
from kunicorn.text import utc
from kunicorn.worker.limits.gate import CIRCUIT_BREAKER
from kunicorn.worker.produce.outbox import Entry, GivenUp
from kunicorn.worker.produce.sender import LetterRefused, LetterTooLarge
from kunicorn.worker.progress import Attempt, InFlight

log = logging.getLogger("kunicorn.worker")

_LOG_EVERY_NS = NANOSECONDS
_NS_PER_MS = 1_000_000
_LONGEST_WHY = 300
"""Characters of what a handler says it waits for. Many records may wait, each with a text of its own."""
_NO_TOPIC = "no dead-letter topic is set; set dead_letters.topic"


class Table(Protocol):
    """The table of partitions, as failures see it; `partitions.Partitions` explains the methods."""

    def park(self, attempt: Attempt, waits_for: str, why: str) -> bool: ...
    def pass_over(self, attempt: Attempt, end: End, label: str | None) -> bool: ...
    def give_up(self, attempt: Attempt, error: str) -> None: ...
    def begin_again(self, flight: InFlight, now: int) -> bool: ...
    def try_again(self, flight: InFlight) -> None: ...
    def held(self) -> Iterable[tuple[InFlight, int]]: ...


class Observer:
    """Observer of records that the handler did not just handle; this one does nothing. Caller: the loop, before
    anything is done about them.
    """

    def raised(self, records: Sequence[Message], error: BaseException) -> None:
        """Note that the handler raised over these records, or that their outputs were refused."""

    def ended(self, records: Sequence[Message], end: End) -> None:
        """Note that these records are not tried again."""

    def filtered(self, record: Message) -> None:
        """Note that a filter has dropped the record. Caller: the thread that calls the handler."""


@dataclass(frozen=True, slots=True)
class LetterBox:
    """Where letters go: the dead-letter topic, and as whose they are marked."""

    topic: str | None
    """None: no setting asks for dead letters; retry topics have names of their own."""
    group: str
    headers: str = OWN
    """Whose headers letters have beside ours."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Other topics, by the reason for which records are given up."""

    def dead_letters(self, reason: Reason, by_rule: str | None, own: str | None) -> Destination | None:
        """Where records go that are given up for that reason. `by_rule`: the topic of the exception's rule; `own`: of
        their handler. None: there is none."""
        topic = topic_of_letters(reason, by_rule, own, self.topics) or self.topic
        return dead_letters(topic, self.headers) if topic is not None else None

    def put(self, flight: InFlight, given_up: GivenUp) -> None:
        """Leave a letter for each of the records, in the place of what their handler returned: they are done when it
        has arrived."""
        now_ms, (destination, cause, *_) = wall_ms(), given_up
        # A row would keep the whole answer that it came with, for as long as the topic does not take its letter.
        flight.messages = apart(flight.messages)
        letters = [destination.letter(Record.of(message), self.group, cause, now_ms) for message in flight.messages]
        outgoing = [
            Outgoing(destination.topic, letter.value, letter.key, list(letter.headers), -1, letter.timestamp or 0)
            for letter in letters
        ]
        flight.given_up = given_up
        flight.entries = [Entry(flight, flight.offset, flight.end, outgoing, given_up)]


@dataclass(frozen=True, slots=True)
class _Ending:
    """End of the records of an attempt that is not repeated, and its reason."""

    end: End
    label: str | None
    """Of the counter of such ends: a `Reason`, or a retry topic's delay."""
    cause: Cause
    text: str
    """The cause for people, with the traceback's last lines."""
    destination: Destination | None = None
    """Where they go; None: nowhere, or no such topic is set."""


class Failures:
    """Caller: the loop, for everything. `now` is nanoseconds of `clock.now_ns`."""

    def __init__(
        self, table: Table, policies: Callable[[str], Policies], letters: LetterBox | None, observer: Observer
    ) -> None:
        """`policies` gives the rules for a topic's records. `letters`: None where the settings ask for none."""
        self._table = table
        self._policies = policies
        self._letters = letters
        self._observer = observer
        self._parked: list[tuple[int, int, InFlight]] = []
        """Heap of (when to try again, the number of the wait, what waits)."""
        self._refused: dict[int, GivenUp] = {}
        """By the number of the wait: letters that are sent anew when it is over."""
        self._numbers = count(1)
        self._logged_at = 0

    # -- a failure ---------------------------------------------------------------------------------------------------

    def meet(self, attempt: Attempt, error: BaseException, now: int) -> None:
        """React to a failed attempt."""
        flight, error = attempt.flight, as_failure(error)
        gate, time = flight.tracker.slots.gate, now
        if gate is not None:
            if not (attempt.calls or attempt.beside):
                gate.withdrawn(flight)
            elif (until := gate.failed(flight, error, now, beside=attempt.beside)) is not None:
                self._hold_for_circuit(attempt, error, until, now)
                return
            # Also of a failure without a call: between two clocks lies every outage since the worker began.
            time = gate.handling_time(now)
        if self._holds(attempt, error, now):
            return
        flight.undecoded = 0
        flight.failures += 1
        if flight.failures == 1:
            flight.failing_since = time
        if isinstance(error, LetterRefused):
            self._send_later(attempt, error, now)
            return
        if isinstance(error, LetterTooLarge):
            self._give_up(attempt, str(error))
            return
        self._observer.raised(attempt.records, error)
        policies = self._policies(flight.tp.topic)
        verdict = policies.verdict(error, flight.failures, time - flight.failing_since, random.random())
        if isinstance(verdict, TryAgain):
            self._park(attempt, verdict, verdict.counted(flight.failures), error, now)
            return
        policy = policies.of(error)
        cause, text = cause_of(error, flight.failures), describe(error)
        if verdict is End.RETRY_TOPIC:
            later = policy.retry_topics[0]
            self._end(attempt, _Ending(verdict, later.delay, cause, text, retries(later)), now)
            return
        reason = reason_of(error, flight.failures, policy.max_attempts)
        self._end(attempt, _Ending(verdict, reason, cause, text, self._dead_letters(flight, reason, policy)), now)

    def meet_poison(self, flight: InFlight, now: int) -> None:
        """End a record which killed earlier workers as its rule says, without the handler."""
        text = flight.poison
        if (gate := flight.tracker.slots.gate) is not None:
            gate.uncalled(flight, now)
        cause = died(text, flight.poison_deaths)
        on_failure = self._policies(flight.tp.topic).default.on_failure
        ending = _Ending(on_failure, Reason.POISON, cause, text, self._dead_letters(flight, Reason.POISON))
        self._end(Attempt(flight, calls=0), ending, now)

    def _holds(self, attempt: Attempt, error: BaseException, now: int) -> bool:
        """Whether no try has failed by that: then the records wait, and the time counts for none."""
        match error:
            case Wait():
                self._hold(attempt, error, now)
            case NotDecodableYet():
                self._decode_later(attempt, error, now)
            case _:
                return False
        return True

    def _hold(self, attempt: Attempt, said: Wait, now: int) -> None:
        """Have the records wait as the handler says."""
        flight, wait_ns = attempt.flight, attempt.left_of(round(said.seconds * NANOSECONDS))
        self._observer.raised(attempt.records, said)
        why = f"offset {attempt.offset} waits until {utc(wall_ms() + wait_ns // _NS_PER_MS, 'milliseconds')}"
        if reason := error_message(said)[:_LONGEST_WHY]:
            why += f": {reason}"
        if self._table.park(attempt, "wait", why):
            flight.failing_since += attempt.nanoseconds + wait_ns
            self._push(flight, now + wait_ns)
            self._log_seldom(f"{flight.tp}: {why}, as the handler says", now)

    def _hold_for_circuit(self, attempt: Attempt, error: BaseException, until: int, now: int) -> None:
        """Have records wait that failed by what the circuit breaker is open for: that is no try of theirs."""
        self._observer.raised(attempt.records, error)
        why = f"offset {attempt.offset} waits for the circuit breaker: {type(error).__name__}"
        if self._table.park(attempt, CIRCUIT_BREAKER, why):
            self._push(attempt.flight, until)
            self._log_seldom(f"{attempt.flight.tp}: {why}", now)

    def _decode_later(self, attempt: Attempt, error: NotDecodableYet, now: int) -> None:
        """Have the records wait, as what decodes them, or encodes their outputs, is away."""
        flight = attempt.flight
        flight.undecoded += 1
        self._observer.raised(attempt.records, error)
        verdict = self._policies(flight.tp.topic).later(flight.undecoded, random.random())
        if self._park(attempt, verdict, verdict.counted(flight.undecoded), error, now):
            flight.failing_since += attempt.nanoseconds + attempt.left_of(verdict.wait_ns)

    def _park(self, attempt: Attempt, verdict: TryAgain, tries: str, error: BaseException, now: int) -> bool:
        """Have the records wait for another try; False if that was their grant's end. `tries`: which one has failed."""
        flight = attempt.flight
        why = f"offset {attempt.offset} is tried again ({tries}): {type(error).__name__}"
        if not self._table.park(attempt, "retry", why):
            return False
        wait_ns = attempt.left_of(verdict.wait_ns)
        self._push(flight, now + wait_ns)
        wait = wait_ns / NANOSECONDS
        text = f"the handler failed on {flight.tp}@{attempt.offset} ({tries}), again in {wait:.3f} s"
        self._log_seldom(f"{text}: {describe(error)}", now)
        return True

    def _end(self, attempt: Attempt, ending: _Ending, now: int) -> None:
        if ending.end is End.HALT:
            self._give_up(attempt, ending.text)
            return
        if ending.end in (End.DEAD_LETTER, End.RETRY_TOPIC):
            if self._letters is None or (destination := ending.destination) is None:
                self._give_up(attempt, f"{_NO_TOPIC}. {ending.text}")
                return
            self._letters.put(attempt.flight, GivenUp(destination, ending.cause, ending.label))
            self._log_seldom(f"{_named(attempt)} goes to {destination.topic}: {ending.text}", now)
        if ending.end is End.SKIP:
            log.warning(f"{_named(attempt)} is skipped: {ending.text}")
        self._observer.ended(attempt.records, ending.end)
        self._table.pass_over(attempt, ending.end, ending.label)

    def _give_up(self, attempt: Attempt, error: str) -> None:
        self._observer.ended(attempt.records, End.HALT)
        self._table.give_up(attempt, error)

    def _dead_letters(self, flight: InFlight, reason: Reason, rule: RetryPolicy | None = None) -> Destination | None:
        """Destination of records that are given up. `rule`: that of the exception, where there was one."""
        if self._letters is None:
            return None
        by_rule = rule.dead_letter_topic if rule is not None else None
        return self._letters.dead_letters(reason, by_rule, self._policies(flight.tp.topic).dead_letter_topic)

    def _send_later(self, attempt: Attempt, error: LetterRefused, now: int) -> None:
        """Have records wait whose letters were refused; they are sent anew."""
        flight, destination = attempt.flight, error.given_up.destination
        why = f"offset {attempt.offset} waits for the {destination.kind} {destination.topic!r}: {error}"
        if self._table.park(attempt, destination.end.value, why):
            wait_ns = self._policies(flight.tp.topic).default.backoff_ns(flight.failures, random.random())
            self._push(flight, now + wait_ns)
            self._refused[flight.wait] = error.given_up
            self._log_seldom(f"{flight.tp}: {why}", now)

    def _push(self, flight: InFlight, due: int) -> None:
        flight.wait = next(self._numbers)
        heapq.heappush(self._parked, (due, flight.wait, flight))

    # -- each turn -----------------------------------------------------------------------------------------------------

    def try_again(self, now: int) -> None:
        """Have the handler called again with records whose wait is over, and refused letters sent again."""
        for flight, until in self._table.held():
            if flight.held:
                self._push(flight, until)
        while self._parked and self._parked[0][0] <= now:
            _, wait, flight = heapq.heappop(self._parked)
            given_up = self._refused.pop(wait, None)
            if not _waits(flight, wait):
                continue
            if given_up is None:
                self._table.try_again(flight)
            elif self._letters is not None and self._table.begin_again(flight, now):
                self._letters.put(flight, given_up)
                self._table.pass_over(Attempt(flight, calls=0), given_up.destination.end, given_up.label)

    def forget_ended(self) -> None:
        """Drop what waits no more, as its grant has ended: it may have had to wait for a day, and its next owner, which
        this worker may be, has it wait anew."""
        self._parked = [each for each in self._parked if _waits(each[2], each[1])]
        heapq.heapify(self._parked)
        waits = {wait for _, wait, _ in self._parked}
        self._refused = {wait: given_up for wait, given_up in self._refused.items() if wait in waits}

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


def _waits(flight: InFlight, wait: int) -> bool:
    """Whether the records still wait for that: they may have been stopped, or taken back, and wait again then, for
    another time, or for something else."""
    return flight.wait == wait and bool(flight.held)


def _named(attempt: Attempt) -> str:
    records = len(attempt.records)
    return f"{attempt.flight.tp}@{attempt.offset}" + (f" (a batch of {records})" if records > 1 else "")
