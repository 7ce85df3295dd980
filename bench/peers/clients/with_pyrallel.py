"""Pyrallel-Consumer: a coroutine for each record, or functions in processes; in the order of keys, its default."""

from __future__ import annotations

import asyncio
import signal

import tally
from pyrallel_consumer.config import KafkaConfig
from pyrallel_consumer.consumer import PyrallelConsumer
from pyrallel_consumer.dto import ExecutionMode, WorkItem


def handle(item: WorkItem) -> None:
    """One record, in one of the processes."""
    tally.handle(item.tp.partition, item.offset, item.payload)


async def handle_async(item: WorkItem) -> None:
    """One record."""
    if tally.KIND == "wait":
        await tally.wait_async(item.tp.partition, item.offset, item.payload)
    else:
        handle(item)


async def main() -> None:
    """Until SIGTERM."""
    in_processes = tally.FORM == "processes"
    config = KafkaConfig(
        BOOTSTRAP_SERVERS=[tally.BOOTSTRAP],
        CONSUMER_GROUP=tally.GROUP,
        SESSION_TIMEOUT_MS=tally.SESSION_MS,
        dlq_enabled=False,
        HEARTBEAT_INTERVAL_MS=tally.HEARTBEAT_MS,
        FETCH_QUEUE_BACKOFF_MS=10,
    )
    config.parallel_consumer.execution.mode = ExecutionMode.PROCESS if in_processes else ExecutionMode.ASYNC
    config.parallel_consumer.execution.process_config.process_count = tally.WORKERS
    consumer = PyrallelConsumer(config=config, worker=handle if in_processes else handle_async, topic=tally.TOPIC)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await consumer.start()
    await stopped.wait()
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
