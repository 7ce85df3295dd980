"""What librdkafka tells beside the records, without its repetitions.

With no broker in reach a client tells of every attempt, twenty times a second and in two ways: as a log line and as an
error event. Whoever is on call would read nothing else, and lines that matter would not fit into the log's queue.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message

DAMAGED = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION})
"""A batch whose checksum is wrong, or that cannot be decompressed."""
REMEDY_OF_DAMAGE = (
    "these records were damaged on a broker's disk or on their way, and none behind them is handled: have another "
    "replica elected leader, it may have them whole, and use kunicorn resume; or give them up with kunicorn seek"
)
_INCONSISTENT_TOPIC_ID, _FETCH_SESSION_TOPIC_ID_ERROR = 103, 106
"""Kafka's codes; librdkafka has no names for them."""
RETRIABLE = frozenset(
    {
        KafkaError.UNKNOWN,
        KafkaError.INVALID_MSG,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_TOPIC_ID,
        _INCONSISTENT_TOPIC_ID,
        _FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors with which a broker refuses a fetch for a moment: those that Kafka's table calls retriable, and one that the
broker cannot name, which the Java client tries again, too. librdkafka reports the error and fetches the partition again
from the same offset, `fetch.error.backoff.ms` (500) later."""
_PERIOD_SECONDS = 10.0
_MOST_KINDS = 1000
"""Forgets them all beyond that: texts that never repeat must not fill the memory."""
_VARYING = re.compile(r"\(after \d+ms[^)]*\)")


class OncePerPeriod(logging.Filter):
    """Passes the first line of a kind at once, then one a period, which says how many were left out.

    Lines are of one kind if they differ in nothing but how long librdkafka has tried.
    """

    def __init__(self, period: float = _PERIOD_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._period = period
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`. Caller: whichever thread serves the client's queue."""
        message = record.getMessage()
        kind = _VARYING.sub("", message)
        now = self._clock()
        told_at, left_out = self._kinds.get(kind, (-self._period, 0))
        if now - told_at < self._period:
            self._kinds[kind] = (told_at, left_out + 1)
            return False
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        if left_out:
            record.msg, record.args = f"{message} (and {left_out} more like this)", None
        return True


librdkafka = logging.getLogger("kunicorn.librdkafka")
"""For librdkafka's own log lines."""
librdkafka.addFilter(OncePerPeriod())

_events = logging.getLogger("kunicorn.client")
_events.addFilter(OncePerPeriod())


def parted(batch: list[Message], ends: Callable[[KafkaError], bool]) -> tuple[list[Message], list[Message]]:
    """Records, and errors in their places.

    What comes behind an error that `ends` its partition is left out: the client may have skipped what it could not
    read, and offsets must not pass that.
    """
    if not any(map(Message.error, batch)):
        return batch, []
    records: list[Message] = []
    errors: list[Message] = []
    ended = set()
    for message in batch:
        if (error := message.error()) is not None:
            errors.append(message)
            if ends(error):
                ended.add((message.topic(), message.partition()))
        elif (message.topic(), message.partition()) not in ended:
            records.append(message)
    return records, errors


def log_client_error(error: KafkaError) -> None:
    """An error event: brokers down, names not resolved. Called from inside `poll`."""
    _events.warning("kafka client: %s (%s)", error.str(), error.name())


def log_refused_fetch(message: Message) -> None:
    """A broker refused a fetch for a moment; the client repeats it."""
    if (error := message.error()) is not None:
        where = f"{message.topic()}-{message.partition()}"
        _events.warning("%s: a fetch was refused: %s (%s); trying again", where, error.str(), error.name())
