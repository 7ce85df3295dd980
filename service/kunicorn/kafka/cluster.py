"""The cluster: bootstrap, metadata, and connections to its nodes, one for each node and purpose.

Any broker will do for most requests. Which is asked first is `NetworkClient.java`'s leastLoadedNode with two additions:
1. A node that failed is remembered. A dead broker stays in everybody's metadata until it is fenced, seven to twelve
   seconds later, and each try there costs a whole time-out.
2. They take turns. One that has lost the controller goes on answering, for as long as it lasts with the leaders, the
   coordinators and the topic ids of before; Java's consumer does not stay with it, as it is connected to all leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, TypeVar
from uuid import UUID

from kunicorn.errors import PeerError
from kunicorn.kafka.auth import Address, Security, parse_seeds, resolve
from kunicorn.kafka.codec import Fields
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.errors import (
    AuthenticationFailed,
    BrokersUnreachable,
    ConnectionLost,
    ProtocolError,
    RequestTimedOut,
)
from kunicorn.kafka.metadata import Broker, Metadata, merge, metadata_from
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode, describe


@dataclass(frozen=True, slots=True)
class NodeState:
    """Facts about one node that `by_preference` sorts by. `tried_at` is monotonic, 0 if never."""

    node_id: int
    sick: bool
    served: bool
    """It has answered for so long that it is another one's turn."""
    connected: bool
    in_flight: int
    tried_at: float


def by_preference(nodes: Iterable[NodeState]) -> list[int]:
    """Node ids, best first: healthy before sick; those whose turn it is; connected and idle, then connected, then least
    recently tried.

    Stable: equal nodes stay in the order given, which the caller shuffles.
    """
    return [
        node.node_id
        for node in sorted(
            nodes,
            key=lambda node: (
                node.sick,
                node.served,
                not (node.connected and node.in_flight == 0),
                not node.connected,
                node.in_flight,
                node.tried_at,
            ),
        )
    ]


logger = logging.getLogger("kunicorn.wire.cluster")

T = TypeVar("T")

_METADATA = "metadata"
"""The purpose of the connections for questions that any broker can answer."""

_LOGIN = "login"
"""The purpose of connections that are opened to see whether a node that refused us, or failed, still does."""

_LOGIN_AGAIN = 30.0
"""Seconds between such tries."""

_METADATA_TIMEOUT = 10.0
"""Seconds; the next node is asked then. A frozen node keeps its connections, and a group waits for its leader's plan,
which waits for this."""

_TURN = 60.0
"""Seconds for which the node that answers is asked first."""

_TURN_IN_DOUBT = 2.0
"""Likewise where somebody doubts it. Not shorter: while a coordinator moves all members ask again and again, and each
would connect to all nodes."""

_MOST_REFUSALS = 100
"""Of which each is told once, and so is what answers in a broker's place; texts that never repeat must not fill log
and memory."""
_REFUSALS_FOR = 3600.0
"""Seconds after which one that was told makes room for others: some brokers put another number into each."""

_CLOSED = "the cluster's connections were closed on our side"

_NOBODY = -(2**31)
_FIRST_SEED = -1
"""Addresses from `bootstrap_servers` are nodes with negative ids: real ones begin at 0."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `request` is for requests without a shorter one of their own; `connect` limits each attempt to connect
    and negotiate."""

    request: float
    connect: float


class _Opening(NamedTuple):
    """A try to connect."""

    address: Address
    task: asyncio.Task[Connection]


