"""Messages between supervisor, template, token helper and workers, and their frames.

The supervisor plays the coordinator-connector of Kafka's early "lightweight consumer" design, a worker its fetcher; the
names StartFetcher, StopFetcher and Ping come from those (obsolete) pages of the Kafka wiki. In this code "coordinator"
means only the broker's.

A *grant* is a number the supervisor never reuses, one for each partition and hand-out. A worker's report counts only
while its grant is the partition's current one: a replaced worker's late report carries the same generation as the
living one's, but never the same grant.

Deadlines are seconds of `kunicorn.ipc.clock.now()`. Messages that carry secrets say so: never logged, never an
argument. A frame is four bytes of length, then one message as JSON. JSON rather than pickle: nothing a peer sends may
run code, not even inside one process tree.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import orjson

from kunicorn.errors import PeerError
from kunicorn.handler.config import DeadLetterTarget, HandlerConfig, ProducingTarget
from kunicorn.positions import NO_OFFSET

MOST_SERIES = 2_000
"""Most series that a worker reports: a label that holds a key would make one for each record."""


class Sample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One time series of a metric family. Finite, as JSON has no other numbers."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric of the handler's own with all its series, counted since this worker's start; Prometheus's data
    model.
    """

    name: str
    """Without the `_total` of a counter."""
    kind: str
    """Prometheus's type: counter, gauge, histogram, summary, info, unknown …"""
    documentation: str
    samples: list[Sample]
    merge: str = "sum"
    """What becomes of the same series of several workers: sum, min or max."""


class Tagged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of messages: the class's name travels as the tag."""


class Preload(Tagged, frozen=True):
    """First frame to the template: what to import, and from where."""

    entrypoints: list[str]
    path: list[str]
    """`sys.path` of the supervisor, so that a handler found only there is found again."""
    supervisor: int
    """The supervisor's pid: a process with another parent must exit."""
    log_level: str
    log_format: str
    allocator: str = ""
    """The library that is preloaded into the template, and so into workers; empty for none."""
    middlewares: list[str] = msgspec.field(default_factory=list)
    """Imported beside the handlers."""


class TemplateReady(Tagged, frozen=True):
    """The handler's import is done. With `preloaded` false it starts threads or sockets when it is imported, which do
    not survive a fork: workers import it themselves, after the fork.
    """

    preloaded: bool
    note: str
    seconds: float
    keepers: list[str] = msgspec.field(default_factory=list)
    """Entry points of handlers that keep their offsets themselves (`load_offsets`)."""


class TemplateFailed(Tagged, frozen=True):
    """The handler cannot be imported; the template exits."""

    error: str


class Fork(Tagged, frozen=True):
    """Request to fork one worker; the frame carries two descriptors: the worker's channel and its ledger."""

    worker: int


class Forked(Tagged, frozen=True):
    """Answer with the worker's pid; the frame carries its pidfd."""

    pid: int


class ForkFailed(Tagged, frozen=True):
    """Answer in place of that: there is no worker, and the next fork may succeed."""

    errno: int
    """What the system said; 0: it was not the system that said no."""
    error: str


ToTemplate = Preload | Fork
FromTemplate = TemplateReady | TemplateFailed | Forked | ForkFailed


class Token(Tagged, frozen=True):
    """OAUTHBEARER token: from the token helper to the supervisor, and on to every worker. A secret."""

    value: str
    expires_at: float
    """Seconds since 1970."""
    principal: str
    extensions: dict[str, str]
    """SASL extensions to send beside it (KIP-342)."""

    def __repr__(self) -> str:
        return f"Token(principal={self.principal!r}, expires_at={self.expires_at!r}, …)"


class Password(Tagged, frozen=True):
    """New password to log in with, after a rotation. A secret."""

    username: str
    value: str

    def __repr__(self) -> str:
        return f"Password(username={self.username!r}, …)"


