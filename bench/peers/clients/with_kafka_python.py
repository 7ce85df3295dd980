"""kafka-python: `poll`, the records of a partition at once."""

from __future__ import annotations

import signal
import sys

import tally
from kafka import KafkaConsumer


def main() -> None:
    """Until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    consumer = KafkaConsumer(
        tally.TOPIC,
        bootstrap_servers=tally.BOOTSTRAP,
        group_id=tally.GROUP,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=tally.HEARTBEAT_MS,
        session_timeout_ms=tally.SESSION_MS,
    )
    try:
        while True:
            for tp, run in consumer.poll(timeout_ms=1000).items():
                tally.handle_run(tp.partition, [record.offset for record in run], [record.value for record in run])
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
