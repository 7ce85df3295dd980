"""How many producers a worker has, and under which transactional ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kunicorn.handler.config import ProducingTarget
from kunicorn.testing.memory import MemoryProducer
from kunicorn.worker.assembly import Sending
from kunicorn.worker.client import Login
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.sender import Carrier
from tests.unit.worker.test_settling import SettlingTable

CLIENT: dict[str, str | int | float | bool] = {"transactional.id": "orders-0-0", "transaction.timeout.ms": 10_000}


class NoThreads:
    """Who would take shipments."""

    def __init__(self, outbox: Outbox, carriers: Sequence[Carrier]) -> None:
        self.carriers = carriers

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

    def senders(outbox: Outbox, carriers: Sequence[Carrier]) -> NoThreads:
        threads.append(NoThreads(outbox, carriers))
        return threads[-1]

    target = ProducingTarget(delivery, None, "orders", CLIENT, 10, 1000, 100)
    Sending(target, make, senders).start(table.settling, Login(None), lambda message: None)
    table.consumer.close()
    table.ledger.close()
    assert [properties["transactional.id"] for properties in made] == ids
    assert [len(each.carriers) for each in threads] == [len(ids)]