class FetchToken(Tagged, frozen=True):
    """Only frame to the token helper: where to get a token; answered by `Token` or `TokenFailed`. Carries secrets."""

    endpoint_url: str | None
    client_id: str | None
    client_secret: str | None
    scope: str | None
    provider: str | None
    """The user's function, in place of an endpoint."""
    extensions: dict[str, str]
    path: list[str]
    """`sys.path` of the supervisor."""
    timeout: float
    """Seconds; the helper ends itself by then."""

    def __repr__(self) -> str:
        return f"FetchToken(endpoint_url={self.endpoint_url!r}, provider={self.provider!r}, …)"


class TokenFailed(Tagged, frozen=True):
    """No token was to be had, with the reason."""

    error: str


FromTokenHelper = Token | TokenFailed


# -- supervisor to worker ------------------------------------------------------------------------------------


class Configure(Tagged, frozen=True):
    """The first frame on every worker's channel. Carries secrets: never logged, never an argument."""

    worker: int
    """The worker's place, 0 … count−1; kept by its successor."""
    group: str
    handlers: list[HandlerConfig]
    """At least one."""
    client: dict[str, str | int | float | bool]
    """librdkafka properties of the worker's consumer, complete."""
    topics: list[str]
    """Topics known now: warmed up at start, because a topic new to a running client stalls up to one second."""
    log_level: str
    log_format: str
    token: Token | None = None
    """The OAUTHBEARER token of now, where that is the mechanism."""
    dead_letters: DeadLetterTarget | None = None
    """None: no setting asks for any, nor for retry topics."""
    ahead_bytes: int = 16 * 1024 * 1024
    """With several records in hand: so much is kept in memory for when there is a free hand."""
    producing: ProducingTarget | None = None
    """None: what handlers return is not sent."""
    fetcher: str = "librdkafka"
    """Or "own": who fetches."""

    def __repr__(self) -> str:
        return f"Configure(worker={self.worker}, …)"


class PoisonTold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record that is not to be handled, by its own offset: workers died with it."""

    offset: int
    why: str
    deaths: int


class FetcherStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One partition handed out: its first offset, its grant, and the ledger slot it is reported in."""

    grant: int
    slot: int
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    stop: int = NO_OFFSET
    """Records from this offset on are not handled; `NO_OFFSET`: there is no end."""
    poison: str = ""
    """Why the record at `poison_offset` is not to be handled: workers died with it. It ends as `on_failure` says."""
    poison_deaths: int = 0
    singly_until: int = NO_OFFSET
    """Workers died with records before this offset in hand, or not delivered: each is handled, and delivered, before
    anything else is begun."""
    reset: bool = False
    """A handler that keeps its offsets is not asked: what it keeps is not in the log, or of a deleted topic."""
    done: str = ""
    """Which records from `offset` on are done already (`ipc.bitmap.written`): they are not handled again."""
    poison_offset: int = NO_OFFSET
    """Its own offset: one that was compacted away meanwhile is none of those behind it."""
    more_poison: list[PoisonTold] = []
    """Likewise other records that are not to be handled, where several were in hand."""
    suspects: list[int] = []
    """Workers died with these records and others in hand: each is handled with nothing beside it."""
    began_with: int | None = None
    """How many partitions the topic had when the group began to consume it: offsets that a worker commits say it."""
    topic_id: str = ""
    """Which topic of that name it is of, where that is known: likewise."""


class StartFetcher(Tagged, frozen=True):
    """Order to fetch and handle these partitions from the given offsets on."""

    partitions: list[FetcherStart]


class StopFetcher(Tagged, frozen=True):
    """Order to stop fetching, finish what is in hand until `deadline`, and report `FetcherStopped`.

    `lost`: the partitions belong to another member already. What is in hand need not be finished, and its offsets will
    not be committed.
    """

    grants: list[int]
    deadline: float | None
    """None, or infinity (JSON has none and sends null): nobody waits, what is in hand may take its time."""
    lost: bool = False


class TimedOut(Tagged, frozen=True):
    """Order to interrupt the handler if it still has this record in hand; by now it may have another one.

    `offset`: the first unfinished one, as the ledger says. Where several are in hand, every other one of the grant is
    interrupted, too, that was taken in hand at `overdue_ns` (of `clock.now_ns`) or before.
    """

    grant: int
    offset: int
    overdue_ns: int = 0


