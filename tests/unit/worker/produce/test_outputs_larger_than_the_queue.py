"""Outputs for which the client's own queue has no room, however empty it is: the real client and the real sender."""

from __future__ import annotations

import threading

from kunicorn.handler.outputs import Outgoing
from kunicorn.worker.produce.outbox import Entry
from kunicorn.worker.produce.sender import NotDelivered
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import outbox, taken
from tests.unit.worker.produce.real_senders import Table, acknowledging

WITHIN = 120.0
SMALLEST_QUEUE = 1024 * 1024
NOWHERE = "127.0.0.1:1"


def test_an_output_that_is_larger_than_the_clients_queue_is_refused_as_too_large() -> None:
    box, table, origin = outbox(nbytes=10 * SMALLEST_QUEUE), Table(), FakeOrigin(1)
    sender = acknowledging(NOWHERE, box, table, buffer_memory=1)
    box.put([Entry(origin, 0, 1, [Outgoing("out", bytes(2 * SMALLEST_QUEUE), None, None, -1, 0)])], 1, 1)
    sending = threading.Thread(target=sender.deliver, args=[taken(box)], daemon=True)
    sending.start()
    sending.join(WITHIN)
    assert not sending.is_alive()
    assert (table.done, table.rewound) == ([], [1])
    ((_, _, error),) = origin.refusals
    assert isinstance(error, NotDelivered)
    assert "raise producing.buffer_memory, of which this is more than twice" in str(error)
