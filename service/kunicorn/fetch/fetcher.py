"""The fetcher's thread: an event loop that asks each broker in turn, decodes what it answers and queues the rows.

1. One connection and one request at a time for each broker that leads something. The answer is received in place,
   decoded in this thread (the compiled decoder lets others have the interpreter) and queued; then the next one is sent.
2. Connections, log-in, its renewals and the metadata are those of `kunicorn.kafka`: a renewal waits until no request is
   in flight, so it comes between two Fetches (KIP-368). Metadata has connections and a task of its own: it never waits
   behind a Fetch that a broker holds, and no partition waits for it that needs none. A broker that is away is tried
   once for all its partitions (Java's reconnect.backoff.ms).
3. A compressed answer is unpacked piece by piece, as there is room for it: a few bytes may unpack to gigabytes.
4. What other threads want is done in this one: `call` hands it over, and wakes it at once.
5. A request of whose answer nothing comes for `ANSWER_SECONDS`, beside the time that a broker may wait for records, is
   given up, and its connection closed. An answer that goes on arriving is waited for.
6. What nobody has foreseen, such as a panic of the decoder, ends the thread, and `FetchQueue` raises it for whoever
   takes: a fetcher that is not there any more would look like topics that are empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection

from kunicorn.backoff import Retries
from kunicorn.columns.decoding import Decoder, Part, Response
from kunicorn.errors import PeerError
from kunicorn.fetch.queue import Fetched, FetchQueue
from kunicorn.fetch.requests import BY_ID, Limits, fetch_frame
from kunicorn.fetch.sessions import SESSION_ERRORS, Request
from kunicorn.fetch.table import BACKOFF, Fetching, News, Topic
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.errors import ProtocolError
from kunicorn.kafka.metadata import Broker, TopicInfo
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode, describe
from kunicorn.positions import NO_EPOCH, TopicPartition
from kunicorn.text import listed

log = logging.getLogger("kunicorn.fetch")

ANSWER_SECONDS = 8.0
"""The longest silence of a broker that is asked for something; a Fetch without records it may keep for
`Limits.max_wait_ms` besides. With librdkafka it is as long (`socket.timeout.ms`): within 10 s both."""
_PURPOSE = "fetch"
_METADATA_SECONDS = 300.0
"""So often the metadata is asked for where nothing needs it (metadata.max.age.ms in Java's client)."""
_LOG_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_TOLD_AFTER = 5
"""Refusals in a row of one partition or topic, two seconds and more: a leader that moves, or a topic that was created a
moment ago, is nothing that anybody can act on."""


class Fetcher:
    """Fetches partitions until the process ends. Made by the worker's loop; `start` begins its thread."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        table: Fetching,
        decoder: Decoder,
        limits: Limits,
        queue: FetchQueue,
    ) -> None:
        """`cluster` makes the connections, which belong to this thread's loop. `table` and `decoder` are this thread's
        alone from now on."""
        self._made = cluster
        self._table, self._decoder, self.limits, self._queue = table, decoder, limits, queue
        self.longest_silence = ANSWER_SECONDS + limits.max_wait_ms / 1000
        """Seconds until a Fetch that is not answered is given up, and its connection closed."""
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster
        self._serving: set[int] = set()
        """Brokers that are asked, each in a task of its own."""
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        """Some partition wants the metadata."""
        self._room = asyncio.Event()
        self._logged_at: dict[str, float] = {}
        """When each kind of warning was told last: one that comes again and again takes no turn of another."""
        self._unknown: dict[str, int] = {}
        """Topics whose metadata is refused, and how often it was in a row."""
        self._running: asyncio.Task[None] | None = None
        queue.on_room(self._tell_room)

    def start(self) -> None:
        """Begin the thread. It is a daemon: a worker ends by `os._exit`, and nothing here is worth waiting for."""
        threading.Thread(target=self._run, name="fetch", daemon=True).start()

    def call(self, change: Callable[[Fetching], object]) -> None:
        """Have the table changed, at once. Caller: any thread."""
        self._loop.call_soon_threadsafe(self._change, change)

    def close(self) -> None:
        """End the thread and close its connections, soon. Caller: whoever called `start`, as the last call."""
        self._loop.call_soon_threadsafe(self._end)

    def _tell_room(self) -> None:
        self._loop.call_soon_threadsafe(self._room.set)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._running = self._loop.create_task(self.run(), name="fetch")
        try:
            self._loop.run_until_complete(self._running)
        except asyncio.CancelledError:
            self._loop.close()
        except BaseException as error:
            # The loop stays open: who hands something over meanwhile is to meet this error, and not that of `call`.
            self._queue.broke(error)

    def _end(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def run(self) -> None:
        """Serve every broker that something is asked of, keep the metadata, and look whether brokers that failed are
        well again; never returns. Cancelled, it closes its connections."""
        self._cluster = self._made()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_learning(), name="metadata")
                # Else one that failed once is not asked again while another answers, and what `learn` wants a second
                # broker's word for the same one says again.
                tasks.create_task(self._cluster.retry_failed(), name="nodes that failed")
                await self._keep_serving(tasks)
        finally:
            await self._cluster.close()

    async def _keep_serving(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._table.wake(self._now)
            if self._table.wants_metadata:
                self._wanted.set()
            for node in self._table.nodes:
                if node not in self._serving:
                    self._serving.add(node)
                    tasks.create_task(self._serve(node), name=f"fetch from node {node}")
            await self._pause()

    async def _keep_learning(self) -> None:
        """Ask for the metadata where some partition wants it, and now and then. In a task of its own: a broker that is
        slow to answer must hold up no partition that waits for something else."""
        retries, asked_at = Retries(BACKOFF), self._now
        while True:
            await self._until_wanted(asked_at + _METADATA_SECONDS)
            asked_at = self._now
            if not self._table.topics:
                continue
            if await self._learn() and not self._table.wants_metadata:
                retries.succeeded()
                wait = BACKOFF.first_seconds
            else:
                wait = retries.failed()
            self._changed.set()
            await asyncio.sleep(wait)

    async def _until_wanted(self, due: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                while not (self._table.wants_metadata and self._table.topics):
                    self._wanted.clear()
                    await self._wanted.wait()

    def _change(self, change: Callable[[Fetching], object]) -> None:
        change(self._table)
        self._changed.set()

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _pause(self) -> None:
        """Sleep until a partition's wait is over, or something changes."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._table.next_wake()):
                await self._changed.wait()

    async def _learn(self) -> bool:
        """Ask for the metadata of all topics that are fetched; whether there was an answer."""
        try:
            metadata = await self._cluster.refresh(self._table.topics)
        except PeerError as error:
            self._log_seldom("metadata", f"no broker tells who leads the partitions; tried again: {error}")
            return False
        for name in self._table.topics:
            self._tell_unknown(name, metadata.topics[name].error if name in metadata.topics else ErrorCode.NONE)
        topics = {name: _topic(info) for name, info in metadata.topics.items()}
        self._put(self._table.learn(topics, self._now), None)
        if lost := [tp for tp in self._table.leaderless(_TOLD_AFTER) if tp.topic not in self._unknown]:
            self._log_seldom(
                "leader",
                f"the metadata names no leader of {listed(lost, separator=', ')}; asked again: see whether the brokers "
                f"with its replicas run",
            )
        if self._table.disputed:
            # Whoever has lost the controller goes on naming the leaders of before.
            self._cluster.doubt()
        if self._table.unsure:
            # It names the topics of before, too, and would decide alone that a new one is gone.
            self._cluster.ask_another()
        return True

    def _tell_unknown(self, topic: str, error: int) -> None:
        """Tell, seldom, that a topic's metadata is refused again and again."""
        times = self._unknown.pop(topic, 0) + 1
        if error != ErrorCode.NONE:
            self._unknown[topic] = times
            if times > _TOLD_AFTER:
                self._log_seldom("topic", f"the metadata of topic {topic!r} is refused; tried again: {describe(error)}")

    # -- one broker ----------------------------------------------------------------------------------------------------

    async def _serve(self, node: int) -> None:
        """Fetch from that broker while anything is asked of it."""
        try:
            while self._table.asks_of(node):
                if (quiet := self._table.quiet_until(node) - self._now) > 0:
                    await asyncio.sleep(quiet)
                    continue
                await self._room_for_more()
                try:
                    connection = await self._cluster.connection(node, _PURPOSE)
                    # Before the request is made: a partition may come or go meanwhile.
                    await connection.unmuted()
                    if self._table.asks_of(node):
                        await self._fetch(node, connection)
                except PeerError as error:
                    self._log_seldom("broker", f"fetching from node {node} failed; tried again: {error}")
                    self._table.unreached(node, self._now)
        finally:
            self._serving.discard(node)
            self._changed.set()

    async def _room_for_more(self) -> None:
        """Wait while the queue is full. Looks by itself, too: nobody tells when a handler lets go of what it kept."""
        while self._queue.waits_for_room():
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._room.wait()

    async def _fetch(self, node: int, connection: Connection) -> None:
        """Ask the broker once, and take its answer in, piece by piece as there is room."""
        request = self._table.sent(node)
        version = connection.version(Api.FETCH, at_most=None if request.by_id else BY_ID - 1)
        framing = self._framing(version, request)
        body: bytes | memoryview = await connection.exchange(Api.FETCH, framing, self.longest_silence)
        first = 0
        while True:
            response = self._decoded(node, connection, body, version, first)
            if response.error != ErrorCode.NONE:
                self._refused(node, response.error)
                return
            if not first:
                connection.mute(response.throttle_ms / 1000)
            self._take(node, response, again=first > 0)
            if not (first := response.more):
                return
            if self._queue.waits_for_room():
                # Copied: a log-in that is renewed meanwhile is answered into the buffer that this was received in.
                body = bytes(body)
                await self._room_for_more()

    def _decoded(
        self, node: int, connection: Connection, body: bytes | memoryview, version: int, first: int
    ) -> Response:
        self._table.known(node).tell(self._decoder)
        try:
            return self._decoder.decode(body, version, first)
        except ValueError as error:
            unreadable = ProtocolError(f"{connection.address}: an answer to Fetch cannot be read: {error}")
            connection.distrust(unreadable)
            raise unreadable from error

    def _framing(self, version: int, request: Request) -> Callable[[int, str], bytes]:
        return lambda number, client_id: fetch_frame(version, number, client_id, self.limits, request)

    def _take(self, node: int, response: Response, *, again: bool) -> None:
        for number, host, port in response.nodes:
            self._cluster.learn(Broker(number, host, port))
        if again:
            news = self._table.meet_more(node, response.partitions, self._now)
        else:
            news = self._table.meet(node, response.session_id, response.partitions, self._now)
        if news:
            self._put(news, response)
        for part in response.partitions:
            if told := _refusal(part):
                self._tell_refusal(node, part, told)
        self._changed.set()

    def _tell_refusal(self, node: int, part: Part, told: str) -> None:
        tp = TopicPartition(part.topic, part.partition)
        place = self._table.get(tp)
        if place is not None and not place.ended and place.failures >= _TOLD_AFTER:
            self._log_seldom("partition", f"node {node} refuses to be asked for {tp}; tried again: {told}")

    def _refused(self, node: int, error: int) -> None:
        self._table.refused(node, error, self._now)
        # A session that is over is nothing that anybody can act on, unless each new one is, too.
        if error not in SESSION_ERRORS or self._table.refusals(node) >= _TOLD_AFTER:
            self._log_seldom("broker", f"node {node} refuses to be fetched from; tried again: {describe(error)}")

    def _put(self, news: Collection[News], response: Response | None) -> None:
        for each in news:
            rows = None
            if response is not None and each.rows:
                rows = response.rows.cut(each.first, each.rows, each.epoch)
            self._queue.put(Fetched(each, rows, rows.nbytes if rows is not None else 0))

    def _log_seldom(self, kind: str, text: str) -> None:
        if self._now - self._logged_at.get(kind, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[kind] = self._now
            log.warning(text)


def _refusal(part: Part) -> str:
    """Why nothing comes of the partition, though the broker has answered; empty where it is no refusal."""
    if part.error:
        return describe(part.error)
    if part.diverging_epoch != NO_EPOCH:
        return f"its log diverges in leader epoch {part.diverging_epoch}, which ends at offset {part.diverging_end}"
    return "only a part of the next batch comes, however many bytes are asked for" if part.incomplete else ""


def _topic(info: TopicInfo) -> Topic:
    leaders = {number: (each.leader, each.leader_epoch) for number, each in info.partitions.items()}
    return Topic(info.topic_id.bytes if info.topic_id is not None else b"", leaders, info.error)
