"""Everything that supervisor, template and worker say to one another.

The supervisor plays the coordinator-connector of Kafka's early "lightweight consumer" design, a worker its
fetcher; the names StartFetcher, StopFetcher and Ping come from those (obsolete) pages of the Kafka wiki.
In this code "coordinator" means only the broker's.

A *grant* is a number the supervisor never reuses, one for each partition and hand-out. A worker's report
counts only while its grant is the partition's current one: a replaced worker's late report carries the same
generation as the living one's, but never the same grant.

Deadlines are seconds of `kunicorn.ipc.clock.now()`.

What supervisor and template say to one another.

What supervisor, token helper and workers say to one another about logging in. Every one of these is a secret.

Metric families as a worker reports them: Prometheus's data model, as plain text and numbers.

What every message between our processes is.

Frames on a pipe: four bytes of length, then one message as JSON.

JSON rather than pickle: nothing a peer sends may run code, not even inside one process tree.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import orjson

from kunicorn.errors import PeerError
from kunicorn.handler.config import DeadLetterTarget, HandlerOrder, ProducingTarget
from kunicorn.positions import NO_OFFSET

MOST_SERIES = 2_000
"""So many a worker may report: a label that holds a key would make one for each record."""


class Sample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One series at one moment. Finite: JSON has no other numbers."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric with all its series, since this worker's start."""

    name: str
    """Without the `_total` of a counter."""
    kind: str
    """Prometheus's type: counter, gauge, histogram, summary, info, unknown …"""
    documentation: str
    samples: list[Sample]
    merge: str = "sum"
    """What becomes of the same series of several workers: sum, min or max."""


class Tagged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A frame's content; its type's name travels as the tag."""


class Preload(Tagged, frozen=True):
    """The template's first frame: what to import, and where from."""

    entrypoints: list[str]
    path: list[str]
    """`sys.path` of the supervisor, so that a handler found only there is found again."""
    supervisor: int
    """The supervisor's pid: whoever has another parent must not live on."""
    log_level: str
    log_format: str
    allocator: str = ""
    """The library that is preloaded into the template, and so into workers; empty for none."""


class TemplateReady(Tagged, frozen=True):
    """The import is done. With `preloaded` false the handler starts threads or sockets when it is imported, which do
    not survive a fork: workers import it themselves, after the fork."""

    preloaded: bool
    note: str
    seconds: float
    keepers: list[str] = msgspec.field(default_factory=list)
    """Entry points of handlers that keep their offsets themselves (`load_offsets`)."""


class TemplateFailed(Tagged, frozen=True):
    """The handler cannot be imported; the template exits."""

    error: str


class Fork(Tagged, frozen=True):
    """Fork one worker; the frame carries two descriptors: its channel and its ledger."""

    worker: int


class Forked(Tagged, frozen=True):
    """The worker's pid; the frame carries its pidfd."""

    pid: int


ToTemplate = Preload | Fork
FromTemplate = TemplateReady | TemplateFailed | Forked


class Token(Tagged, frozen=True):
    """An OAUTHBEARER token: from the token helper to the supervisor, and from there to every worker. A secret."""

    value: str
    expires_at: float
    """Seconds since 1970."""
    principal: str
    extensions: dict[str, str]
    """SASL extensions to send beside it (KIP-342)."""

    def __repr__(self) -> str:
        return f"Token(principal={self.principal!r}, expires_at={self.expires_at!r}, …)"


class Password(Tagged, frozen=True):
    """The password was rotated: log in with this one from now on. A secret."""

    username: str
    value: str

    def __repr__(self) -> str:
        return f"Password(username={self.username!r}, …)"


class FetchToken(Tagged, frozen=True):
    """The helper's only frame: whom to ask for a token, answered by `Token` or `TokenFailed`. Carries secrets."""

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
    """There is no token, and why."""

    error: str


FromTokenHelper = Token | TokenFailed


# -- supervisor to worker ------------------------------------------------------------------------------------


