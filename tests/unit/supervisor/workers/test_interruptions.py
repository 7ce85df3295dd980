"""What a worker is told when a drain budget is over."""

from __future__ import annotations

import signal

from kunicorn.ipc.messages import DrainOver
from tests.fakes.played_workers import PlayedWorker


class Signalled(PlayedWorker):
    """Keeps the signals that it gets."""

    def __init__(self) -> None:
        super().__init__(0)
        self.signals: list[signal.Signals] = []

    def _signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


def test_the_end_of_a_drain_budget_is_told_to_the_control_thread_and_to_the_main_thread() -> None:
    """Threads and tasks must not wait for a call in the main thread, nor that one for anything."""
    worker = Signalled()
    worker.interrupt_handler([7])
    assert (worker.told, worker.signals) == ([DrainOver([7])], [signal.SIGUSR1])
