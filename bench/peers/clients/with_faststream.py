"""FastStream on confluent-kafka, run by its own command: record by record, or in batches."""

from __future__ import annotations

import tally
from faststream import FastStream
from faststream.confluent import KafkaBroker, KafkaMessage

# Without the two lines that it logs for every record.
broker = KafkaBroker(tally.BOOTSTRAP, logger=None, config={"fetch.queue.backoff.ms": 10})
app = FastStream(broker)
SUBSCRIPTION = {
    "group_id": tally.GROUP,
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": tally.HEARTBEAT_MS,
    "session_timeout_ms": tally.SESSION_MS,
}


async def handle(message: KafkaMessage) -> None:
    """One record."""
    raw = message.raw_message
    if tally.KIND == "wait":
        await tally.wait_async(raw.partition(), raw.offset(), message.body)
    else:
        tally.handle(raw.partition(), raw.offset(), message.body)


async def handle_batch(message: KafkaMessage) -> None:
    """Several records."""
    for raw, value in zip(message.raw_message, message.body, strict=True):
        tally.handle(raw.partition(), raw.offset(), value)


if tally.FORM == "batch":
    broker.subscriber(tally.TOPIC, batch=True, max_records=500, **SUBSCRIPTION)(handle_batch)
elif tally.KIND == "wait":
    broker.subscriber(tally.TOPIC, max_workers=100, **SUBSCRIPTION)(handle)
else:
    broker.subscriber(tally.TOPIC, **SUBSCRIPTION)(handle)
