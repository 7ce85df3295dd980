"""The handler tried on the latest records there are. Nothing is committed; what the handler itself does is real."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from kunicorn.check import children
from kunicorn.check.findings import Finding
from kunicorn.check.handler import no_handler
from kunicorn.clients import consumer_properties, handler_orders
from kunicorn.errors import ConfigError, ExitCode, PeerError
from kunicorn.pipes.logins import Token
from kunicorn.pipes.orders import HandlerOrder
from kunicorn.settings import Settings
from kunicorn.tables import printable
from kunicorn.topics import TopicPartition
from kunicorn.visits import REQUEST_TIMEOUT, fetch_token, open_cluster
from kunicorn.wire.log_offsets import EARLIEST, LATEST, list_offsets

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from kunicorn.check.trying import main
main()
"""
TRIAL_TIMEOUT = 120.0
"""Seconds for fetching and handling together."""


class Order(msgspec.Struct, frozen=True):
    """What the child is told, on its standard input. Carries secrets."""

    group: str
    handlers: list[HandlerOrder]
    client: dict[str, str | int | float | bool]
    token: Token | None
    ranges: list[tuple[str, int, int, int]]
    """Topic, partition, first offset, and the end."""
    records: int
    """So many of those, the youngest."""
    delivery: str | None = None
    output_topic: str | None = None
    """How what the handler returns would be sent, and where it goes if it names no topic. Nothing is sent here."""


class Result(msgspec.Struct, frozen=True):
    """What the child answers."""

    handled: int
    failed: int
    seconds: float
    """Spent in the handler."""
    worst: float
    outcomes: dict[str, int]
    """What the handler said other than that it is done: Skip, DeadLetter, …"""
    error: str
    """The first failure, with the user's part of its traceback; empty without one."""


def tried(settings: Settings, records: int, timeout: float = TRIAL_TIMEOUT) -> Finding:
    """Let a process of its own fetch and handle them. Blocks. What it prints goes to standard error, line by line."""
    try:
        order = _order(settings, records)
    except (PeerError, ConfigError) as error:
        return Finding("trial", f"the latest records cannot be found: {error}", ExitCode.CONFIGURATION)
    if not order.ranges:
        return Finding("trial", "the topics hold no records to try the handler on", warning=True)
    ended = children.run(["-c", _PROGRAM], [], msgspec.json.encode(order), timeout, _show)
    try:
        result = msgspec.json.decode(ended.said, type=Result)
    except msgspec.DecodeError:
        why = ended.said or ended.how
        return no_handler(f"trying the handler on {records} records ended early: {why}")
    return _finding(result)


def _show(line: str) -> None:
    print(f"handler | {printable(line)}", file=sys.stderr, flush=True)


def _finding(result: Result) -> Finding:
    total = result.handled + result.failed
    others = "".join(f", {count} said {name}" for name, count in result.outcomes.items())
    pace = f"{result.seconds / max(1, total) * 1000:.1f} ms each, the longest call {result.worst * 1000:.0f} ms"
    if result.failed:
        return Finding(
            "trial", f"{result.failed} of {total} records failed ({pace}){others}: {result.error}", ExitCode.HANDLER
        )
    return Finding("trial", f"{total} records handled, {pace}{others}; nothing is committed")


def _order(settings: Settings, records: int) -> Order:
    with asyncio.Runner() as runner:
        token = runner.run(fetch_token(settings.kafka))
        ranges = runner.run(_ranges(settings, token, records))
    return Order(
        settings.group.id,
        handler_orders(settings),
        {**consumer_properties(settings, f"{settings.kafka.client_id}-check"), "log_level": 0},
        token,
        ranges,
        records,
        settings.producing.delivery,
        settings.producing.topic,
    )


async def _ranges(settings: Settings, token: Token | None, records: int) -> list[tuple[str, int, int, int]]:
    """The last offsets of each partition, more than `records` in all where there are enough."""
    from kunicorn.check.cluster import consumed

    cluster = open_cluster(settings.kafka, token)
    try:
        topics = settings.assign.wanted.topics or settings.group.topics
        patterns = any(topic.startswith("^") for topic in topics)
        metadata = await cluster.refresh(None if patterns else topics)
        every = [TopicPartition(t, n) for t in consumed(topics, metadata) for n in metadata.topics[t].partitions]
        firsts, ends = [
            await list_offsets(cluster, dict.fromkeys(every, at), 0, REQUEST_TIMEOUT) for at in (EARLIEST, LATEST)
        ]
    finally:
        await cluster.close()
    filled = {tp: (firsts[tp].offset, ends[tp].offset) for tp in every if ends[tp].offset > firsts[tp].offset >= 0}
    share = -(-records // len(filled)) if filled else 0
    return [(tp.topic, tp.partition, max(first, end - share), end) for tp, (first, end) in filled.items()]