class Configure(Tagged, frozen=True):
    """The first frame on every worker's channel. Carries secrets: never logged, never an argument."""

    worker: int
    """The worker's place, 0 … count−1; kept by its successor."""
    group: str
    handlers: list[HandlerOrder]
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

    def __repr__(self) -> str:
        return f"Configure(worker={self.worker}, …)"


class FetcherStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One partition handed out: from which offset, under which grant, reported in which ledger slot."""

    grant: int
    slot: int
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    stop: int = NO_OFFSET
    """Records from this offset on are not handled; `NO_OFFSET`: there is no end."""
    poison: str = ""
    """Why the first record is not to be handled: workers died with it. It ends as `on_failure` says."""
    poison_deaths: int = 0
    singly_until: int = NO_OFFSET
    """Workers died with records before this offset in hand, or not delivered: each is handled, and delivered, before
    anything else is begun."""
    reset: bool = False
    """A handler that keeps its offsets is not asked: what it keeps is not in the log."""
    done: str = ""
    """Which records from `offset` on are done already (`ipc.bitmap.written`): they are not handled again."""
    poison_offset: int = NO_OFFSET
    """Which record `poison` speaks of, if not of the first one."""
    suspects: list[int] = []
    """Workers died with these records and others in hand: each is handled with nothing beside it."""
    began_with: int | None = None
    """How many partitions the topic had when the group began to consume it: offsets that a worker commits say it."""


class StartFetcher(Tagged, frozen=True):
    """Fetch and handle these partitions from the given offsets on."""

    partitions: list[FetcherStart]


class StopFetcher(Tagged, frozen=True):
    """Stop fetching, finish what is in hand until `deadline`, report `FetcherStopped`.

    `lost`: the partitions belong to another member already; what is in hand is not ours to finish in peace,
    and its offsets will not be committed.
    """

    grants: list[int]
    deadline: float | None
    """None, or infinity (JSON has none and sends null): nobody waits, what is in hand may take its time."""
    lost: bool = False


class TimedOut(Tagged, frozen=True):
    """Interrupt the handler if it still has this record in hand; by now it may have another one.

    `offset`: the first unfinished one, as the ledger says. Where several are in hand, every other one of the grant is
    interrupted, too, that was taken in hand at `overdue_ns` (of `clock.now_ns`) or before.
    """

    grant: int
    offset: int
    overdue_ns: int = 0


class CommitAs(Tagged, frozen=True):
    """The answer to `CommitWanted` of that number: as whom to commit offsets in a transaction now (KIP-447)."""

    number: int
    generation: int
    """The member epoch, with the consumer protocol."""
    member_id: str
    instance_id: str | None


class Ping(Tagged, frozen=True):
    """Asks for evidence; answered by the control thread whatever the runner does."""

    sequence: int


class Drain(Tagged, frozen=True):
    """Stop every fetcher, report each, then exit 0."""

    deadline: float


# -- worker to supervisor ------------------------------------------------------------------------------------


class Ready(Tagged, frozen=True):
    """The handler is loaded and the consumer exists: StartFetcher may come."""


class Stopped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The final word under one grant: the next offset to handle, and what is done beyond it."""

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


class Deltas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changed in one topic's counters since the last Pong. Bucket bounds: `DURATION_BUCKETS`."""

    topic: str
    records: int
    failures: int
    retries: int
    seconds: float
    """Time spent in the handler."""
    buckets: list[int]
    """Handler calls by duration, one count a bucket, the last one without an upper bound."""
    dead_letters: dict[str, int] = {}
    """Records that were acknowledged by the dead-letter topic, by `kunicorn.handler.retry.Reason`."""
    skipped: int = 0
    retried_later: dict[str, int] = {}
    """Records that a retry topic acknowledged, by its delay in words."""
    timed_out: int = 0
    """Calls that were interrupted as overdue beside the one that `TimedOut` named."""


