"""Errors of librdkafka: what each means and what to do about it, which refused fetches pass by themselves, and how they
are logged without repetition.

With no broker in reach a client reports every attempt, twenty times a second and in two ways: as a log line and as an
error event. Whoever is on call would read nothing else, and lines that matter would not fit into the log's queue.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, Message

from kunicorn.kafka_errors import ErrorCode, KafkaFault, fault

_UNREACHABLE = "see whether the brokers are up, kafka.bootstrap_servers, and the network between"
_DAMAGED = fault(ErrorCode.CORRUPT_MESSAGE).advice
_PROPERTIES = "correct kafka.librdkafka (for outputs, producing.librdkafka)"
_CLOSING = "nothing need be done: the client is being closed, or has ended this by itself"
_LIBRDKAFKAS = (
    "report this with the versions of kunicorn, librdkafka and the brokers: kunicorn has asked librdkafka for what it "
    "cannot do now"
)

_ADVICE: Mapping[int, str] = {
    KafkaError._BAD_MSG: _DAMAGED,
    KafkaError._BAD_COMPRESSION: _DAMAGED,
    KafkaError._DESTROY: _CLOSING,
    KafkaError._FAIL: _UNREACHABLE,
    KafkaError._TRANSPORT: _UNREACHABLE,
    KafkaError._CRIT_SYS_RESOURCE: "see this machine's memory, threads and open files: librdkafka can have no more",
    KafkaError._RESOLVE: "see whether this machine can resolve the brokers' names, and kafka.bootstrap_servers",
    KafkaError._MSG_TIMED_OUT: "see the brokers' load, and whether replicas are in sync: no acknowledgement in time",
    KafkaError._PARTITION_EOF: "nothing need be done: this is the end of the partition for now",
    KafkaError._UNKNOWN_PARTITION: "there is no such partition: leave the partition out, or correct it",
    KafkaError._FS: "see this machine's disk, and the files that kafka.librdkafka names",
    KafkaError._UNKNOWN_TOPIC: "there is no such topic: create it, or correct {setting}",
    KafkaError._ALL_BROKERS_DOWN: _UNREACHABLE,
    KafkaError._INVALID_ARG: _PROPERTIES,
    KafkaError._TIMED_OUT: _UNREACHABLE,
    KafkaError._QUEUE_FULL: "raise producing.buffer_memory, of which this is more than twice, or send less",
    KafkaError._ISR_INSUFF: fault(ErrorCode.NOT_ENOUGH_REPLICAS).advice,
    KafkaError._NODE_UPDATE: _LIBRDKAFKAS,
    KafkaError._SSL: "see kafka.ssl_ca_location and the brokers' certificates",
    KafkaError._WAIT_COORD: fault(ErrorCode.NOT_COORDINATOR).advice,
    KafkaError._UNKNOWN_GROUP: "correct group.id",
    KafkaError._IN_PROGRESS: _LIBRDKAFKAS,
    KafkaError._PREV_IN_PROGRESS: _LIBRDKAFKAS,
    KafkaError._EXISTING_SUBSCRIPTION: _LIBRDKAFKAS,
    KafkaError._ASSIGN_PARTITIONS: _LIBRDKAFKAS,
    KafkaError._REVOKE_PARTITIONS: _LIBRDKAFKAS,
    KafkaError._CONFLICT: _LIBRDKAFKAS,
    KafkaError._STATE: _LIBRDKAFKAS,
    KafkaError._UNKNOWN_PROTOCOL: "see whether kafka.bootstrap_servers names listeners of Kafka",
    KafkaError._NOT_IMPLEMENTED: _LIBRDKAFKAS,
    KafkaError._AUTHENTICATION: fault(ErrorCode.SASL_AUTHENTICATION_FAILED).advice,
    KafkaError._NO_OFFSET: _LIBRDKAFKAS,
    KafkaError._OUTDATED: _LIBRDKAFKAS,
    KafkaError._TIMED_OUT_QUEUE: _UNREACHABLE,
    KafkaError._UNSUPPORTED_FEATURE: "upgrade the brokers: they do not know what was asked for",
    KafkaError._WAIT_CACHE: _UNREACHABLE,
    KafkaError._INTR: _CLOSING,
    KafkaError._KEY_SERIALIZATION: _LIBRDKAFKAS,
    KafkaError._VALUE_SERIALIZATION: _LIBRDKAFKAS,
    KafkaError._KEY_DESERIALIZATION: _LIBRDKAFKAS,
    KafkaError._VALUE_DESERIALIZATION: _LIBRDKAFKAS,
    KafkaError._PARTIAL: "see the broker's log, and try again: its answer is incomplete",
    KafkaError._READ_ONLY: _LIBRDKAFKAS,
    KafkaError._NOENT: _LIBRDKAFKAS,
    KafkaError._UNDERFLOW: "see what stands between kunicorn and the brokers: an answer ends too early",
    KafkaError._INVALID_TYPE: _PROPERTIES,
    KafkaError._RETRY: _UNREACHABLE,
    KafkaError._PURGE_QUEUE: _CLOSING,
    KafkaError._PURGE_INFLIGHT: _CLOSING,
    KafkaError._FATAL: "see the error before this one: a client that had it does nothing any more, a new one is made",
    KafkaError._INCONSISTENT: _LIBRDKAFKAS,
    KafkaError._GAPLESS_GUARANTEE: "see the brokers' log: one record was given up, and others would overtake it",
    KafkaError._MAX_POLL_EXCEEDED: "see what holds the worker up: it has not asked for records for so long",
    KafkaError._UNKNOWN_BROKER: _UNREACHABLE,
    KafkaError._NOT_CONFIGURED: _PROPERTIES,
    KafkaError._FENCED: fault(ErrorCode.PRODUCER_FENCED).advice,
    KafkaError._APPLICATION: _LIBRDKAFKAS,
    KafkaError._ASSIGNMENT_LOST: fault(ErrorCode.UNKNOWN_MEMBER_ID).advice,
    KafkaError._NOOP: _CLOSING,
    KafkaError._AUTO_OFFSET_RESET: fault(ErrorCode.OFFSET_OUT_OF_RANGE).advice,
    KafkaError._LOG_TRUNCATION: (
        "choose where to go on with kunicorn seek: the log ends before what was read of it, as an unclean leader "
        "election leaves it"
    ),
    KafkaError._INVALID_DIFFERENT_RECORD: "see the error of the other record in the same batch; this one is sent again",
    KafkaError._DESTROY_BROKER: _CLOSING,
}
"""By librdkafka's own codes."""

