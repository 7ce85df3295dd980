"""The senders of a worker whose transactions are stepped through by the test, on brokers in memory."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kunicorn.backoff import Backoff
from kunicorn.ipc.messages import CommitAs, CommitOver, CommitWanted, FromWorker
from kunicorn.worker.produce import transactions
from kunicorn.worker.produce.outbox import ENDS, Outbox, OutputBatch, Step, TransactionOrder
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.produce.transactions import GroupMetadata, Shared, Table, Transactions
from kunicorn.worker.stats import Counters
from tests.fakes.transactional_brokers import TransactionalBrokers, TransactionalProducer


def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to wait says so at once; it is the test that comes back to it."""
    for name in ("_WAIT_SECONDS", "_AGAIN_SECONDS"):
        monkeypatch.setattr(transactions, name, 0.0)
    monkeypatch.setattr(transactions, "BACKOFF", Backoff(0.0, 0.0))


class SteppedSenders:
    """Which of them takes its next step, the test says. `may_commit`: whether the supervisor answers as whom."""

    def __init__(self, brokers: TransactionalBrokers, outbox: Outbox, table: Table, producers: int) -> None:
        self.windows: set[int] = set()
        self.may_commit = True
        self.steps: list[Step | None] = [None] * producers
        self._outbox = outbox
        self._asked: list[int] = []
        self._group_metadata = GroupMetadata()
        shared = Shared(
            "group",
            outbox,
            table,
            SendTelemetry(Counters()),
            self._group_metadata,
            TransactionOrder(),
            self._hear,
            3600.0,
            RequestSizes({}),
        )
        self.every = [Transactions(cast(Any, TransactionalProducer(brokers)), shared) for _ in range(producers)]
        self._batches: list[OutputBatch | None] = [None] * producers

    def take(self) -> int:
        """What is due; by whom."""
        turn = next(number for number in range(len(self.every)) if self.steps[number] is None and self._takes(number))
        batch = self._batches[turn]
        assert batch is not None
        self.steps[turn] = self.every[turn].start(batch)
        return turn

    def take_if_possible(self) -> None:
        """What is due, unless whose turn it is has something under way."""
        if self._outbox.waits and self.steps[self._outbox._turn] is None:
            self.take()

    def _takes(self, number: int) -> bool:
        if self._outbox._turn != number:
            return False
        self._batches[number] = self._outbox.take(number)
        return self._batches[number] is not None

    def advance(self, number: int) -> Step:
        """One step of one of them. Raises `Fenced`."""
        step = self.steps[number]
        if step is None:
            return Step.DONE
        following = self.steps[number] = self.every[number].advance(step)
        if following in ENDS:
            self.steps[number] = None
            batch = self._batches[number]
            assert batch is not None
            self.every[number].end(following)
            self._outbox.done(batch)
        return following

    def until(self, number: int, step: Step) -> None:
        """Let that one go on until that step comes next."""
        for _ in range(50):
            if self.steps[number] is step or self.advance(number) is step:
                return
        raise AssertionError(f"{number} stays at {self.steps[number]}, before {step}")

    def finish(self) -> None:
        """Everything, whoever can."""
        for _ in range(300):
            for number in range(len(self.every)):
                self.advance(number)
            self.take_if_possible()
            if not self._outbox.waits and not any(self.steps):
                return
        raise AssertionError(f"it does not end: {self.steps}")

    def answer(self) -> None:
        """As whom to commit, if that is known."""
        while self.may_commit and self._asked:
            number = self._asked.pop(0)
            self.windows.add(number)
            self._group_metadata.answered(CommitAs(number, 1, "m", None))

    def _hear(self, message: FromWorker) -> None:
        assert isinstance(message, CommitWanted | CommitOver)
        if isinstance(message, CommitOver):
            self.windows.remove(message.number)
        else:
            self._asked.append(message.number)
            self.answer()
