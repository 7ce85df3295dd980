"""Faust: an agent, run by its own command, without its web server and its leader's topics."""

from __future__ import annotations

import faust
import tally

app = faust.App(
    tally.GROUP,
    broker=f"kafka://{tally.BOOTSTRAP}",
    store="memory://",
    web_enabled=False,
    topic_disable_leader=True,
    consumer_auto_offset_reset="earliest",
    broker_heartbeat_interval=tally.HEARTBEAT_MS / 1000,
    broker_session_timeout=tally.SESSION_MS / 1000,
)
topic = app.topic(tally.TOPIC, key_serializer="raw", value_serializer="raw")


@app.agent(topic, concurrency=100 if tally.KIND == "wait" else 1)
async def consume(stream: faust.Stream) -> None:
    """Record by record."""
    async for event in stream.events():
        message = event.message
        if tally.KIND == "wait":
            await tally.wait_async(message.partition, message.offset, event.value)
        else:
            tally.handle(message.partition, message.offset, event.value)
