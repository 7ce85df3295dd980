"""`kunicorn broker`: a Kafka for the first five minutes, at a fixed port, with the topics that the settings name.

librdkafka's mock cluster (`demo.mock_cluster`) serves, and listens wherever the system lets it. This process listens at
the port that people write into their settings, has the mock tell its clients that port, and forwards each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, Producer

from kunicorn.clients.post import Post
from kunicorn.commands.demo.mock_cluster import MockUnavailable, mock_cluster_process
from kunicorn.commands.embedded import unserved
from kunicorn.errors import ConfigError, ServiceError
from kunicorn.settings import Settings
from kunicorn.settings.checks import has_legal_name

HOST = "127.0.0.1"
KEYS = 50
"""Customers of the seeded orders: enough for every partition to get some, few enough for each to have several."""
MOST_PARTITIONS = 1000
"""Of a topic."""
_READ = 64 * 1024
_SEED_SECONDS = 30.0

WHAT_IT_IS_NOT = """\
This is no Kafka, but the mock cluster of the client library, for trying things out:
  everything is in memory and ends with it; a partition keeps its last 5 MB; anybody on this machine may use it
  a second member gets partitions after session_timeout_ms, and so does a service that is stopped and started again
  group_protocol = "consumer" and transactions are refused
  programs that create topics need a real one, as kunicorn topics does
