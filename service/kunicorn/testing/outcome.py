"""Result of a test's run, and the notes it is made of: in shared memory, so that they outlive a killed worker, which
runs in a child process.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from kunicorn.errors import ConfigError, HandlerLoadError, ServiceError
from kunicorn.handler.outcome import Wait
from kunicorn.positions import TopicPartition
from kunicorn.testing.memory import GivenRecord, SentRecord

_WORD = 4


class Fate(IntEnum):
    """How a record ended other than by the handler's return."""

    NONE = 0
    SKIPPED = 1
    DEAD_LETTER = 2
    GIVEN_UP = 3
    RETRY_TOPIC = 4
    FILTERED = 5
    BEGUN = 6
    """None of these so far: a call with it has begun, that of a middleware at least."""


class Notes:
    """Attempts and fate of `count` records, by their index; errors are this process's own."""

    def __init__(self, count: int) -> None:
        self._map = mmap.mmap(-1, max(1, 2 * count) * _WORD)
        self._cells = memoryview(self._map).cast("i")
        self._count = count
        self.errors: dict[int, list[BaseException]] = {}

    def begun(self, indices: Iterable[int]) -> None:
        """Note that a call with these records begins, at the outermost of the handler's middlewares."""
        self.ended(indices, Fate.BEGUN)

    def called(self, indices: Iterable[int]) -> None:
        """Note that the handler is called with these records."""
        for index in indices:
            self._cells[index] += 1

    def raised(self, indices: Iterable[int], error: BaseException) -> None:
        """Note what the handler raised over these records."""
        for index in indices:
            self.errors.setdefault(index, []).append(error)

    def ended(self, indices: Iterable[int], fate: Fate) -> None:
        """Note how these records ended."""
        for index in indices:
            self._cells[self._count + index] = fate

    def attempts(self, index: int) -> int:
        """Number of the handler's calls with this record."""
        return self._cells[index]

    def fate(self, index: int) -> Fate:
        """How this record ended, if not by the handler's return."""
        return Fate(self._cells[self._count + index])

    def close(self) -> None:
        self._cells.release()
        self._map.close()


class Outcome(StrEnum):
    """How one record ended."""

    #: The handler has handled it, or a middleware said `Done` in its place.
    DONE = "done"
    #: It was passed over: the handler said `Skip`, or `on_failure` does.
    SKIPPED = "skipped"
    #: One of handler.filters, or max_age_ms, has kept it from the handler.
    FILTERED = "filtered"
    #: It is in the dead-letter topic.
    DEAD_LETTER = "dead_letter"
    #: It is in a retry topic: see `Run.retries`.
    RETRY_TOPIC = "retry_topic"
    #: Its partition is halted before it.
    HALTED = "halted"
    #: It lies before the offset that the handler keeps (`load_offsets`): nobody gets it any more.
    STORED = "stored"
    #: It was not handled: it comes behind one that halted, or the worker lost it first.
    UNHANDLED = "unhandled"


@dataclass(frozen=True, slots=True)
class Handled:
    """One record and its outcome."""

    record: GivenRecord
    outcome: Outcome
    attempts: int
    """How often the handler was called with it."""
    errors: tuple[BaseException, ...]
    """What it raised, an outcome other than `Done` that it said included."""

    @property
    def waited(self) -> float:
        """Seconds for which the handler had it wait, by `kunicorn.Wait`."""
        return sum(error.seconds for error in self.errors if isinstance(error, Wait))


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one worker's life: its records in the order in which they were given, and the offsets that would be
    committed.
    """

    records: Sequence[Handled]
    committed: Mapping[TopicPartition, int]
    """The offset that the group has for each partition afterwards: the next one to read. A partition whose session was
    lost stands where it began. Of a handler that keeps its offsets itself: how far its worker was."""
    sent: Sequence[SentRecord]
    """Everything that the worker has produced, in order, dead letters included; of transactions what was committed."""
    halted: Mapping[TopicPartition, str]
    """Why, for partitions that are."""
    ahead: Mapping[TopicPartition, Collection[int]] = field(default_factory=dict)
    """Offsets beyond the committed one that are done: the commit names them, and the partition's next owner does not
    handle them again."""

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcome of each record; they compare equal to their names: "done", "skipped", "dead_letter", "halted", …"""
        return [each.outcome for each in self.records]

    @property
    def dead_letters(self) -> list[SentRecord]:
        """Those of `sent` that are dead letters."""
        return [each for each in self.sent if each.is_letter]

    @property
    def retries(self) -> list[GivenRecord]:
        """Those of `sent` that wait in retry topics, as the handler gets them from there: `test.run(*run.retries)`."""
        return [each.given for each in self.sent if each.is_retry]

    @property
    def errors(self) -> list[BaseException]:
        """Everything that the handler raised, record by record."""
        return [error for each in self.records for error in each.errors]

    @property
    def left(self) -> list[GivenRecord]:
        """Records that the partition's next owner gets: `test.run(*run.left)`."""
        return [each.record for each in self.records if not self._is_done(each.record)]

    def _is_done(self, record: GivenRecord) -> bool:
        return record.at < self.committed[record.tp] or record.at in self.ahead.get(record.tp, ())

    @property
    def handled_again(self) -> list[GivenRecord]:
        """Those of `left` that this worker's handler has begun already: its effects are there, perhaps half of them."""
        return [each.record for each in self.records if each.attempts and not self._is_done(each.record)]


