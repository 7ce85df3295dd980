"""A topic that takes nothing, as it was deleted or its right withdrawn, refuses each output of a batch: what that costs
grows with the batch, and no faster. Else the brokers would end the transaction, and `CallWatch` the worker, meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from kunicorn.handler.outputs import Outgoing
from kunicorn.ipc.messages import CommitAs, CommitWanted, FromWorker
from kunicorn.testing.memory import MemoryProducer
from kunicorn.worker.produce.outbox import Entry, Limits, Outbox, OutputBatch, Step, TransactionOrder
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import Acknowledging, Channel
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.produce.transactions import GroupMetadata, Shared, Transactions
from kunicorn.worker.stats import Counters
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import taken
from tests.unit.worker.produce.real_senders import Table

RECORDS = 200
LOOKS = 10
"""At each record, in all that is done about a batch."""
REFUSING = "not a legal name"


class _Watched(FakeOrigin):
    looks = 0

    def takes_output_at(self, offset: int) -> bool:
        self.looks += 1
        return super().takes_output_at(offset)


def at_least_once(box: Outbox, batch: OutputBatch) -> None:
    channel = Channel(lambda: cast(Any, MemoryProducer([])), RequestSizes({}))
    Acknowledging(channel, box, Table(), SendTelemetry(Counters())).deliver(batch)


def in_a_transaction(box: Outbox, batch: OutputBatch) -> None:
    group_metadata = GroupMetadata()

    def hear(message: FromWorker) -> None:
        if isinstance(message, CommitWanted):
            group_metadata.answered(CommitAs(message.number, 1, "m", None))

    telemetry = SendTelemetry(Counters())
    shared = Shared(
        "g", box, cast(Any, Table()), telemetry, group_metadata, TransactionOrder(), hear, 10.0, RequestSizes({})
    )
    sender = Transactions(cast(Any, MemoryProducer([])), shared)
    step = sender.start(batch)
    while step is not Step.ABORT:
        step = sender.advance(step)


@pytest.mark.parametrize("deliver", [at_least_once, in_a_transaction])
def test_a_batch_of_which_every_output_is_refused_has_each_record_looked_at_a_few_times(
    deliver: Callable[[Outbox, OutputBatch], None],
) -> None:
    box, origins = Outbox(Limits(RECORDS, 1 << 20, 0.0)), [_Watched(number) for number in range(1, 2 * RECORDS + 1)]
    for origin in origins[:RECORDS]:
        box.put([Entry(origin, 0, 1, [Outgoing(REFUSING, b"v", None, None, -1, 0)])], 1, 0)
    batch = taken(box)
    for origin in origins[RECORDS:]:
        box.put([Entry(origin, 0, 1, [Outgoing(REFUSING, b"v", None, None, -1, 0)])], 1, 0)
    deliver(box, batch)
    assert all(len(origin.refusals) == 1 for origin in origins[:RECORDS])
    assert max(origin.looks for origin in origins) <= LOOKS