class DrainOver(Tagged, frozen=True):
    """Order to let go now of these grants, which are to be stopped: their drain budget is over. What else is to be
    stopped has a budget of its own, or none.

    SIGUSR1 comes with it: C code that keeps the GIL and looks for signals lets the control thread read this.
    """

    grants: list[int] | None
    """None: the worker has to go, with all that it has."""


class CommitAs(Tagged, frozen=True):
    """Answer to the `CommitWanted` of that number: the member to commit offsets as, in a transaction, now (KIP-447)."""

    number: int
    generation: int
    """The member epoch, with the consumer protocol."""
    member_id: str
    instance_id: str | None
    cluster_id: str = ""
    """Which cluster it is a member in; empty where its brokers tell none."""


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rate of one handler, by its number."""

    handler: int
    per_second: float
    burst: float


class Rates(Tagged, frozen=True):
    """Rates for this worker from now on: its share of what workers have together."""

    rates: list[Rate]


class Ping(Tagged, frozen=True):
    """Question for signs of life; the control thread answers it, whatever the runner does."""

    sequence: int


class Drain(Tagged, frozen=True):
    """Order to stop every fetcher, report each, then exit 0."""

    deadline: float


# -- worker to supervisor ------------------------------------------------------------------------------------


class Ready(Tagged, frozen=True):
    """The handler is loaded and the consumer exists: StartFetcher may come."""


class Stopped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Final progress under one grant: the next offset to handle, and the offsets done beyond it."""

    grant: int
    offset: int
    leader_epoch: int
    done: str = ""


class FetcherStopped(Tagged, frozen=True):
    """Nothing of these grants is fetched, queued or in hand any more; their ledger slots are free."""

    partitions: list[Stopped]


class InHand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the handler is busy with: the first unfinished record, how many, and for how long (seconds)."""

    topic: str
    partition: int
    offset: int
    count: int
    age: float


class Counted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Growth of one counter of `kunicorn.observe.catalogue` since the last Pong."""

    name: str
    labels: list[str]
    """Their values, in the order of the declaration."""
    amount: int


class Observed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Observations of one histogram of the catalogue since the last Pong."""

    name: str
    labels: list[str]
    buckets: list[int]
    """Observations by the declared bounds, one count a bucket, the last one without an upper bound."""
    seconds: float
    """The sum of them."""


class Parked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partition whose record waits for its next try or its time, while the others go on."""

    grant: int
    waits_for: str
    """What the metric `kunicorn_partitions_waiting` lists, or "handler": the handler did not take the partition on
    yet."""
    why: str


class RateUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker used of its rate for one handler since its start, and how often records waited for more."""

    handler: int
    used: float
    waits: int


class Pong(Tagged, frozen=True):
    """Signs of life and progress: the runner's own counter, never the control thread's beat."""

    sequence: int
    runner: int
    """Grows with every turn of the runner's loop, at least once a second unless a record is in hand."""
    handled: int
    """Records finished since the worker's start."""
    in_hand: InHand | None
    rss_bytes: int
    paused_by_lease: bool
    logs_dropped: int
    counted: list[Counted] = msgspec.field(default_factory=list)
    observed: list[Observed] = msgspec.field(default_factory=list)
    parked: list[Parked] = msgspec.field(default_factory=list)
    """Some of the waiting partitions: a worker can have thousands."""
    parked_count: dict[str, int] = msgspec.field(default_factory=dict)
    """How many there are, by what they wait for."""
    families: list[Family] | None = None
    """The handler's own metrics; None: there are none, or they are as told before."""
    client_families: list[Family] | None = None
    """The Kafka client's, likewise."""
    in_flight: int = 0
    """Records that calls of the handler have right now."""
    rates: list[RateUse] = msgspec.field(default_factory=list)
    """Of the handlers whose rate is limited."""
    broken_circuits: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of partitions by topic whose handler's circuit breaker is not closed."""