_OUTCOMES = {
    Fate.SKIPPED: Outcome.SKIPPED,
    Fate.FILTERED: Outcome.FILTERED,
    Fate.DEAD_LETTER: Outcome.DEAD_LETTER,
    Fate.RETRY_TOPIC: Outcome.RETRY_TOPIC,
}


class Progress(NamedTuple):
    """How far one partition is."""

    offset: int
    """The next one to handle."""
    ahead: frozenset[int] = frozenset()
    """Offsets beyond it that are done."""

    def has(self, offset: int) -> bool:
        """Whether the record there is done, one way or another."""
        return offset < self.offset or offset in self.ahead


def outcome_of(
    records: Sequence[GivenRecord],
    notes: Notes,
    handled: Mapping[TopicPartition, Progress],
    committed: Mapping[TopicPartition, Progress],
    sent: Sequence[SentRecord],
    halted: Mapping[TopicPartition, str] | None,
) -> Run:
    """Result of a run. `halted`: None where the worker was killed, and has told nobody why."""

    def ended(index: int, each: GivenRecord) -> Outcome:
        fate = notes.fate(index)
        if fate is Fate.GIVEN_UP and (halted is None or each.tp in halted):
            return Outcome.HALTED
        if not handled[each.tp].has(each.at):
            return Outcome.UNHANDLED
        return Outcome.STORED if fate is Fate.NONE else _OUTCOMES.get(fate, Outcome.DONE)

    every = [
        Handled(each, ended(index, each), notes.attempts(index), tuple(notes.errors.get(index, ())))
        for index, each in enumerate(records)
    ]
    offsets = {tp: progress.offset for tp, progress in committed.items()}
    ahead = {tp: progress.ahead for tp, progress in committed.items() if progress.ahead}
    return Run(every, offsets, sent, halted or {}, ahead)


_LONGEST_WHY = 16_384
_REFUSALS: Mapping[int, type[ServiceError]] = {each.exit_code: each for each in (ConfigError, HandlerLoadError)}


def until_killed(work: Callable[[], None]) -> None:
    """Do `work` in a forked child, which is killed in the middle of it.

    Raises what the service would end by, `ConfigError` or `HandlerLoadError`, and `RuntimeError` if the child ended
    otherwise. What the child changed in memory is gone with it, as with a worker; files and databases keep it. Blocks.
    """
    why = mmap.mmap(-1, _LONGEST_WHY)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # From Python 3.12 on a fork beside other threads warns; the child touches nothing of theirs and ends by _exit.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except (ConfigError, HandlerLoadError) as error:
            status, text = error.exit_code, str(error).encode(errors="backslashreplace")[:_LONGEST_WHY]
            why[: len(text)] = text
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    status = _ended(pid)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return
    if os.WIFEXITED(status) and (kind := _REFUSALS.get(os.WEXITSTATUS(status))) and (text := why[:].rstrip(b"\0")):
        raise kind(text.decode(errors="replace"))
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        raise RuntimeError("the record at which the worker was to be killed never came to the handler")
    raise RuntimeError(f"the worker ended by itself, before it was to be killed (wait status {status}); see its stderr")


def _ended(pid: int) -> int:
    """Wait for the child; its wait status. Whoever ends the test meanwhile, by Ctrl-C or as its time is over, ends the
    child, which may hang: nobody would be left to do so.
    """
    try:
        return os.waitpid(pid, 0)[1]
    except BaseException:
        with suppress(ProcessLookupError, ChildProcessError):  # It has ended just then.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
