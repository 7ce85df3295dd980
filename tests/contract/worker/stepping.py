"""A worker's threads, one at a time, and a clock that stands still while they run: what follows what is decided by the
story, and by nothing else.

A thread that waits, for a lock, a condition, a time or a message, hands on to another one; so it does now and then
where it might have been interrupted. When all of them wait, the clock goes on to the first time that one waits for.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

NANOSECONDS = 1_000_000_000
START = 1_000_000 * NANOSECONDS
FOR_EVER = 1 << 62


def nanoseconds(seconds: float) -> int:
    """Rounded up: who waits for a little while must not find that none has passed."""
    return int(seconds * NANOSECONDS) + 1 if seconds > 0 else 0


class Over(BaseException):
    """The worker is dead: nothing more of it may happen."""


class Stuck(AssertionError):
    """Every thread waits, and none for a time."""


class World(Protocol):
    """Everything but the worker. Called in whichever thread has its turn, never of the worker's own accord."""

    def turn(self) -> None:
        """Something may happen now."""

    def idle(self) -> bool:
        """Every thread waits; whether something was done about that, before time goes on."""


class Strand:
    """One of the worker's threads."""

    def __init__(self, name: str, baton: _thread.LockType, ident: int) -> None:
        self.name = name
        self.baton = baton
        self.ident = ident
        self.ready = True
        self.woken = False
        self.deadline: int | None = None
        self.raises: list[BaseException | type[BaseException]] = []
        """What others have it raise, as soon as it goes on."""


class _Pooled:
    """A thread of this process, which is one strand after the other."""

    def __init__(self) -> None:
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.strand: Strand | None = None
        self.run: Callable[[], None] = lambda: None
        self.ident = _thread.start_new_thread(self._live, ())

    def _live(self) -> None:
        while True:
            self.baton.acquire()
            strand = self.strand
            assert strand is not None
            try:
                if not STEPS.dead:
                    self.run()
            except Over:
                pass
            except BaseException as error:
                STEPS.note_failure(error)
            _IDLE.append(self)
            STEPS.end(strand)


_IDLE: list[_Pooled] = []


class Steps:
    """Whose turn it is, and what time. One of it in a process, for one worker after the other."""

    def __init__(self) -> None:
        self.now = START
        self.dead = True
        self.failure: BaseException | None = None
        self.on_signal: Callable[[], None] = lambda: None
        """What the process does at SIGUSR1."""
        self.loops: list[SteppedLoop] = []
        """Those of the worker."""
        self._signalled = False
        self._world: World
        self._below: Callable[[int], int]
        self._stride: Callable[[], int]
        self._left = 0
        self._strands: list[Strand] = []
        self._main: Strand
        self.current: Strand

    def live(
        self, main: Callable[[], None], world: World, below: Callable[[int], int], stride: Callable[[], int]
    ) -> bool:
        """A worker's whole life, of which `main` is the main thread's; whether it returned. `below` draws numbers,
        `stride` how often a thread is interrupted. Raises what any of the threads has failed by."""
        self._world, self._below, self._stride, self._left = world, below, stride, stride()
        baton = _thread.allocate_lock()
        baton.acquire()
        self._main = self.current = Strand("main", baton, _thread.get_ident())
        self._strands = [self._main]
        self.dead, self.failure, self._signalled = False, None, False
        returned = False
        try:
            main()
            returned = not self.dead
        except Over:
            pass
        except BaseException as error:
            self.note_failure(error)
        self._reap()
        for loop in self.loops:
            loop.bury()
        self.loops.clear()
        if self.failure is not None:
            raise self.failure
        return returned

    def _reap(self) -> None:
        self.dead = True
        while len(self._strands) > 1:
            self.current = last = self._strands[-1]
            last.baton.release()
            self._main.baton.acquire()
            self.current = self._main

    def spawn(self, name: str, run: Callable[[], None]) -> None:
        """One thread more. Caller: a strand."""
        pooled = _IDLE.pop() if _IDLE else _Pooled()
        pooled.run = run
        pooled.strand = Strand(name, pooled.baton, pooled.ident)
        self._strands.append(pooled.strand)

    def end(self, strand: Strand) -> None:
        """It has run to its end. Caller: its thread, last of all."""
        self._strands.remove(strand)
        following = self._main
        if not self.dead:
            try:
                following = self._choose()
            except Over:
                following = self._main
            except BaseException as error:
                self.note_failure(error)
        self.current = following
        following.baton.release()

    def note_failure(self, error: BaseException) -> None:
        """The worker, or what it was asked to keep, is broken by that; it ends."""
        if not self.dead and not isinstance(error, Over):
            self.failure = error
        self.dead = True

    def fail(self, error: BaseException) -> NoReturn:
        """Something does not hold: the story ends with that. Raises `Over`."""
        self.note_failure(error)
        raise Over

    def kill(self) -> NoReturn:
        """SIGKILL. Raises `Over`."""
        self.dead = True
        raise Over

    def signal(self) -> None:
        """SIGUSR1 to the process."""
        self._signalled = True

    @property
    def is_here(self) -> bool:
        """Whether the thread that asks is one of the worker's."""
        return not self.dead and _thread.get_ident() == self.current.ident

    def raise_in(self, ident: int, error: BaseException | type[BaseException]) -> None:
        """Have the thread of that number raise it when it goes on."""
        for strand in self._strands:
            if strand.ident == ident:
                strand.raises = [error]

    # -- what a strand does ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises `Over` where there is no worker any more."""
        if self.dead:
            raise Over

    def tick(self) -> None:
        """It might be interrupted here."""
        if self.dead:
            raise Over
        self._left -= 1
        if self._left <= 0:
            self._left = self._stride()
            self.point()

    def point(self) -> None:
        """Others may have their turn."""
        if self.dead:
            raise Over
        me = self.current
        self._world.turn()
        following = self._choose()
        if following is not me:
            self._hand(me, following)
        self._resumed(me)

    def wait(self, deadline: int | None) -> bool:
        """Until it is woken (true), or that time (false); None: however long."""
        if self.dead:
            raise Over
        me = self.current
        me.ready, me.woken, me.deadline = False, False, deadline
        self._world.turn()
        following = self._choose()
        if following is not me:
            self._hand(me, following)
        self._resumed(me)
        return me.woken

    def sleep(self, nanoseconds: int) -> None:
        """That is how long."""
        deadline = self.now + max(0, nanoseconds)
        while self.wait(deadline) and self.now < deadline:
            pass

    def wake(self, strand: Strand) -> None:
        """It need not wait any longer."""
        if not strand.ready:
            strand.ready, strand.woken, strand.deadline = True, True, None

    def _choose(self) -> Strand:
        while True:
            ready = [strand for strand in self._strands if strand.ready]
            if ready:
                return ready[0] if len(ready) == 1 else ready[self._below(len(ready))]
            if self._signalled:
                self.wake(self._main)
            elif not self._world.idle():
                self._pass_time()

    def _pass_time(self) -> None:
        times = [strand.deadline for strand in self._strands if strand.deadline is not None]
        if not times:
            self.fail(Stuck(f"every thread waits: {', '.join(strand.name for strand in self._strands)}"))
        self.now = max(self.now, min(times))
        for strand in self._strands:
            if strand.deadline is not None and strand.deadline <= self.now:
                strand.ready, strand.deadline = True, None

    def _hand(self, me: Strand, following: Strand) -> None:
        self.current = following
        following.baton.release()
        me.baton.acquire()

    def _resumed(self, me: Strand) -> None:
        if self.dead:
            raise Over
        if me.raises:
            raise me.raises.pop(0)
        if self._signalled and me is self._main:
            self._signalled = False
            self.on_signal()


