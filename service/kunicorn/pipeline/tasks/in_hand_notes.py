"""Notes in an object store of what a task that is tried again has in hand: mapped files (`in_hand_file`) stay on their
machine, and on a cluster Spark tries a task on another one each time.

1. Only a range that was begun before is noted: the first try of all others costs nothing.
2. A note is written before the handler gets what it names, and names more than one record, as each note is a request:
   a 256th of the range at a time, and within what an earlier try died with a 256th of that. So the second try that
   dies names one record of 65,000, the third one of 16 million.
3. A note that nobody has removed tells of a death if Spark has tried its task again since, or if it was the last try.
   Whether the process or its whole machine died nobody can tell from here: so a record counts as poison only once it
   was noted at `max_crashes` deaths, and alone.
4. A store that does not take a note ends nothing: the task goes on without notes, and says so.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kunicorn.errors import ConfigError
from kunicorn.handler.messages import Run
from kunicorn.handler.rows import following_offsets
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import OffsetRange

log = logging.getLogger("kunicorn.pipeline")

_PLACE = "_in_hand"
"""Below the outcomes; no reader of Parquet directories looks there."""
_PIECES = 256
TRIES = 4
"""Of a task, unless `spark.task.maxFailures` says otherwise."""


class Hand(NamedTuple):
    """Records that a process died with: the first at or behind `start`, and others up to `stop`, not included.

    Offsets have gaps, and a handler of single records notes where the last one ended: so the first record counts even
    if it is behind `stop`.
    """

    start: int
    stop: int


def noted_until(at: int, whole: OffsetRange, hands: Collection[Hand]) -> int:
    """End of the note for what begins at the offset `at`. `hands`: what earlier tries died with. Pure."""
    inside = [hand.stop - hand.start for hand in hands if hand.start <= at < hand.stop]
    size = min([whole.size, *inside])
    # Not into what was died with: there notes are shorter.
    edges = [edge for hand in hands for edge in hand if edge > at]
    return min([at + max(1, size // _PIECES), whole.stop, *edges])


@dataclass(slots=True)
class InHandNotes:
    """Notes of one try. Caller: the task's threads, one at a time. No method raises where the store does not answer."""

    directory: Directory
    """Where the notes of all tries of the range are."""
    name: str
    """Of this try's, which is also that of its mapped file."""
    attempt: int
    whole: OffsetRange
    died_with: Sequence[Hand] = ()
    """What earlier tries died with."""
    _noted: Hand | None = None
    _silent: bool = False

    def before(self, start: int, stop: int) -> int:
        """Note, before the handler gets them, that the records from `start` to `stop` are in hand; where the note ends,
        at or behind `stop`. Blocks on the store, unless the last note has them."""
        if self._noted is None or not self._noted.start <= start < stop <= self._noted.stop:
            self._noted = Hand(start, max(stop, noted_until(start, self.whole, self.died_with)))
            self._write({"start": start, "stop": self._noted.stop, "attempt": self.attempt})
        return self._noted.stop

    def cut(self, run: Run) -> Iterator[Run]:
        """The records, as many at a time as one note names. Caller: whoever has handled all of one when it takes the
        next."""
        following = following_offsets(run)
        at = 0
        while at < len(run):
            first = following[at] - 1
            end = bisect_right(following, self.before(first, first + 1))
            yield run[at:end]
            at = end

    def over(self) -> None:
        """Remove the notes of all tries: the range is done."""
        names: list[str] = []
        self._told(lambda: names.extend(_names(self.directory)))
        for name in names:
            self._told(lambda name=name: self.directory.delete(name))

    def withdraw(self) -> None:
        """Remove this try's note: the process lives."""
        self._told(lambda: self.directory.delete(self.name))

    def _write(self, told: Mapping[str, Any]) -> None:
        self._told(lambda: self.directory.write(self.name, json.dumps(told).encode()))

    def _told(self, ask: Any) -> None:
        try:
            ask()
        except ConfigError as error:
            if not self._silent:
                log.warning(f"what is in hand is not noted, so that a death tells of no record: {error}")
            self._silent = True


def begin_notes(
    outcomes: Directory, whole: OffsetRange, name: str, attempt: int, of_this_machine: Mapping[str, Hand | None]
) -> InHandNotes:
    """Notes of a try that begins, with the verdict on those before it. `of_this_machine`: that of their mapped files,
    which know more. Raises `ConfigError`.
    """
    directory = _directory(outcomes, whole)
    died_with = {each: hand for each, hand in of_this_machine.items() if hand is not None}
    for each in _names(directory):
        told = directory.read_json(each)
        if told is None or (each in of_this_machine and of_this_machine[each] is None):
            directory.delete(each)
        elif told.get("died") or attempt > told["attempt"]:
            if not told.get("died"):
                # From now on it does not matter which run goes on.
                directory.write(each, json.dumps({**told, "died": True}).encode())
            died_with.setdefault(each, Hand(told["start"], told["stop"]))
        else:
            # Of a driver that is gone, and with it the process, which no record did.
            directory.delete(each)
    return InHandNotes(directory, name, attempt, whole, tuple(died_with.values()))


def noted_deaths(
    outcomes: Directory, tries: int = TRIES, given_up: Collection[OffsetRange] | None = None
) -> list[tuple[str, int, Hand]]:
    """Topic, partition and records of each note that tells of a death, also of the last try's of a range that is
    `given_up` (None: of any). Caller: the driver, after Spark gave up. Raises `ConfigError`.
    """
    found, place = [], outcomes / _PLACE
    for path in place.names(".json"):
        told = place.read_json(path)
        topic, partition, bounds, *_ = path.split("/")
        whole = OffsetRange(topic, int(partition), *map(int, bounds.split("-")))
        last = given_up is None or whole in given_up
        if told is not None and (told.get("died") or (last and told["attempt"] >= tries - 1)):
            place.write(path, json.dumps({**told, "died": True}).encode())
            found.append((*whole.tp, Hand(told["start"], told["stop"])))
    return found


def _directory(outcomes: Directory, whole: OffsetRange) -> Directory:
    return outcomes / f"{_PLACE}/{whole.topic}/{whole.partition}/{whole.start:020}-{whole.stop:020}"


def _names(directory: Directory) -> list[str]:
    return directory.names(".json", below=False)
