"""What a handler's settings put before its calls in a worker: a circuit breaker, a rate limit. A handler without either
has no gate, and nothing of this is on the way of its records.

A gate that is shut starts nothing of its handler: records stay queued, or wait by `Failures` where they were tried
already, and no try counts. A stop, a drain or a lost session finds them as it finds any that are not begun.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message

from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.encode import NotEncodableYet
from kunicorn.handler.load import error_message
from kunicorn.handler.outcome import is_named
from kunicorn.handler.retry import Expired, find
from kunicorn.ipc.clock import NANOSECONDS, now_ns, wall_ms
from kunicorn.observe import catalogue as c
from kunicorn.text import utc
from kunicorn.worker.limits.circuit_breaker import CircuitBreaker, Limits, State
from kunicorn.worker.limits.rate_limit import RateLimit, rate_limit_of
from kunicorn.worker.progress import InFlight, Lane, OffsetTracker, Slots
from kunicorn.worker.scheduler import UNLIMITED, Scheduler
from kunicorn.worker.stats import Counters

log = logging.getLogger("kunicorn.worker")

CIRCUIT_BREAKER = "circuit_breaker"
RATE_LIMIT = "rate_limit"
"""What `/status` and metrics call such waits."""
_NS_PER_MS = 1_000_000
_NOTHING_LEARNT = (Undecodable, NotDecodableYet, Expired)
"""They say nothing of what the handler needs: but for outputs that cannot be encoded yet, it was not called."""


class Drop(NamedTuple):
    """A record that a filter has dropped behind its start."""

    message: Message
    saved: bool
    """No call was made for it."""


Drops = deque[Drop]
"""Those that the gate has not looked at yet. Written by the threads that call the handler."""


class Held(NamedTuple):
    """Wait of records that were about to start, until so many nanoseconds of the clock."""

    until: int
    waits_for: str
    why: str


class Shut(NamedTuple):
    """Why a gate is shut."""

    waits_for: str
    why: str


@dataclass(frozen=True, slots=True)
class Circuit:
    """A circuit breaker, and the failures that count for it."""

    breaker: CircuitBreaker
    exceptions: tuple[type[BaseException], ...]

    def counts(self, error: BaseException) -> bool:
        """Whether a call that ended by that has failed."""
        return is_named(error, self.exceptions)


def _never() -> Circuit:
    """Of a handler that has only a rate limit: no failure counts, so it stays closed."""
    return Circuit(CircuitBreaker(Limits(NANOSECONDS, 1, 1.0, 1, 1)), ())


class Gate:
    """The gate of one handler in one worker. Caller: any thread, also under the table's lock."""

    def __init__(
        self, handler: str, circuit: Circuit | None, rate: RateLimit | None, counters: Counters, drops: Drops
    ) -> None:
        """`handler`: its entry point."""
        self._handler = handler
        self._circuit = circuit or _never()
        self._breaker = self._circuit.breaker
        self._rate = rate
        self._counters = counters
        self._drops = drops
        self._uncalled = 0
        """Calls that will be told of and were none: filters dropped their records."""
        self._probe_dropped = False
        self._lock = threading.Lock()
        self._probe: InFlight | None = None
        self._why = ""

    # -- before a call -----------------------------------------------------------------------------------------------

    def room(self, now: int) -> int:
        """Number of records that may start now; 0: the gate is shut."""
        with self._lock:
            self._settle(now)
            if not (room := self._room_of_circuit(now)) or self._rate is None:
                return room
            return min(room, self._rate.room(now))

    def _room_of_circuit(self, now: int) -> int:
        match self._breaker.look(now):
            case State.CLOSED:
                return UNLIMITED
            case State.OPEN:
                return 0
            case State.HALF_OPEN:
                return 1 if self._probe is None else 0

    def admitted(self, flight: InFlight, now: int) -> int:
        """Number of the flight's leading records that may start. Caller: before `took`."""
        with self._lock:
            return len(flight.messages) if self._rate is None else self._rate.admitted(flight, now)

    def hold(self, flight: InFlight, now: int) -> Held:
        """The wait of a flight of which no record may start."""
        with self._lock:
            assert self._rate is not None
            wait_ns = self._rate.hold_ns(flight, now)
            at = utc(wall_ms() + wait_ns // _NS_PER_MS, "milliseconds")
            why = f"offset {flight.offset} waits until {at}: its key is limited to {self._rate.per_second:g} a second"
            return Held(now + wait_ns, RATE_LIMIT, why)

    def forgo(self, flights: Iterable[InFlight], now: int) -> None:
        """Give back what was taken in advance for these, which have not started: they do so some other time, if at
        all."""
        with self._lock:
            if self._rate is not None:
                for flight in flights:
                    self._rate.forgo(flight, now)

    def took(self, flight: InFlight, now: int) -> None:
        """Note that these records start."""
        with self._lock:
            if self._rate is not None:
                self._rate.took(len(flight.messages), now)
            if self._breaker.state is State.HALF_OPEN and self._probe is None:
                self._probe = flight

    def took_beside(self, flight: InFlight, now: int) -> None:
        """Note that these records are in a call that has begun with others."""
        with self._lock:
            if self._rate is not None:
                self._rate.took_beside(len(flight.messages), now)

    def unused(self, messages: Sequence[Message], now: int) -> None:
        """Note records that started and did not come to the handler."""
        if self._rate is not None:
            with self._lock:
                self._rate.unused(messages, now)

    def patience(self, now: int, longest: float) -> float:
        """Seconds until the gate may open, at most `longest`."""
        with self._lock:
            wait_ns = self._rate.wait_ns(now) if self._rate is not None else 0
            if self._breaker.look(now) is State.OPEN:
                wait_ns = max(wait_ns, self._breaker.until - now)
            return min(longest, wait_ns / NANOSECONDS) if wait_ns else longest

    def change_rate(self, per_second: float, burst: float, now: int) -> None:
        """Go on at another rate: the supervisor has dealt it out anew. See `Gates`."""
        with self._lock:
            if self._rate is not None:
                self._rate.change(per_second, burst, now)

    def rate_use(self) -> tuple[float, int] | None:
        """What was used of the rate since the start, and how often something waited; None: there is no limit."""
        with self._lock:
            return self._rate.use() if self._rate is not None else None

    # -- behind a call -----------------------------------------------------------------------------------------------

    def succeeded(self, flight: InFlight, calls: int, now: int) -> None:
        """Note calls that did not fail."""
        with self._lock:
            self._ended(flight, calls, None, now)

    def failed(self, flight: InFlight, error: BaseException, now: int, *, beside: bool = False) -> int | None:
        """Note a failed call. Returns until when (nanoseconds) its records are to wait, as the call counts as no try;
        None: what becomes of them is for others to say. `beside`: others' failure was told of in it."""
        if isinstance(error, _NOTHING_LEARNT):
            self.withdrawn(flight)
            if not isinstance(error, NotEncodableYet):
                self.unused(flight.messages, now)
            return None
        counts = self._circuit.counts(error)
        with self._lock:
            if not beside:
                self._ended(flight, 1, error if counts else None, now)
            if not counts or self._breaker.state is State.CLOSED:
                return None
            return max(now, self._breaker.until)

    def counts(self, error: BaseException) -> bool:
        """See `Circuit`."""
        return self._circuit.counts(error)

    def withdrawn(self, flight: InFlight) -> None:
        """Note that these records have left the handler's hands, and nothing was learnt by that."""
        with self._lock:
            if self._probe is flight:
                self._probe, self._probe_dropped = None, False

    def uncalled(self, flight: InFlight, now: int) -> None:
        """Note that these records, which started, end without a call."""
        self.withdrawn(flight)
        if self._rate is not None:
            with self._lock:
                for place, message in enumerate(flight.messages):
                    self._rate.dropped(message, now, saved=not place)

    def saved(self, now: int) -> None:
        """Note that a call with records which have started was not made. What becomes of them is told besides."""
        if self._rate is not None:
            with self._lock:
                self._rate.saved(now)

    def goes_on(self, flight: InFlight, rest: InFlight) -> None:
        """Note that leading records of a call are done, and that the others, `rest`, will be told of in its place."""
        with self._lock:
            if self._probe is flight:
                self._probe = rest

    def _ended(self, flight: InFlight, calls: int, error: BaseException | None, now: int) -> None:
        self._settle(now)
        breaker, before = self._breaker, self._breaker.state
        failures = 0 if error is None else 1
        if self._probe is flight:
            dropped = self._probe_dropped
            self._probe, self._probe_dropped = None, False
            if not dropped:
                breaker.probed(now, failed=bool(failures))
        else:
            uncalled = min(self._uncalled, calls - failures)
            self._uncalled -= uncalled
            breaker.called(calls - uncalled, failures, now)
        if breaker.state is not before:
            self._tell(before, error, now)

    def _settle(self, now: int) -> None:
        """Give back what dropped records took, so that only what comes to the handler counts."""
        while self._drops:
            message, saved = self._drops.popleft()
            if self._rate is not None:
                self._rate.dropped(message, now, saved=saved)
            if saved and self._probe is not None and _has(self._probe, message):
                self._probe_dropped = True
            elif saved:
                self._uncalled += 1

    # -- for people ----------------------------------------------------------------------------------------------------

    @property
    def broken(self) -> bool:
        """Whether the circuit is not closed."""
        return self._breaker.state is not State.CLOSED

    def shut(self, now: int) -> Shut | None:
        """Why nothing starts; None: the gate is open."""
        with self._lock:
            if self._breaker.state is State.CLOSED:
                return self._shut_by_rate(now)
            if self._breaker.state is State.OPEN:
                at = utc(wall_ms() + max(0, self._breaker.until - now) // _NS_PER_MS, "milliseconds")
                return Shut(CIRCUIT_BREAKER, f"the circuit breaker is open until {at}: {self._why}")
            return Shut(CIRCUIT_BREAKER, f"the circuit breaker probes with single records: {self._why}")

    def _shut_by_rate(self, now: int) -> Shut | None:
        if self._rate is None or not (wait_ns := self._rate.wait_ns(now)):
            return None
        return Shut(
            RATE_LIMIT, f"limited to {self._rate.per_second:g} a second here: the next in {wait_ns / NANOSECONDS:.3f} s"
        )

    def handling_time(self, now: int) -> int:
        """See `CircuitBreaker`."""
        with self._lock:
            return self._breaker.handling_time(now)

    def _tell(self, before: State, error: BaseException | None, now: int) -> None:
        if error is None:
            log.info(f"the circuit breaker of {self._handler} is closed again: a probe succeeded")
            return
        said = f"{type(error).__name__}: {error_message(error)}".removesuffix(": ")
        seconds = (self._breaker.until - now) / NANOSECONDS
        if before is State.CLOSED:
            calls, failures = self._breaker.counted(now)
            self._why = f"{failures} of {calls} calls failed, the last with {said}"
            self._counters.count(c.CIRCUIT_OPENED, 1, self._handler)
            log.warning(f"the circuit breaker of {self._handler} is open for {seconds:.3f} s: {self._why}")
        else:
            self._why = f"a probe failed with {said}"
            log.warning(f"the circuit breaker of {self._handler} stays open for {seconds:.3f} s more: {self._why}")


class Gates:
    """Gates of the handlers that this worker has partitions of, and the records that they have wait. Caller: the table
    (`worker.partitions`), under its lock, but for `held` and `patience`: the loop."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._of: dict[Slots, Gate] = {}
        self._held: deque[tuple[InFlight, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, slots: Slots) -> None:
        """Note a handler's gate, if it has one."""
        if slots.gate is not None:
            self._of[slots] = slots.gate

    def admitted(self, gate: Gate, flight: InFlight, now: int) -> bool:
        """Whether records that were about to start may: as many as the gate says, or else all of them wait."""
        if not (count := gate.admitted(flight, now)):
            held = gate.hold(flight, now)
            self._scheduler.wait(flight, held.waits_for, held.why)
            self._held.append((flight, held.until))
            return False
        if count < len(flight.messages):
            self._scheduler.split(flight, count)
        return True

    def change_rate(
        self, gate: Gate, per_second: float, burst: float, trackers: Iterable[OffsetTracker], now: int
    ) -> None:
        """Go on at another rate. What waits is told its time anew, in the same order: by that of a rate which many
        members share now, several times as much would pass."""
        waiting = [each for tracker in trackers if tracker.slots.gate is gate for each in tracker.waiting if each.paid]
        waiting.sort(key=lambda flight: (flight.since_ns, flight.number))
        gate.forgo(waiting, now)
        gate.change_rate(per_second, burst, now)
        for flight in waiting:
            held = gate.hold(flight, now)
            flight.why = held.why
            self._held.append((flight, held.until))

    def recalled(self, lane: Lane, now: int) -> None:
        """Note that what is handled again comes before what the lane had next: a run's time does not count any more."""
        slots = lane.tracker.slots
        if slots.runs and slots.gate is not None:
            slots.gate.forgo(lane.queue, now)

    def held(self) -> Iterable[tuple[InFlight, int]]:
        """Records that wait before their first try since the last time, and until when (nanoseconds)."""
        while self._held:
            flight, until = self._held.popleft()
            if flight.held and flight.waits_for == RATE_LIMIT:
                yield flight, until

    def patience(self, now: int, longest: float) -> float:
        """Seconds until one may open of those whose handlers the loop calls, at most `longest`: threads and tasks look
        after their own."""
        own = (gate.patience(now, longest) for slots, gate in self._of.items() if slots.runs)
        return min(own, default=longest)

    def shut(self, now: int) -> Mapping[Slots, Shut]:
        """Handlers whose gate is shut, and why."""
        return {slots: shut for slots, gate in self._of.items() if (shut := gate.shut(now)) is not None}


def _has(flight: InFlight, message: Message) -> bool:
    offset, tp = message.offset() or 0, flight.tp
    return (message.topic(), message.partition()) == (tp.topic, tp.partition) and flight.offset <= offset < flight.end


def has_gate(config: HandlerConfig) -> bool:
    """Whether its settings ask for a gate."""
    return config.circuit_breaker is not None or config.rate_limit is not None


def gate_of(config: HandlerConfig, counters: Counters, drops: Drops | None = None) -> Gate | None:
    """The handler's gate; None where its settings ask for none. `drops`: what its filters tell of. Raises
    `ConfigError` for an exception class that does not exist. Caller: after the handler's import.
    """
    circuit = _circuit_of(config)
    rate = rate_limit_of(config, now_ns())
    if not has_gate(config):
        return None
    return Gate(config.entrypoint, circuit, rate, counters, deque() if drops is None else drops)


def _circuit_of(config: HandlerConfig) -> Circuit | None:
    if (told := config.circuit_breaker) is None:
        return None
    limits = Limits(
        told.window_ms * _NS_PER_MS, told.min_calls, told.failure_share, told.open_ms * _NS_PER_MS, told.probes
    )
    return Circuit(CircuitBreaker(limits), tuple(find(name, "handler.circuit_breaker") for name in told.exceptions))
