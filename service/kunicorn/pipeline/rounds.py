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

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from kunicorn.clients.access import Access
from kunicorn.clients.post import Post
from kunicorn.clients.session import JOB_PATIENCE, cluster_session
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handler.dead_letters import Cause, Letter, SourceRecord, letter_of
from kunicorn.handler.letter_styles import OWN
from kunicorn.handler.retry import End
from kunicorn.librdkafka.errors import fault_of
from kunicorn.pipeline.executors import SettingsFile
from kunicorn.pipeline.plan import check_same_topics
from kunicorn.pipeline.report import Bar, Exposed, Say, Tasks, watched
from kunicorn.pipeline.spark import Job, open_session
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.task import Summary
from kunicorn.positions import OffsetRange, total
from kunicorn.settings import PipelineSettings, Settings


class LettersRefused(ServiceError):
    """The dead-letter topic does not take a letter; the round does not count."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


def check_topics(settings: Settings, state: RunState) -> None:
    """Raise `ConfigError` if one of the topics was created anew since the run began. Asks the cluster. Blocks."""
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        check_same_topics(state.topics, session.topic_ids(state.topics))


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
        for letter in letters_in(outcomes, file, settings.group.id, settings.dead_letters.headers):
            letters.send(letter)
    return letters.flush()


def letters_in(outcomes: Directory, file: str, group: str, headers: str = OWN) -> Iterator[Letter]:
    """Dead letters of one file of outcome rows, which is never in memory as a whole: its records may be large.
    `headers`: whose they have beside ours."""
    for rows in outcomes.batches(file):
        letters = rows.filter(pc.equal(rows["status"], End.DEAD_LETTER.value))
        for row in _with_numbers(letters).to_pylist():
            cause = Cause(row["error_type"], row["error_message"], row["error_stack"], row["attempts"])
            yield letter_of(_record(row), group, cause, row["time"] or 0, headers)


def _with_numbers(table: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with times as milliseconds: producers write some that no calendar has, and Python's would raise."""
    for name in ("time", "timestamp"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    return table


def _record(row: dict[str, Any]) -> SourceRecord:
    headers = [(pair["key"], pair["value"]) for pair in row["headers"] or ()]
    place = row["topic"], row["partition"], row["offset"]
    return SourceRecord(*place, row["timestamp"], row["key"], row["value"], headers)


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


def timed(pipeline: PipelineSettings) -> Callable[[RunState], int]:
    """Size of rounds that take as long as the settings say."""
    return lambda state: state.next_size(pipeline.round_seconds, pipeline.max_offsets_per_trigger)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeJob:
    """A job over ranges: what differs from job to job. The hooks block, and raise to end the job."""

    name: str
    """"backfill", "catch-up" or "export"."""
    settings: Settings
    file: SettingsFile
    directory: Directory
    """Where its tasks write: every executor has to reach it."""
    handler: bool = True
    """Whether executors need the handler."""
    run: Callable[[Job, Sequence[OffsetRange]], list[Summary]]
    """Handles the ranges of a round."""
    ready: Callable[[], None] = lambda: None
    """Called once before the first round, when the executors are found to be able to work."""
    begun: Callable[[RunState], None]
    """Saves what has to be known after a crash, once a round is planned."""
    ended: Callable[[RunState, Sequence[Summary]], None]
    """Makes a round count that has ended, and whose topics are still the same."""
    size: Callable[[RunState], int]
    """Offsets of the next round."""
    discard: Callable[[Summary], None] = lambda _: None
    """Deletes what a range has left that does not count."""
    pieces: int | None = None
    """Cut a round into so many tasks; None: a partition is one."""

    def __call__(self, state: RunState, master: str, run: str, say: Say) -> RunState:
        """Start Spark as `run`, and go round after round until nothing is left or a signal stops it; the final state.

        Blocks. Raises a `ServiceError` where the job ends early.
        """
        spark = open_session(self.settings, master, run)
        try:
            job = Job(spark, self.file)
            job.check_executors(self.directory, handler=self.handler)
            self.ready()
            with stopping() as stop:
                return self._rounds(job, state, stop, say)
        finally:
            spark.stop()

    def _rounds(self, job: Job, state: RunState, stop: Stop, say: Say) -> RunState:
        with Exposed(self.settings.http, self.name, say) as exposed, Bar(state, say) as bar:

            def show(tasks: Tasks) -> None:
                exposed.underway(tasks)
                bar.underway(tasks)

            exposed.moved(state.counts, state.rounds, total(state.left))
            while state.left and not stop.asked:
                state = state.begin(self.size(state), self.pieces)
                self.begun(state)
                began = time.monotonic()
                with watched(job.tasks, show):
                    told = self.run(job, state.underway)
                summaries = state.counting(told)
                # Their ranges are cut anew: what is written of them now would stand beside it.
                for each in told:
                    if each not in summaries and each.file:
                        self.discard(each)
                state = state.end(summaries, time.monotonic() - began)
                check_topics(self.settings, state)
                self.ended(state, summaries)
                exposed.moved(state.counts, state.rounds, total(state.left))
                bar.moved(state)
        return state
