"""Outcome rows become dead letters: the driver sends them once their round has ended, before its offsets count.

In the live service's form, so that `kunicorn dlq` reads them. Tasks that Spark tries again send nothing twice; a run
that is killed between the topic's acknowledgement and its own manifest (or commit) sends that round's letters again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handling.deadletters import Cause, Letter, SourceRecord, letter_of
from kunicorn.handling.retry import End
from kunicorn.pipeline.access import Access
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import Summary
from kunicorn.settings import Settings


class LettersRefused(ServiceError):
    """The dead-letter topic does not take a letter; the round does not count."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


def send_letters(settings: Settings, outcomes: Directory, summaries: Iterable[Summary]) -> int:
    """Send a letter for each record of these ranges that is to have one, and wait until all are acknowledged.

    How many. Blocks as long as the topic does not answer, up to `dead_letters.delivery_timeout_ms` each. Raises
    `LettersRefused`, `ConfigError`.
    """
    files = [each.file for each in summaries if each.dead_letters]
    topic = settings.dead_letter_topic
    if not files or settings.pipeline.dead_letters == "outcomes":
        return 0
    if topic is None:
        raise ConfigError("the handler asks for dead letters, and no topic is set for them; set dead_letters.topic")
    post = _Post(Access(settings).letters(topic), topic)
    for file in files:
        for letter in letters_in(outcomes, file, settings.group.id):
            post.send(letter)
    return post.flush()


def letters_in(outcomes: Directory, file: str, group: str) -> Iterator[Letter]:
    """The dead letters of one file of outcome rows."""
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


class _Post:
    """Letters on their way; the first that is refused ends it."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._sent = 0
        self._error: KafkaError | None = None

    def send(self, letter: Letter) -> None:
        more: dict[str, Any] = {} if letter.timestamp is None else {"timestamp": letter.timestamp}
        while True:
            try:
                headers: list[tuple[str, str | bytes | None]] = [*letter.headers]
                self._producer.produce(
                    self._topic, letter.value, letter.key, headers=headers, on_delivery=self._told, **more
                )
                break
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._refused(error.args[0]) from error
        self._sent += 1
        self._producer.poll(0)
        self._check()

    def flush(self) -> int:
        while self._producer.flush(1.0):
            self._check()
        self._check()
        return self._sent

    def _told(self, error: KafkaError | None, message: Message) -> None:
        self._error = self._error or error

    def _check(self) -> None:
        if self._error is not None:
            raise self._refused(self._error)

    def _refused(self, error: KafkaError) -> LettersRefused:
        return LettersRefused(
            f"the dead-letter topic {self._topic!r} does not take a letter: {error.str()}. The round does not count "
            f"and its records are handled again: see that the topic exists, that its max.message.bytes fits the "
            f"largest records and that this user may write to it, then resume the run"
        )
