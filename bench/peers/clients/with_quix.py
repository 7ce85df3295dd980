"""Quix Streams: a streaming data frame that calls a function with every record."""

from __future__ import annotations

import tally
from quixstreams import Application, message_context


def handle(value: bytes) -> None:
    """One record; where it lies is in the context."""
    context = message_context()
    tally.handle(context.partition, context.offset, value)


def main() -> None:
    """Until SIGTERM, which the application sees to."""
    app = Application(
        broker_address=tally.BOOTSTRAP,
        consumer_group=tally.GROUP,
        auto_offset_reset="earliest",
        use_changelog_topics=False,
        loglevel="WARNING",
        consumer_extra_config={
            "heartbeat.interval.ms": tally.HEARTBEAT_MS,
            "session.timeout.ms": tally.SESSION_MS,
            "fetch.queue.backoff.ms": 10,
        },
    )
    app.dataframe(app.topic(tally.TOPIC, key_deserializer="bytes", value_deserializer="bytes")).update(handle)
    app.run()


if __name__ == "__main__":
    main()