DURATION_BUCKETS = (
    0.000_01, 0.000_1, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds in seconds: from a trivial handler's microseconds to one that should have been split up."""


class Parked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition whose record waits, while the others go on."""

    grant: int
    waits_for: str
    """"retry", "dead_letter", "delivery", or "handler": the handler did not take the partition on yet."""
    why: str


class Pong(Tagged, frozen=True):
    """Evidence of life and progress: the runner's own counter, never the control thread's beat."""

    sequence: int
    runner: int
    """Grows with every turn of the runner's loop, at least once a second unless a record is in hand."""
    handled: int
    """Records finished since the worker's start."""
    in_hand: InHand | None
    rss_bytes: int
    paused_by_lease: bool
    deltas: list[Deltas]
    logs_dropped: int
    parked: list[Parked] = msgspec.field(default_factory=list)
    """Some of the waiting partitions: a worker can have thousands."""
    parked_count: dict[str, int] = msgspec.field(default_factory=dict)
    """How many there are, by what they wait for."""
    families: list[Family] | None = None
    """The handler's own metrics; None: there are none, or they are as told before."""
    client_families: list[Family] | None = None
    """The Kafka client's, likewise."""
    hook_failures: dict[str, int] = msgspec.field(default_factory=dict)
    """How often hooks of handlers raised since the last Pong, by the hook's name."""
    in_flight: int = 0
    """Records that calls of the handler have right now."""
    sent: dict[str, int] = msgspec.field(default_factory=dict)
    """By topic: outputs acknowledged (in transactions: committed) since the last Pong."""
    committed_seconds: list[float] = msgspec.field(default_factory=list)
    """Duration of each transaction that was committed since."""
    aborted: int = 0
    """Transactions aborted since."""


class FailureKind(StrEnum):
    """Why a grant ended early; each has one reaction in the supervisor."""

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


class WorkerFailed(Tagged, frozen=True):
    """The worker cannot serve at all and is about to exit: handler not loadable, client properties refused."""

    stage: str
    """"handler", "client" or "settings"."""
    error: str


class CommitWanted(Tagged, frozen=True):
    """A transaction is to be committed: as whom? Until `CommitOver` the supervisor sends no JoinGroup, for a while."""

    number: int


class CommitOver(Tagged, frozen=True):
    """That transaction is committed or aborted."""

    number: int


ToWorker = Configure | StartFetcher | StopFetcher | TimedOut | CommitAs | Ping | Drain | Token | Password
FromWorker = Ready | FetcherStopped | Pong | Failed | CommitWanted | CommitOver | WorkerFailed
Message = ToWorker | FromWorker | ToTemplate | FromTemplate | FetchToken | FromTokenHelper


T = TypeVar("T")

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""More than ten thousand partitions with long topic names need in one StartFetcher; beyond it a frame is nonsense."""

_LENGTH = struct.Struct(">I")


class FrameError(PeerError):
    """What arrived is not a message of this protocol; the channel cannot be trusted any further."""


def encode(message: Message) -> bytes:
    """The message's bytes without the length, for sockets that keep packets apart."""
    built = msgspec.to_builtins(message)
    try:
        return orjson.dumps(built)
    except orjson.JSONEncodeError:
        # An exception's text may hold half a character (`json.loads('"\\ud83d"')`): not to end whoever tells of it.
        return orjson.dumps(_encodable(built))


def _encodable(built: Any) -> Any:
    """The same with lone surrogates written out."""
    if isinstance(built, str):
        return built.encode(errors="backslashreplace").decode()
    if isinstance(built, dict):
        return {_encodable(key): _encodable(value) for key, value in built.items()}
    return [_encodable(each) for each in built] if isinstance(built, list | tuple) else built


def decode(body: bytes, expected: type[T] | Any) -> T:
    """The message in `body`, which must be one of `expected` (a message type or a union of them)."""
    try:
        message: T = msgspec.convert(orjson.loads(body), type=expected)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise FrameError(f"not a message of this protocol: {error}") from error
    return message


def pack(message: Message) -> bytes:
    """The message as one frame."""
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} is {len(body)} bytes long, the limit is {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Cuts a byte stream into messages of the expected types; keeps what is incomplete."""

    def __init__(self, expected: Any) -> None:
        self._expected = expected
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that `data` completes, in order. Raises `FrameError`."""
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
