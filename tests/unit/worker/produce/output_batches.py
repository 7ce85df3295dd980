"""What waits to be produced, without threads."""

from __future__ import annotations

from kunicorn.handler.outputs import Outgoing
from kunicorn.worker.produce.outbox import Entry, Limits, Outbox, OutputBatch
from tests.fakes.origins import FakeOrigin

OUTPUT = Outgoing("out", b"v", None, None, -1, 0)


def entry(of: FakeOrigin, offset: int, count: int = 1) -> Entry:
    return Entry(of, offset, offset + count, [OUTPUT])


def outbox(records: int = 100, nbytes: int = 1000, seconds: float = 0.0) -> Outbox:
    return Outbox(Limits(records, nbytes, seconds))


def taken(box: Outbox, sender: int = 0) -> OutputBatch:
    """What is due."""
    box.hurry()
    batch = box.take(sender)
    assert batch is not None
    return batch