class Cluster:
    """Metadata and connections of one Kafka cluster. Times are seconds."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        security: Security,
        timeouts: Timeouts,
        rng: Random,
    ) -> None:
        """Opens nothing. Raises `ConfigError` for a server that is not "host:port"."""
        self.metadata = Metadata()
        self.outage: str | None = None
        """Why no node answered when all were asked last; None once one has. While they refuse us it says nothing: see
        `refusal`."""
        self.request_timeout = timeouts.request
        self._seeds = parse_seeds(bootstrap_servers)
        self._client_id = client_id
        self._security = security
        self._connect_timeout = timeouts.connect
        self._rng = rng
        self._addresses: dict[int, Address] = {}
        self._learned: int | None = None
        self._connections: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], _Opening] = {}
        self._sick: set[int] = set()
        self._refusals: dict[int, str] = {}
        self._refusals_told: dict[str, float] = {}
        """And when."""
        self._nonsense: dict[Address, str] = {}
        """What a node said last that does not answer as a broker does."""
        self._tried_at: dict[int, float] = {}
        self._answers = 0
        self._answering = _NOBODY, 0.0
        """The node that answers, and since when."""
        self._in_doubt = False
        self._closed = False

    async def refresh(self, topics: Collection[str] | None) -> Metadata:
        """Ask for these topics (None: all there are), store the answer, and return the whole metadata.

        One sweep over all known nodes. Raises `BrokersUnreachable`; the caller waits and calls again.
        """
        wanted = None if topics is None else [{"topic_id": None, "name": name} for name in sorted(set(topics))]
        answer = await self._ask_metadata(wanted)
        self._adopt(merge(self.metadata, answer, topics))
        return self.metadata

    async def name_topics(self, topic_ids: Collection[UUID]) -> Mapping[UUID, str]:
        """Names of those topic ids that a broker knows; the topics are in the metadata then.

        Raises `BrokersUnreachable`, `UnsupportedByBroker` where Metadata cannot ask by id (before version 12, KIP-516).
        """
        answer = await self._ask_metadata([{"topic_id": topic_id, "name": None} for topic_id in sorted(topic_ids)])
        self._adopt(merge(self.metadata, answer, answer.topics))
        return {t.topic_id: name for name, t in answer.topics.items() if t.topic_id in topic_ids and t.topic_id}

    async def _ask_metadata(self, topics: Sequence[Fields] | None) -> Metadata:
        fields: Fields = {
            "topics": topics,
            # A subscription must not create topics: a misspelt name would get its own, empty one.
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        }

        async def ask(connection: Connection) -> Metadata:
            message = await connection.request(Api.METADATA, fields, min(self.request_timeout, _METADATA_TIMEOUT))
            error = int(getattr(message, "error_code", ErrorCode.NONE))
            if error != ErrorCode.NONE:
                raise ProtocolError(f"{connection.address} refuses Metadata: {describe(error)}")
            metadata = metadata_from(message)
            if not metadata.brokers:
                # What it says of topics is as little true: it has not heard of them yet.
                raise ProtocolError(f"{connection.address} names no brokers in its metadata: it is starting")
            return metadata

        return await self.ask_any(ask)

    async def ask_any(self, ask: Callable[[Connection], Awaitable[T]], connect_timeout: float | None = None) -> T:
        """The first answer that one sweep over the nodes yields, least loaded first, the bootstrap servers last.

        `ask` raises `PeerError` to have the next node asked; `connect_timeout` shortens the cluster's, for each node.
        Raises `AuthenticationFailed` where a node refused us and no other answered: what to correct must not drown in a
        list; else `BrokersUnreachable` with every reason.
        """
        tried: list[str] = []
        refusal: AuthenticationFailed | None = None
        before = self._answers
        async with aclosing(self._candidates(tried)) as candidates:
            async for node_id in candidates:
                try:
                    answer = await ask(await self.connection(node_id, _METADATA, connect_timeout))
                except PeerError as error:
                    self._sick.add(node_id)
                    tried.append(str(error))
                    if isinstance(error, AuthenticationFailed):
                        refusal = refusal or error
                else:
                    self._sick.discard(node_id)
                    self._note_answer(node_id)
                    return answer
        why = "no broker answered: " + ("; ".join(tried) or "none is known")
        # Somebody else, who asked later, may have been answered meanwhile: nobody would take it back for minutes.
        if self._answers == before:
            self.outage = why if refusal is None else None
        raise refusal or BrokersUnreachable(why)

    async def connection(self, node_id: int, purpose: str, timeout: float | None = None) -> Connection:
        """Connection to that node for that purpose, opened if there is none; concurrent callers share it.

        `timeout` shortens the wait. What is underway then goes on for as long as a try to connect may take: where no
        processor time is left, whoever asks again would begin the same handshake for ever. Raises `PeerError`, also for
        a node that the metadata does not know.
        """
        if self._closed:
            raise ConnectionLost(_CLOSED)
        limit = self._connect_timeout if timeout is None else min(timeout, self._connect_timeout)
        key = (node_id, purpose)
        if (usable := self._usable(key)) is not None:
            return usable
        opening = self._begun(key)
        await asyncio.wait({opening.task}, timeout=limit)
        if not opening.task.done():
            self._sick.add(node_id)
            raise RequestTimedOut(
                f"{opening.address} (node {node_id}) did not answer as a broker does within {limit:g} s"
            )
        if opening.task.cancelled():
            raise ConnectionLost(_CLOSED if self._closed else f"node {node_id} is not at {opening.address} any more")
        return opening.task.result()

    @property
    def refusal(self) -> str | None:
        """Why authentication with some node fails, on whichever side; None if it fails with none that was tried."""
        return next(iter(self._refusals.values()), None)

    async def retry_failed(self, pause: float = _LOGIN_AGAIN) -> None:
        """Every `pause` seconds, for ever, log in anew at the nodes that refused us, connect anew to those that failed,
        and ask anew where none answered; each node once. Where nothing else is wanted of them, they would count as
        refusing, as sick, or as out, for good: a node may have learnt of a new password a second after the others. And
        while all others count as sick, one alone is asked, whatever is doubted of it.

        Caller: the service, and each fetcher, as a task.
        """
        while True:
            await asyncio.sleep(pause)
            for node_id in list(self._refusals):
                await self._probe(node_id)
            if self.outage is not None:
                with contextlib.suppress(PeerError):
                    await self.refresh(())
                continue
            # Of those that the metadata names: the bootstrap servers are asked last whether or not they are well.
            for node_id in sorted(self._sick.intersection(self.metadata.brokers).difference(self._refusals)):
                await self._probe(node_id)

    async def _probe(self, node_id: int) -> None:
        """Connect to it, for nothing but to see whether it is well: `_open` notes that."""
        with contextlib.suppress(PeerError):
            await self.connection(node_id, _LOGIN)
        self.disconnect(node_id, _LOGIN)

    def doubt(self) -> None:
        """Ask another node soon, if there is one: what the one that answers has said does not fit what others say."""
        self._in_doubt = True

    def ask_another(self) -> None:
        """Put the next question to another node, if one is well: what the one that answers has said counts only if
        others say so, too."""
        answering, _ = self._answering
        self._answering = answering, -math.inf

    def learn(self, broker: Broker) -> None:
        """Add a node that another source than Metadata names. Caller: the coordinator's look-up."""
        self._learned = broker.node_id
        self._addresses[broker.node_id] = broker.address

    def forget(self, topics: Collection[str]) -> None:
        """Drop what the metadata has of these topics, which nobody asks for any more."""
        left = {name: info for name, info in self.metadata.topics.items() if name not in topics}
        self.metadata = replace(self.metadata, topics=left)

    def disconnect(self, node_id: int, purpose: str) -> None:
        """Close that connection, if there is one."""
        if (node_id, purpose) in self._connections:
            self._discard((node_id, purpose))

    async def close(self) -> None:
        """Close every connection, for good."""
        self._closed = True
        underway = [each.task for each in self._opening.values()]
        for task in underway:
            task.cancel()
        await asyncio.gather(*underway, return_exceptions=True)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    def _usable(self, key: tuple[int, str]) -> Connection | None:
        connection = self._connections.get(key)
        if connection is None:
            return None
        outdated = connection.doubtful and not connection.in_flight
        if connection.closed or outdated or connection.address != self._addresses.get(key[0]):
            self._discard(key)
            return None
        return connection

    def _discard(self, key: tuple[int, str]) -> None:
        connection = self._connections.pop(key)
        if connection.failure is not None:
            self._sick.add(key[0])
        connection.close()

    def _begun(self, key: tuple[int, str]) -> _Opening:
        """The try to connect there that is underway, or a new one. Raises `ConnectionLost` for an unknown node."""
        node_id, _ = key
        address = self._addresses.get(node_id)
        if address is None:
            raise ConnectionLost(f"node {node_id} is not in the cluster's metadata")
        underway = self._opening.get(key)
        if underway is not None and underway.address == address:
            return underway
        if underway is not None:
            underway.task.cancel()
        self._tried_at[node_id] = asyncio.get_running_loop().time()
        opening = self._opening[key] = _Opening(address, asyncio.create_task(self._open(key, address)))
        opening.task.add_done_callback(lambda _: self._opened(key, opening))
        return opening

    def _opened(self, key: tuple[int, str], opening: _Opening) -> None:
        if self._opening.get(key) is opening:
            del self._opening[key]
        if not opening.task.cancelled():
            opening.task.exception()  # Whoever waited may have gone: asyncio would tell of it as of nobody's.

    async def _open(self, key: tuple[int, str], address: Address) -> Connection:
        node_id, purpose = key
        try:
            connection = await Connection.open(address, self._security, self._client_id, self._connect_timeout)
        except PeerError as error:
            self._sick.add(node_id)
            if isinstance(error, AuthenticationFailed):
                self._note_refusal(node_id, str(error))
            elif isinstance(error, ProtocolError):
                self._note_nonsense(address, str(error))
            raise
        self._sick.discard(node_id)
        self._refusals_told.pop(self._refusals.pop(node_id, ""), None)
        self._nonsense.pop(address, None)
        self._connections[key] = connection
        logger.debug("connected to %s (node %d) for %s", address, node_id, purpose)
        return connection

    def _note_answer(self, node_id: int) -> None:
        self._answers, self.outage = self._answers + 1, None
        before, _ = self._answering
        if node_id == before:
            return
        self._answering, self._in_doubt = (node_id, asyncio.get_running_loop().time()), False
        connection = self._connections.get((before, _METADATA))
        if connection is not None and not connection.in_flight:
            self._discard((before, _METADATA))

    def _has_served(self, node_id: int) -> bool:
        answering, since = self._answering
        turn = _TURN_IN_DOUBT if self._in_doubt else _TURN
        return node_id == answering and asyncio.get_running_loop().time() - since >= turn

    def _note_refusal(self, node_id: int, refusal: str) -> None:
        """Log the refusal once: the connection is tried again and again, until somebody corrects it."""
        self._refusals[node_id] = refusal
        told, now = self._refusals_told, asyncio.get_running_loop().time()
        if len(told) >= _MOST_REFUSALS:
            told = self._refusals_told = {text: at for text, at in told.items() if now - at < _REFUSALS_FOR}
        if refusal not in told and len(told) < _MOST_REFUSALS:
            told[refusal] = now
            logger.error("%s; tried again until it is corrected", refusal)

    def _note_nonsense(self, address: Address, why: str) -> None:
        """Log it once, for another node may answer in its place. Where none does, whoever asks tells of it at each try:
        the same sentence would be in the log twice each time."""
        known = self._nonsense.get(address) == why
        if len(self._nonsense) >= _MOST_REFUSALS:
            self._nonsense.clear()
        self._nonsense[address] = why
        level = logging.DEBUG if known else logging.INFO
        logger.log(level, "%s; that connection is closed, and opened again when it is needed", why)

    async def _candidates(self, problems: list[str]) -> AsyncGenerator[int, None]:
        """Every node once: those of the metadata by preference, then the bootstrap servers.

        The latter are resolved anew each time: they are also the way back when all brokers have moved (KIP-899).
        """
        for key in [key for key, connection in self._connections.items() if connection.closed]:
            self._discard(key)
        node_ids = sorted(self.metadata.brokers)
        self._rng.shuffle(node_ids)
        asked = {self._addresses[node_id] for node_id in node_ids}
        for node_id in by_preference([self._state(node_id) for node_id in node_ids]):
            yield node_id
        addresses = await resolve(self._seeds, self._connect_timeout, problems)
        self._rng.shuffle(addresses)
        for position, address in enumerate(addresses):
            if address not in asked:
                self._addresses[_FIRST_SEED - position] = address
                yield _FIRST_SEED - position

    def _state(self, node_id: int) -> NodeState:
        connection = self._connections.get((node_id, _METADATA))
        return NodeState(
            node_id,
            sick=node_id in self._sick,
            served=self._has_served(node_id),
            connected=connection is not None,
            in_flight=connection.in_flight if connection else 0,
            tried_at=self._tried_at.get(node_id, 0.0),
        )

    def _adopt(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self._addresses.update((broker.node_id, broker.address) for broker in metadata.brokers.values())
        if metadata.brokers:
            self._forget_all_but({*metadata.brokers, self._learned})

    def _forget_all_but(self, there: Collection[int | None]) -> None:
        """Forget what is known of nodes that are not in `there`: nobody would ever try them again. Addresses of the
        bootstrap servers stay, as another sweep may be about to ask one.
        """
        for key in [key for key in self._connections if key[0] not in there]:
            self._discard(key)
        self._refusals = {node: why for node, why in self._refusals.items() if node in there}
        self._addresses = {node: at for node, at in self._addresses.items() if node in there or node <= _FIRST_SEED}
        self._tried_at = {node: at for node, at in self._tried_at.items() if node in there}
        self._sick = {node for node in self._sick if node in there}