UNREACHED = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE})
"""No broker is in reach; librdkafka tries again by itself."""

_FAULTS: Mapping[int, KafkaFault] = {
    code: KafkaFault(code, KafkaError(code).name(), code in UNREACHED, advice) for code, advice in _ADVICE.items()
}


def fault_of(code: int) -> KafkaFault:
    """The row of an error that librdkafka reports; its positive codes are Kafka's. Total."""
    return _FAULTS.get(code) or fault(code)


DAMAGED = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION})
"""A batch whose checksum is wrong, or that cannot be decompressed."""
_OF_OTHER_REQUESTS = frozenset(
    {
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
RETRIABLE: frozenset[int] = frozenset(
    {
        *(int(code) for code in ErrorCode if fault(code).retriable and code not in _OF_OTHER_REQUESTS),
        int(ErrorCode.UNKNOWN_SERVER_ERROR),
        int(ErrorCode.BROKER_NOT_AVAILABLE),
    }
)
"""Errors with which a broker refuses a fetch for a moment: those that Kafka's table calls retriable, and two that the
Java client tries again, too: one that the broker cannot name, and a broker that is down. librdkafka reports the error
and fetches the partition again from the same offset, `fetch.error.backoff.ms` (500) later."""
_PERIOD_SECONDS = 10.0
_MOST_KINDS = 1000
"""Forgets them all beyond that: texts that never repeat must not fill the memory."""
_VARYING = re.compile(r"\(after \d+ms[^)]*\)")


class OncePerPeriod(logging.Filter):
    """Passes the first line of a kind at once, then one a period, which says how many were left out.

    Lines are of one kind if they differ only in how long librdkafka has tried.
    """

    def __init__(self, period: float = _PERIOD_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._period = period
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Caller: whichever thread serves the client's queue."""
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
    """Records of a fetched batch, and its errors, each in order.

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
    """Log an error event: brokers down, names not resolved. Called from inside `poll`."""
    _events.warning("kafka client: %s (%s)", error.str(), error.name())


def log_refused_fetch(message: Message) -> None:
    """Log a fetch that a broker refused for a moment; the client repeats it."""
    if (error := message.error()) is not None:
        where = f"{message.topic()}-{message.partition()}"
        _events.warning("%s: a fetch was refused: %s (%s); trying again", where, error.str(), error.name())
