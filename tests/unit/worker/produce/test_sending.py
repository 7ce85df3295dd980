"""How many producers a worker has, and under which transactional ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kunicorn.handler.config import ProducingTarget
from kunicorn.testing.memory import MemoryProducer
from kunicorn.worker.assembly import Makers, Sending
from kunicorn.worker.client import Login
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.sender import Sender
from kunicorn.worker.stats import Counters
from tests.unit.worker.tables import SettlingTable

CLIENT: dict[str, str | int | float | bool] = {"transactional.id": "orders-0-0", "transaction.timeout.ms": 10_000}


class NoThreads:
    """Who would take batches."""

    def __init__(self, outbox: Outbox, senders: Sequence[Sender]) -> None:
        self.senders = senders

    def start(self) -> None:
        """The test takes none."""


@pytest.mark.parametrize(
    ("delivery", "ids"),
    [("transactions", ["orders-0-0-a", "orders-0-0-b", "orders-0-0-c"]), ("at_least_once", ["orders-0-0"])],
)
def test_in_transactions_three_producers_take_turns_under_ids_of_their_own(delivery: str, ids: list[str]) -> None:
    table, made = SettlingTable(), list[dict[str, Any]]()
    threads = list[NoThreads]()

    def make(properties: dict[str, Any], logger: Any) -> Any:
        made.append(properties)
        return MemoryProducer([])

    def senders(outbox: Outbox, senders: Sequence[Sender]) -> NoThreads:
        threads.append(NoThreads(outbox, senders))
        return threads[-1]

    target = ProducingTarget(delivery, None, "orders", CLIENT, 10, 1000, 100)
    sending = Sending(target, Login(None), Counters(), Makers(producer=make, senders=senders))
    if sending.in_transactions:
        sending.transactional(table.settling, lambda message: None)
    else:
        sending.acknowledged(table.settling)
    table.consumer.close()
    table.ledger.close()
    assert [properties["transactional.id"] for properties in made] == ids
    assert [len(each.senders) for each in threads] == [len(ids)]
