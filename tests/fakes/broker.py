"""A broker in the test's own event loop: real frames over real sockets, answers by a script.

Like Kafka it handles one request at a time on each connection, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import isawaitable
from random import Random
from typing import Any, Self
from uuid import UUID

from kio.serial import entity_reader

from kunicorn.kafka.auth import Address, Security
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.versions import OURS, REQUESTS, RESPONSES, Api
from tests.fakes.messages import blank, blank_response, nested, response_frame


class HangUp:
    """Instead of an answer: close the connection."""


class Silence:
    """Instead of an answer: nothing, and the next request is read."""


@dataclass(frozen=True)
class Slowly:
    """Instead of an answer: so many bytes of it at a time, `pause` seconds before each; if it is cut, the last of them
    never."""

    body: bytes
    most: int
    pause: float
    is_cut: bool = False


@dataclass(frozen=True)
class Asked:
    """One request as it came in; `connection` counts the connections from 0."""

    api: Api
    version: int
    frame: bytes
    connection: int

    @property
    def correlation_id(self) -> int:
        return int.from_bytes(self.frame[4:8], "big")

    @property
    def client_id(self) -> str:
        client_id: str = self._header[0].client_id
        return client_id

    @cached_property
    def message(self) -> Any:
        """kio's."""
        return entity_reader(REQUESTS[self.api, self.version])(self.frame, self._header[1])[0]

    @cached_property
    def _header(self) -> tuple[Any, int]:
        return entity_reader(REQUESTS[self.api, self.version].__header_schema__)(self.frame, 0)


Reply = Any
"""kio's message; or the bytes behind the length; or `HangUp`, `Silence` or `Slowly`."""
Script = Callable[[Asked], Reply | Awaitable[Reply]]


