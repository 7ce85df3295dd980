"""What became of the records of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kunicorn.testing.notes import Fate, Notes
from kunicorn.testing.producer import SentRecord
from kunicorn.testing.records import GivenRecord
from kunicorn.topics import TopicPartition


class Outcome(StrEnum):
    """How one record ended."""

    #: The handler has handled it.
    DONE = "done"
    #: It was passed over: the handler said `Skip`, or `on_failure` does.
    SKIPPED = "skipped"
    #: It is in the dead-letter topic.
    DEAD_LETTER = "dead_letter"
    #: It is in a retry topic: see `Run.retries`.
    RETRY_TOPIC = "retry_topic"
    #: Its partition is halted before it.
    HALTED = "halted"
    #: It was not handled: it comes behind one that halted, or the worker lost it first.
    UNHANDLED = "unhandled"


@dataclass(frozen=True, slots=True)
class Handled:
    """One record, and what became of it."""

    record: GivenRecord
    outcome: Outcome
    attempts: int
    """How often the handler was called with it."""
    errors: tuple[BaseException, ...]
    """What it raised, an outcome other than `Done` that it said included."""


@dataclass(frozen=True, slots=True)
class Run:
    """One worker's life: its records in the order in which they were given, and what would be committed."""

    records: Sequence[Handled]
    committed: Mapping[TopicPartition, int]
    """The offset that the group has for each partition afterwards: the next one to read. A partition whose session was
    lost stands where it began."""
    sent: Sequence[SentRecord]
    """Everything that the worker has produced, in order, dead letters included; of transactions what was committed."""
    halted: Mapping[TopicPartition, str]
    """Why, for partitions that are."""

    @property
    def outcomes(self) -> list[Outcome]:
        """Of each record; they compare equal to their names: "done", "skipped", "dead_letter", "halted", …"""
        return [each.outcome for each in self.records]

    @property
    def dead_letters(self) -> list[SentRecord]:
        """Those of `sent` that are records which could not be handled."""
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
        """What the partition's next owner gets: `test.run(*run.left)`."""
        return [each.record for each in self.records if each.record.at >= self.committed[each.record.tp]]

    @property
    def handled_again(self) -> list[GivenRecord]:
        """Those of `left` that this worker's handler has seen already: its effects are there, perhaps half of them."""
        return [each.record for each in self.records if each.attempts and each.record in self.left]


_OUTCOMES = {
    Fate.SKIPPED: Outcome.SKIPPED,
    Fate.DEAD_LETTER: Outcome.DEAD_LETTER,
    Fate.RETRY_TOPIC: Outcome.RETRY_TOPIC,
}


def outcome_of(
    records: Sequence[GivenRecord],
    notes: Notes,
    consumed: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    sent: Sequence[SentRecord],
    halted: Mapping[TopicPartition, str],
) -> Run:
    """`consumed`: what the ledger says; a record before that offset is done with, one way or another."""

    def ended(index: int, each: GivenRecord) -> Outcome:
        fate = notes.fate(index)
        if fate is Fate.GIVEN_UP and each.tp in halted:
            return Outcome.HALTED
        if each.at >= consumed[each.tp]:
            return Outcome.UNHANDLED
        return _OUTCOMES.get(fate, Outcome.DONE)

    handled = [
        Handled(each, ended(index, each), notes.attempts(index), tuple(notes.errors.get(index, ())))
        for index, each in enumerate(records)
    ]
    return Run(handled, committed, sent, halted)