class FailureKind(StrEnum):
    """Why a grant ended early; the supervisor has one reaction for each."""

    #: The record at `offset` cannot be handled, nor may it be passed over; the partition halts.
    HANDLER = "handler"
    #: The start offset is below the log's start or above its end.
    OUT_OF_RANGE = "out-of-range"
    #: The log was truncated below the position (KIP-320).
    TRUNCATED = "truncated"
    #: The broker does not let this user read the topic; it may tomorrow.
    DENIED = "denied"
    #: The broker refuses the partition: unknown, corrupt.
    PARTITION = "partition"


class Failed(Tagged, frozen=True):
    """The grant ended by itself; like `FetcherStopped` it frees the slot. Text only, never a pickled exception."""

    grant: int
    kind: FailureKind
    offset: int
    leader_epoch: int
    error: str
    done: str = ""


class EndTransactions(Tagged, frozen=True):
    """Order to end what a dead worker has left open under its transactional.id, which nobody has any more."""

    transactional_id: str


class WorkerFailed(Tagged, frozen=True):
    """The worker cannot serve at all and is about to exit: handler not loadable, client properties refused."""

    stage: str
    """"import" (the handler's code, or what the settings name beside it), "handler" (its `__init__` or `setup`),
    "client" or "settings"."""
    error: str


class CommitWanted(Tagged, frozen=True):
    """Question as which member a transaction is to be committed. Until `CommitOver` the supervisor sends no JoinGroup,
    for a bounded time.
    """

    number: int


class CommitOver(Tagged, frozen=True):
    """The transaction of that number is committed or aborted."""

    number: int


ToWorker = (
    Configure
    | StartFetcher
    | StopFetcher
    | TimedOut
    | DrainOver
    | CommitAs
    | EndTransactions
    | Rates
    | Ping
    | Drain
    | Token
    | Password
)
FromWorker = Ready | FetcherStopped | Pong | Failed | CommitWanted | CommitOver | WorkerFailed
Message = ToWorker | FromWorker | ToTemplate | FromTemplate | FetchToken | FromTokenHelper


T = TypeVar("T")

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""More than ten thousand partitions with long topic names need in one StartFetcher; beyond it a frame is nonsense."""

_LENGTH = struct.Struct(">I")


class FrameError(PeerError):
    """Bytes on the pipe that are no message of this protocol; the channel cannot be trusted any further."""


def encode(message: Message) -> bytes:
    """Bytes of the message without the length in front, for sockets that keep packets apart."""
    built = msgspec.to_builtins(message)
    try:
        return orjson.dumps(built)
    except orjson.JSONEncodeError:
        # An exception's text may hold half a character (`json.loads('"\\ud83d"')`): not to end whoever tells of it.
        return orjson.dumps(_encodable(built))


def _encodable(built: Any) -> Any:
    """The value with lone surrogates written out."""
    if isinstance(built, str):
        return built.encode(errors="backslashreplace").decode()
    if isinstance(built, dict):
        return {_encodable(key): _encodable(value) for key, value in built.items()}
    return [_encodable(each) for each in built] if isinstance(built, list | tuple) else built


def decode(body: bytes, expected: type[T] | Any) -> T:
    """Message in `body`, which must be one of `expected` (a message type or a union of them)."""
    try:
        message: T = msgspec.convert(orjson.loads(body), type=expected)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise FrameError(f"not a message of this protocol: {error}") from error
    return message


def pack(message: Message) -> bytes:
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} is {len(body)} bytes long, the limit is {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Splits a byte stream into messages of the expected types; keeps the incomplete rest."""

    def __init__(self, expected: Any) -> None:
        self._expected = expected
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Messages that `data` completes, in order. Raises `FrameError`."""
        buffer = self._buffer
        buffer += data
        messages: list[Any] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame announces {length} bytes, the limit is {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            messages.append(decode(bytes(buffer[start + _LENGTH.size : end]), self._expected))
            start = end
        del buffer[:start]
        return messages
