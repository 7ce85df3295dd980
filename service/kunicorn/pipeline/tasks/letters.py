"""Dead letters of a job: sent by the tasks themselves, in the live service's form, so that `kunicorn dlq` reads them.

1. A range ends only once its letters are acknowledged: what the driver counts has none on its way.
2. Tasks that Spark tries again, and ranges that a run begins again after it was killed, send theirs again.
3. Letters that are too large only together are sent again, fewer at a time: a topic's `max.message.bytes` bounds the
   batch, of which each letter fails then, and librdkafka splits none. One counts as too large where it was sent alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from confluent_kafka import KafkaError, Producer

from kunicorn.clients.access import Access
from kunicorn.clients.post import Post
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handler.dead_letters import Cause, Letter, SourceRecord, letter_of, topic_of_letters
from kunicorn.handler.letter_styles import OWN
from kunicorn.librdkafka.errors import fault_of
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.pipeline.tasks.outcomes import Row
from kunicorn.settings import Settings

_LOOK_SECONDS = 1.0
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_SHARE = 4
_MOST_BYTES = 16 * 1024 * 1024
"""Of letters that are kept until they are answered, as each may have to be sent again."""


class LettersRefused(ServiceError):
    """The dead-letter topic does not take a letter; its range does not count."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


def letter_in(row: Row, group: str, headers: str = OWN) -> Letter:
    """Dead letter of a row of outcomes. `headers`: whose it has beside ours."""
    cause = Cause(row["error_type"], row["error_message"], row["error_stack"], row["attempts"])
    own = [(pair["key"], pair["value"]) for pair in row["headers"] or ()]
    record = SourceRecord(
        row["topic"], row["partition"], row["offset"], row["timestamp"], row["key"], row["value"], own
    )
    return letter_of(record, group, cause, row["time"] or 0, headers)


def topic_in(row: Row, settings: Settings) -> str | None:
    """Topic of that row's letter, as the live service would choose it; None where no setting asks for dead letters."""
    own, letters = settings.handler_of(row["topic"]).dead_letter_topic, settings.dead_letters
    return topic_of_letters(row["reason"], row["letter_topic"], own, letters.topics) or settings.dead_letter_topic


class Letters:
    """Dead letters of one range on their way to their topics; the first that is refused ends it. Blocks as long as a
    topic does not answer, up to `dead_letters.delivery_timeout_ms` each."""

    def __init__(self, post: Post, topic: Callable[[Row], str | None], letter: Callable[[Row], Letter]) -> None:
        self._post = post
        self._topic = topic
        self._letter = letter
        self._refused: tuple[str, KafkaError] | None = None
        self._too_large: list[tuple[str, Letter]] = []
        """Refused together with others."""
        self._together: int | None = None
        """So many are sent at a time; None: as many as there are."""
        self._open = 0
        """Sent since all were answered last."""
        self._bytes = 0
        """Of these."""

    def add(self, row: Row) -> None:
        """Send the letter of that row. Raises `LettersRefused`, and `ConfigError` where no topic is set for it."""
        if (topic := self._topic(row)) is None:
            raise ConfigError("the handler asks for dead letters, and no topic is set for them; set dead_letters.topic")
        self._send(topic, self._letter(row))
        if self._too_large or self._is_full():
            self._settle()

    def flush(self) -> None:
        """Wait until all are acknowledged. Raises `LettersRefused`."""
        self._settle()

    def _settle(self) -> None:
        """Wait until all are answered, and send again what was refused together with others."""
        self._wait()
        while self._too_large:
            again, self._too_large = self._too_large, []
            self._together = max(1, min(len(again), self._together or len(again)) // _SHARE)
            for topic, letter in again:
                self._send(topic, letter)
                if self._is_full():
                    self._wait()
            self._wait()

    def _wait(self) -> None:
        while self._post.flush(_LOOK_SECONDS):
            self._check()
        self._check()
        self._open = self._bytes = 0

    def _is_full(self) -> bool:
        return self._open == self._together or self._bytes >= _MOST_BYTES

    def _send(self, topic: str, letter: Letter) -> None:
        answered = partial(self._answered, topic, letter)
        self._post.send(topic, letter.key, letter.value, letter.headers, answered, timestamp=letter.timestamp)
        self._check()
        self._open += 1
        self._bytes += len(letter.value or b"")

    def _answered(self, topic: str, letter: Letter, error: KafkaError | None) -> None:
        if error is None:
            return
        if error.code() in _TOO_LARGE and self._together != 1:
            self._too_large.append((topic, letter))
        elif self._refused is None:
            self._refused = topic, error

    def _check(self) -> None:
        if self._refused is not None:
            topic, error = self._refused
            remedy = fault_of(error.code()).remedy(rights="WRITE", setting="dead_letters.topic")
            raise LettersRefused(
                f"the dead-letter topic {topic!r} does not take a letter: {error.str()}: {remedy}, then resume "
                f"the run. The range does not count, and its records are handled again"
            )


def letters_of(file: SettingsFile) -> Letters | None:
    """For the letters of a range, with the current password; None: they stay in the outcomes. Caller: a task that has
    one. Raises `ConfigError`.
    """
    settings = file.settings()
    if settings.pipeline.dead_letters == "outcomes":
        return None
    group, headers = settings.group.id, settings.dead_letters.headers
    producer = _producer(file)
    Access(settings).log_in(producer)
    return Letters(Post(producer), lambda row: topic_in(row, settings), lambda row: letter_in(row, group, headers))


@lru_cache(maxsize=8)
def _producer(file: SettingsFile) -> Producer:
    """This process's producer: kept over tasks, as each would connect anew."""
    return Access(file.settings()).letters()
