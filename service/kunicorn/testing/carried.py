"""Outputs delivered by the runner's own thread, at moments that are the same in every run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from kunicorn.worker.outbox import Outbox
from kunicorn.worker.producing import Carrier


class Carried:
    """Takes the senders' place, whose threads would outlive a test and decide by the clock."""

    def __init__(self, outbox: Outbox, carriers: Sequence[Carrier]) -> None:
        self._outbox = outbox
        self._turns = cycle(enumerate(carriers))

    def start(self) -> None:
        """Nothing goes by itself: see `deliver`."""

    def deliver(self) -> bool:
        """Deliver what waits; False if there is nothing."""
        if not self._outbox.waits:
            return False
        self._outbox.hurry()
        turn, carrier = next(self._turns)
        shipment = self._outbox.take(turn)
        assert shipment is not None
        carrier.deliver(shipment)
        self._outbox.done(shipment)
        return True
