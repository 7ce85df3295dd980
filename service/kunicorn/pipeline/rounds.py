"""The loop of every job over ranges, in the driver: run a round, send its dead letters, let it count, and so on.

1. A round counts only once its dead letters are acknowledged; then comes the job's own step (write a manifest, commit
   offsets), and only then the next round.
2. Whatever is killed in between repeats that round and nothing else.
3. Dead letters are made of the outcome rows, in the live service's form, so that `kunicorn dlq` reads them. Tasks that
   Spark tries again send nothing twice; a run that is killed between the topic's acknowledgement and its own manifest
   (or commit) sends that round's letters again.
4. SIGINT and SIGTERM: the first ends a job after the round it is in, the second at once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from confluent_kafka import KafkaError

from kunicorn.clients.access import Access
from kunicorn.clients.post import Post
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handler.dead_letters import Cause, Letter, SourceRecord, letter_of
from kunicorn.handler.retry import End
from kunicorn.librdkafka.errors import fault_of
from kunicorn.pipeline.report import Bar, Exposed, Say, Tasks, watched
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.task import Summary
from kunicorn.positions import OffsetRange, total
from kunicorn.settings import PipelineSettings, Settings


class LettersRefused(ServiceError):
    """The dead-letter topic does not take a letter; the round does not count."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


def send_letters(settings: Settings, outcomes: Directory, summaries: Iterable[Summary]) -> int:
    """Send the dead letters of these ranges, and wait until all are acknowledged; their number.

    Blocks as long as the topic does not answer, up to `dead_letters.delivery_timeout_ms` each. Raises `LettersRefused`,
    `ConfigError`.
    """
    files = [each.file for each in summaries if each.dead_letters]
    topic = settings.dead_letter_topic
    if not files or settings.pipeline.dead_letters == "outcomes":
        return 0
    if topic is None:
        raise ConfigError("the handler asks for dead letters, and no topic is set for them; set dead_letters.topic")
    letters = _Letters(Post(Access(settings).letters(topic)), topic)
    for file in files:
        for letter in letters_in(outcomes, file, settings.group.id):
            letters.send(letter)
    return letters.flush()


def letters_in(outcomes: Directory, file: str, group: str) -> Iterator[Letter]:
    """Dead letters of one file of outcome rows."""
    for row in outcomes.table(file).to_pylist():
        if row["status"] == End.DEAD_LETTER:
            cause = Cause(row["error_type"], row["error_message"], row["error_stack"], row["attempts"])
            yield letter_of(_record(row), group, cause, _milliseconds(row["time"]) or 0)


def _record(row: dict[str, Any]) -> SourceRecord:
    headers = [(pair["key"], pair["value"]) for pair in row["headers"] or ()]
    at = _milliseconds(row["timestamp"])
    return SourceRecord(row["topic"], row["partition"], row["offset"], at, row["key"], row["value"], headers)


def _milliseconds(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


class _Letters:
    """Dead letters on their way to the topic; the first that is refused ends it."""

    def __init__(self, post: Post, topic: str) -> None:
        self._post = post
        self._topic = topic
        self._sent = 0
        self._error: KafkaError | None = None

    def send(self, letter: Letter) -> None:
        self._post.send(
            self._topic, letter.key, letter.value, letter.headers, self._answered, timestamp=letter.timestamp
        )
        self._sent += 1
        self._check()

    def flush(self) -> int:
        while self._post.flush(1.0):
            self._check()
        self._check()
        return self._sent

    def _answered(self, error: KafkaError | None) -> None:
        self._error = self._error or error

    def _check(self) -> None:
        if (error := self._error) is not None:
            remedy = fault_of(error.code()).remedy(rights="WRITE", setting="dead_letters.topic")
            raise LettersRefused(
                f"the dead-letter topic {self._topic!r} does not take a letter: {error.str()}: {remedy}, then resume "
                f"the run. The round does not count, and its records are handled again"
            )


class StoppedAtOnce(ServiceError):
    """Second signal: the round underway does not count."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


class Stop:
    """Request to stop, by a signal."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handler of the signals."""
        if self.asked:
            raise StoppedAtOnce("stopped at once: the round underway does not count, its records are handled again")
        self.asked = True


@contextmanager
def stopping() -> Iterator[Stop]:
    """Take signals as requests to stop while the block runs. Caller: the driver's main thread."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that differ from job to job. All block, and raise to end the job."""

    run: Callable[[Sequence[OffsetRange]], list[Summary]]
    """Handles the ranges of a round."""
    begun: Callable[[RunState], None]
    """Saves what has to be known after a crash, once a round is planned."""
    ended: Callable[[RunState, Sequence[Summary]], None]
    """Makes a round count that has ended."""
    size: Callable[[RunState], int]
    """Offsets of the next round."""
    tasks: Callable[[], Tasks]
    """Progress of the round underway; called in a thread."""
    pieces: int | None = None
    """Cut a round into so many tasks; None: a partition is one."""


def timed(pipeline: PipelineSettings) -> Callable[[RunState], int]:
    """Size of rounds that take as long as the settings say."""
    return lambda state: state.next_size(pipeline.round_seconds, pipeline.max_offsets_per_trigger)


def run_rounds(state: RunState, steps: Steps, exposed: Exposed, stop: Stop, say: Say) -> RunState:
    """Run round after round until nothing is left or a signal stops it; the final state. Blocks."""
    with exposed, Bar(state, say) as bar:

        def show(tasks: Tasks) -> None:
            exposed.underway(tasks)
            bar.underway(tasks)

        exposed.moved(state.counts, state.rounds, total(state.left))
        while state.left and not stop.asked:
            state = state.begin(steps.size(state), steps.pieces)
            steps.begun(state)
            began = time.monotonic()
            with watched(steps.tasks, show):
                summaries = steps.run(state.underway)
            state = state.end(summaries, time.monotonic() - began)
            steps.ended(state, summaries)
            exposed.moved(state.counts, state.rounds, total(state.left))
            bar.moved(state)
    return state
