"""arroyo: its stream processor with a task run in the consumer's process, in threads, or in processes."""

from __future__ import annotations

import signal

import tally
from arroyo.backends.kafka import KafkaConsumer, KafkaPayload
from arroyo.backends.kafka.configuration import build_kafka_consumer_configuration
from arroyo.commit import ONCE_PER_SECOND
from arroyo.processing.processor import StreamProcessor
from arroyo.processing.strategies import (
    CommitOffsets,
    ProcessingStrategy,
    ProcessingStrategyFactory,
    RunTask,
    RunTaskInThreads,
    RunTaskWithMultiprocessing,
)
from arroyo.processing.strategies.run_task_with_multiprocessing import MultiprocessingPool
from arroyo.types import BrokerValue, Commit, Message, Partition, Topic

THREADS = 8
BLOCK_BYTES = 16 * 1024 * 1024


def handle(message: Message[KafkaPayload]) -> None:
    """One record."""
    place = message.value
    assert isinstance(place, BrokerValue)
    tally.handle(place.partition.index, place.offset, place.payload.value)


class Strategy(ProcessingStrategyFactory[KafkaPayload]):
    """The task, then the offsets' commit."""

    def __init__(self) -> None:
        self._pool = MultiprocessingPool(tally.WORKERS) if tally.FORM == "processes" else None

    def create_with_partitions(self, commit: Commit, partitions: dict[Partition, int]) -> ProcessingStrategy:
        """On every assignment."""
        then = CommitOffsets(commit)
        if tally.FORM == "threads":
            return RunTaskInThreads(handle, THREADS, 2 * THREADS, then)
        if self._pool is None:
            return RunTask(handle, then)
        return RunTaskWithMultiprocessing(
            handle,
            then,
            max_batch_size=5000,
            max_batch_time=1.0,
            pool=self._pool,
            input_block_size=BLOCK_BYTES,
            output_block_size=BLOCK_BYTES,
            prefetch_batches=True,
        )

    def shutdown(self) -> None:
        """The processes, too."""
        if self._pool is not None:
            self._pool.close()


def main() -> None:
    """Until SIGTERM."""
    configuration = build_kafka_consumer_configuration(
        {},
        tally.GROUP,
        auto_offset_reset="earliest",
        bootstrap_servers=[tally.BOOTSTRAP],
        enable_auto_commit=False,
        override_params={
            "heartbeat.interval.ms": tally.HEARTBEAT_MS,
            "session.timeout.ms": tally.SESSION_MS,
            "fetch.queue.backoff.ms": 10,
        },
    )
    consumer = KafkaConsumer(configuration)
    processor = StreamProcessor(consumer, Topic(tally.TOPIC), Strategy(), ONCE_PER_SECOND, join_timeout=5.0)
    signal.signal(signal.SIGTERM, lambda *_: processor.signal_shutdown())
    processor.run()


if __name__ == "__main__":
    main()