STEPS = Steps()


class SteppedLock:
    """In the place of `threading.Lock`."""

    _again = False

    def __init__(self) -> None:
        self._owner: Strand | None = None
        self._count = 0
        self._waiting: list[Strand] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        steps = STEPS
        if steps.dead:
            raise Over
        me = steps.current
        if self._owner is me and self._again:
            self._count += 1
            return True
        deadline = None if timeout < 0 else steps.now + nanoseconds(timeout)
        while self._owner is not None:
            if not blocking:
                return False
            self._waiting.append(me)
            try:
                woken = steps.wait(deadline)
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
            if not woken and self._owner is not None:
                return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count:
            return
        self._owner = None
        if self._waiting:
            STEPS.wake(self._waiting.pop(0))
        if not STEPS.dead:
            STEPS.tick()

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()


class SteppedRLock(SteppedLock):
    """In the place of `threading.RLock`."""

    _again = True


class SteppedCondition:
    """In the place of `threading.Condition`."""

    def __init__(self, lock: SteppedLock | None = None) -> None:
        self._lock = lock or SteppedRLock()
        self._waiting: list[Strand] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        steps = STEPS
        me = steps.current
        self._waiting.append(me)
        self._lock.release()
        woken = False
        try:
            if me in self._waiting:
                woken = steps.wait(None if timeout is None else steps.now + nanoseconds(timeout))
            else:
                woken = True  # Told while it let go of the lock.
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            if not steps.dead:
                self._lock.acquire()
            else:
                # `with` lets go of it once more.
                self._lock._count += 1
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else STEPS.now + nanoseconds(timeout)
        while not (result := predicate()):
            left = None if until is None else (until - STEPS.now) / NANOSECONDS
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for strand in self._waiting[:n]:
            self._waiting.remove(strand)
            STEPS.wake(strand)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SteppedEvent:
    """In the place of `threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Strand] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for strand in self._waiting:
            STEPS.wake(strand)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        steps = STEPS
        until = None if timeout is None else steps.now + nanoseconds(timeout)
        while not self._set and (until is None or steps.now < until):
            me = steps.current
            self._waiting.append(me)
            try:
                steps.wait(until)
            finally:
                self._waiting.remove(me)
        return self._set


class _Selector:
    def __init__(self) -> None:
        self.woken = False
        self._waiting: Strand | None = None

    def select(self, timeout: float | None) -> list[object]:
        steps = STEPS
        if self.woken or (timeout is not None and timeout <= 0):
            self.woken = False
            steps.tick()
            return []
        self._waiting = steps.current
        try:
            steps.wait(None if timeout is None else steps.now + nanoseconds(timeout))
        finally:
            self._waiting = None
        self.woken = False
        return []

    def wake(self) -> None:
        self.woken = True
        if self._waiting is not None:
            STEPS.wake(self._waiting)


class SteppedLoop(asyncio.BaseEventLoop):
    """In the place of uvloop's: without sockets, and by the clock that the story turns."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector()
        STEPS.loops.append(self)

    def time(self) -> float:
        return STEPS.now / NANOSECONDS

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._selector.wake()

    def bury(self) -> None:
        """Close what its tasks have not done. Collected later, that would end in the life of another worker, or raise
        `Over` where nobody can catch it. Caller: `Steps`, once the worker is dead."""
        for task in asyncio.all_tasks(self):
            coroutine = task.get_coro()
            assert coroutine is not None
            closed = False
            while not closed:
                # It may meet `Over` on its way out, or wait once more, which is a RuntimeError.
                with contextlib.suppress(Over, RuntimeError):
                    coroutine.close()
                    closed = True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a dead worker leaves pending is of no interest."""

    def __del__(self) -> None:
        """It owns nothing."""
