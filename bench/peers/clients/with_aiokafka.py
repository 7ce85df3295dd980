"""aiokafka at its best: `getmany`, on uvloop, the records of a partition at once."""

from __future__ import annotations

import asyncio
import signal

import tally
import uvloop
from aiokafka import AIOKafkaConsumer, ConsumerRecord


async def consume(consumer: AIOKafkaConsumer) -> None:
    """Partitions side by side where handlers wait, each in its order."""
    while True:
        found = await consumer.getmany(timeout_ms=1000)
        if tally.KIND == "wait":
            await asyncio.gather(*(_wait_for_each(run) for run in found.values()))
            continue
        for tp, run in found.items():
            tally.handle_run(tp.partition, [record.offset for record in run], [record.value for record in run])


async def _wait_for_each(run: list[ConsumerRecord]) -> None:
    for record in run:
        await tally.wait_async(record.partition, record.offset, record.value)


async def main() -> None:
    """Until SIGTERM."""
    consumer = AIOKafkaConsumer(
        tally.TOPIC,
        bootstrap_servers=tally.BOOTSTRAP,
        group_id=tally.GROUP,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=tally.HEARTBEAT_MS,
        session_timeout_ms=tally.SESSION_MS,
    )
    async with consumer:
        task = asyncio.ensure_future(consume(consumer))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


uvloop.run(main())