class FakeBroker:
    """Listens while the `async with` lasts. `script[api]` answers; what has no script gets a blank answer."""

    def __init__(self, node_id: int = 1, versions: Mapping[Api, tuple[int, int]] | None = None) -> None:
        self.node_id = node_id
        self.versions = {api: tuple(ours) for api, ours in OURS.items()} | dict(versions or {})
        self.script: dict[Api, Script] = {Api.API_VERSIONS: self.api_versions}
        self.asked: list[Asked] = []
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._offers: dict[Any, Any] = {}
        self._arrival = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        # Connections end at the loop's next turn. What is left of one when the loop is closed ends with an exception in
        # whichever test has it collected (Python 3.13: `Server._wakeup` of a server that is closed).
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """Listen no more and hang up on everybody."""
        if self._server is not None:
            self._server.close()
            # asyncio's own, from Python 3.13 on: also those that `_serve` has not met yet.
            getattr(self._server, "abort_clients", lambda: None)()
            self._server = None
        self.hang_up()

    def hang_up(self) -> None:
        for writer in self._writers.values():
            writer.transport.abort()

    @property
    def open(self) -> frozenset[int]:
        """Which connections there are, as `Asked` has them."""
        return frozenset(self._writers)

    def send(self, frame: bytes, connection: int | None = None) -> None:
        """Send a frame that nobody waits for here, on that connection or on all."""
        for number, writer in self._writers.items():
            if connection in (None, number):
                writer.write(len(frame).to_bytes(4, "big") + frame)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def apis(self) -> list[Api]:
        """What was asked besides the versions, in order."""
        return [asked.api for asked in self.asked if asked.api != Api.API_VERSIONS]

    async def wait_for(self, api: Api, count: int = 1) -> None:
        """Until `count` requests of this kind have come in."""
        async with asyncio.timeout(60), self._arrival:
            await self._arrival.wait_for(lambda: self.apis().count(api) >= count)

    def api_versions(self, asked: Asked) -> Reply:
        # The first answer on every connection, and most of what a connection costs.
        offer = asked.version, tuple(self.versions.items())
        if offer not in self._offers:
            row = nested(RESPONSES[Api.API_VERSIONS, asked.version], "api_keys")
            rows = tuple(
                row(api_key=int(api), min_version=low, max_version=high) for api, (low, high) in self.versions.items()
            )
            self._offers[offer] = blank_response(Api.API_VERSIONS, asked.version, api_keys=rows)
        return self._offers[offer]

    def lead(
        self,
        brokers: Iterable[FakeBroker],
        topics: Mapping[str, Mapping[int, tuple[int, int]]],
        ids: Mapping[str, UUID] | None = None,
    ) -> None:
        """Answer Metadata with these brokers and topics: leader and epoch by partition. `ids`: of topics that have
        one."""
        known = list(brokers)

        def metadata(asked: Asked) -> Reply:
            schema = RESPONSES[Api.METADATA, asked.version]
            broker, topic = nested(schema, "brokers"), nested(schema, "topics")
            partition = nested(topic, "partitions")
            return blank(
                schema,
                brokers=tuple(broker(node_id=each.node_id, host="127.0.0.1", port=each.port) for each in known),
                topics=tuple(
                    blank(
                        topic,
                        name=name,
                        **({"topic_id": ids[name]} if ids and name in ids else {}),
                        partitions=tuple(
                            blank(partition, partition_index=number, leader_id=leader, leader_epoch=epoch)
                            for number, (leader, epoch) in partitions.items()
                        ),
                    )
                    for name, partitions in topics.items()
                ),
            )

        self.script[Api.METADATA] = metadata

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        self._writers[number] = writer
        try:
            while await self._answer(number, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            del self._writers[number]
            writer.transport.abort()

    async def _answer(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        key = Api(int.from_bytes(frame[:2], "big")), int.from_bytes(frame[2:4], "big")
        asked = Asked(*key, frame, number)
        async with self._arrival:
            self.asked.append(asked)
            self._arrival.notify_all()
        reply = self.script[asked.api](asked) if asked.api in self.script else blank_response(*key)
        if isawaitable(reply):
            reply = await reply
        if reply is HangUp:
            return False
        if isinstance(reply, Slowly):
            await self._trickle(reply, writer)
        elif reply is not Silence:
            body = reply if isinstance(reply, bytes) else response_frame(asked.correlation_id, reply)
            writer.write(len(body).to_bytes(4, "big") + body)
        return True

    async def _trickle(self, reply: Slowly, writer: asyncio.StreamWriter) -> None:
        frame = len(reply.body).to_bytes(4, "big") + reply.body
        for at in range(0, len(frame) - reply.most * reply.is_cut, reply.most):
            await asyncio.sleep(reply.pause)
            writer.write(frame[at : at + reply.most])


def by_partition(asked: Asked, told: Callable[[Any], Mapping[str, Any]]) -> Reply:
    """The answer that has topics and partitions as the request has them. `told`: the fields of one partition's."""
    topic_row = nested(RESPONSES[asked.api, asked.version], "topics")
    row = nested(topic_row, "partitions")
    topics = tuple(
        topic_row(
            **({"name": topic.name} if hasattr(topic, "name") else {"topic_id": topic.topic_id}),
            partitions=tuple(
                blank(row, partition_index=each.partition_index, **told(each)) for each in topic.partitions
            ),
        )
        for topic in asked.message.topics
    )
    return blank_response(asked.api, asked.version, topics=topics)


async def connect(broker: FakeBroker, timeout: float = 60.0) -> Connection:
    return await Connection.open(broker.address, Security(), "the-client", timeout)


def cluster_of(
    *brokers: FakeBroker,
    connect_timeout: float = 60.0,
    request_timeout: float = 60.0,
    security: Security | None = None,
) -> Cluster:
    """A cluster that begins at these brokers."""
    return Cluster(
        [str(broker.address) for broker in brokers],
        client_id="the-client",
        security=security or Security(),
        timeouts=Timeouts(request=request_timeout, connect=connect_timeout),
        rng=Random(1),
    )


def found_at(broker: FakeBroker, asked: Asked) -> Reply:
    """That the coordinator of group "g" is this broker."""
    schema = RESPONSES[asked.api, asked.version]
    node = {"key": "g", "node_id": broker.node_id, "host": "127.0.0.1", "port": broker.port}
    return blank(schema, coordinators=(blank(nested(schema, "coordinators"), **node),))
