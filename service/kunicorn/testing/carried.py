"""Outputs delivered by the runner's own thread, at moments that are the same in every run."""

from __future__ import annotations

from kunicorn.worker.outbox import Outbox
from kunicorn.worker.producing import Carrier


class Carried:
    """Takes the sender's place, whose thread would outlive a test and decide by the clock."""

    def __init__(self, outbox: Outbox, carrier: Carrier) -> None:
        self._outbox = outbox
        self._carrier = carrier

    def start(self) -> None:
        """Nothing goes by itself: see `deliver`."""

    def deliver(self) -> bool:
        """Deliver what waits; False if there is nothing."""
        if not self._outbox.waits:
            return False
        self._outbox.hurry()
        self._carrier.deliver(self._outbox.take())
        self._outbox.done()
        return True