A real one, with Docker: docker run -p 9092:9092 apache/kafka:4.3.1"""


@dataclass(frozen=True)
class Topics:
    """Topics to make, each with its number of partitions, and those among them that are seeded."""

    made: tuple[tuple[str, int], ...]
    seeded: tuple[str, ...]


def port_of(settings: Settings) -> int:
    """Port at which the settings look for a broker on this machine. Raises `ConfigError` where they look elsewhere, or
    ask for what the embedded broker has not got.
    """
    kafka = settings.kafka
    if kafka.security_protocol != "PLAINTEXT":
        raise ConfigError(
            f'kafka.security_protocol = "{kafka.security_protocol}": the embedded broker speaks PLAINTEXT alone; leave '
            f"the setting out, or use a real Kafka"
        )
    if (lacking := unserved(settings)) is not None:
        raise ConfigError(lacking)
    host, _, port = kafka.bootstrap_servers[0].rpartition(":")
    named_there = ", ".join(kafka.bootstrap_servers)
    if host not in (HOST, "localhost") or len(kafka.bootstrap_servers) > 1:
        raise ConfigError(
            f"kafka.bootstrap_servers names {named_there}: the embedded broker is on this machine; write "
            f'bootstrap_servers = ["{HOST}:9092"]'
        )
    return int(port)


def topics_of(settings: Settings, partitions: int) -> Topics:
    """Topics that a service with these settings needs. Raises `ConfigError` where only patterns are subscribed, and for
    a topic of too many partitions.
    """
    wanted = settings.assign.wanted
    consumed = settings.group.topics or wanted.topics
    seeded = tuple(topic for topic in consumed if not topic.startswith("^"))
    if not seeded:
        raise ConfigError("group.topics holds patterns alone, and no broker can make a topic of a pattern: name one")
    every = dict.fromkeys([*seeded, *settings.other_topics], partitions)
    for topic, number in wanted.numbered:
        if number >= MOST_PARTITIONS:
            raise ConfigError(
                f"assign.partitions names {topic}:{number}: the embedded broker makes topics of up to "
                f"{MOST_PARTITIONS} partitions; correct the number, or use a real Kafka"
            )
        every[topic] = max(every[topic], number + 1)
    return Topics(tuple(every.items()), seeded)


def serve(topics: Topics, port: int, seed: int, say: Callable[[str], None], *, as_json: bool = False) -> None:
    """Serve at `port` (0: the system chooses) until SIGINT or SIGTERM. Blocks.

    Raises `ConfigError` where the port is taken, `ServiceError` where the mock does not start, or ends by itself.
    """
    try:
        asyncio.run(_serve(topics, port, seed, say, as_json=as_json))
    except MockUnavailable as error:
        raise ServiceError(str(error)) from error


async def _serve(topics: Topics, port: int, seed: int, say: Callable[[str], None], *, as_json: bool) -> None:
    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(why: ServiceError | None = None) -> None:
        if not stopped.done():
            stopped.set_result(None) if why is None else stopped.set_exception(why)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    upstream: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = await _listen(port, upstream, stop)
    here = server.sockets[0].getsockname()[1]
    try:
        with mock_cluster_process(topics.made, advertised_port=here) as address:
            upstream.set_result(address)
            for topic in topics.seeded:
                await asyncio.to_thread(produce, f"{HOST}:{here}", topic, seed)
            _say_ready(f"{HOST}:{here}", topics, seed, say, as_json=as_json)
            await stopped
    finally:
        # And no more: from Python 3.12 on `async with` waits until the last client goes, such as one that has connected
        # before the mock did not come up.
        server.close()


async def _listen(
    port: int, upstream: asyncio.Future[str], stop: Callable[[ServiceError | None], None]
) -> asyncio.Server:
    """Server that forwards each connection to the address which `upstream` will have."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, behind = (await upstream).partition(":")
        try:
            answers, requests = await asyncio.open_connection(host, int(behind))
        except OSError:
            writer.close()
            stop(ServiceError("the embedded broker has ended by itself, and all that it held is gone: start it again"))
            return
        await asyncio.gather(_copy(reader, requests), _copy(answers, writer))

    try:
        return await asyncio.start_server(forward, HOST, port)
    except OSError as error:
        raise ConfigError(
            f"{HOST}:{port} cannot be listened at: {error.strerror}; is a broker running there already? Stop it, or "
            f"use it, or choose another port with --port and in kafka.bootstrap_servers"
        ) from error


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on what comes until one side ends, then end the other."""
    with contextlib.suppress(ConnectionError):
        while some := await source.read(_READ):
            target.write(some)
            await target.drain()
    target.close()


def produce(bootstrap: str, topic: str, records: int) -> None:
    """Produce `records` orders as JSON, of which those of one customer have one key. Raises `ServiceError`."""
    failed: list[KafkaError] = []

    def answered(error: KafkaError | None) -> None:
        if error is not None:
            failed.append(error)

    # Java's partitioner: keys are where any other producer of the topic would put them.
    post = Post(Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "log_level": 0}))
    began = int(time.time() * 1000) - records
    for number in range(records):
        customer = f"customer-{number % KEYS}"
        order = {"id": number, "customer": customer, "total": 5 + number * 7 % 200}
        post.send(topic, customer.encode(), json.dumps(order).encode(), (), answered, timestamp=began + number)
    left = post.flush(_SEED_SECONDS)
    if failed or left:
        why = failed[0] if failed else f"{left} records are not acknowledged after {_SEED_SECONDS:.0f} s"
        raise ServiceError(f"topic {topic} could not be seeded: {why}")


def _say_ready(bootstrap: str, topics: Topics, seed: int, say: Callable[[str], None], *, as_json: bool) -> None:
    if as_json:
        # One line: whoever started this reads it and goes on, while we serve.
        say(json.dumps({"bootstrap_servers": [bootstrap], "topics": dict(topics.made), "seeded": seed}))
        return
    say(f"an embedded broker serves at {bootstrap} until Ctrl-C")
    for name, partitions in topics.made:
        held = f", {seed:,} orders in it" if seed and name in topics.seeded else ""
        say(f"  {name}: {partitions} partitions{held}")
    say(WHAT_IT_IS_NOT)


def named(topics: Sequence[str], partitions: int) -> Topics:
    """Topics of the command line: NAME, or NAME:PARTITIONS. Raises `ConfigError`."""
    made: dict[str, int] = {}
    for text in topics:
        name, colon, number = text.partition(":")
        # The mock takes any number of partitions, and with millions the memory of the machine.
        if not has_legal_name(name) or (colon and number not in map(str, range(1, MOST_PARTITIONS + 1))):
            raise ConfigError(
                f"--topic {text}: not a topic with 1 to {MOST_PARTITIONS} partitions; write it such as orders, or "
                f"orders:8"
            )
        made[name] = int(number) if colon else partitions
    return Topics(tuple(made.items()), tuple(made))
