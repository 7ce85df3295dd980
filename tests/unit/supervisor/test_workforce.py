"""The workers as a whole: who is replaced when certificates are renewed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.workers.pool import Arbiter, Pool, WorkerSlot
from kunicorn.supervisor.workers.rolling import ReplacementFailed
from kunicorn.supervisor.workforce import Workforce
from tests.fakes.stage import settings_with

RENEWED = 100.0


class Crew:
    """Workers that started before the certificates were renewed. Of those in `failing` no successor starts."""

    def __init__(self, workers: int, failing: set[int]) -> None:
        self.failing = failing
        self.replaced: list[int] = []
        arbiter: Any = mock.Mock(spec=Arbiter, pool=Pool(workers), listener=mock.Mock())
        for slot in arbiter.pool.slots:
            slot.process = SimpleNamespace(started_at=RENEWED - 1)
        in_force = SettingsInForce(settings_with("earliest"), mock.Mock())
        self.workforce = Workforce(in_force, mock.Mock(), mock.Mock(), arbiter, Metrics())
        self.workforce.recycler._replacer.replace = self.replace  # type: ignore[method-assign]

    async def replace(self, slot: WorkerSlot, *_: Any, **__: Any) -> bool:
        if slot.number in self.failing:
            raise ReplacementFailed("Cannot allocate memory")
        self.replaced.append(slot.number)
        slot.process = SimpleNamespace(started_at=RENEWED + 1)  # type: ignore[assignment]
        return True


async def test_where_one_successor_does_not_start_the_others_are_not_replaced_once_more() -> None:
    crew = Crew(3, failing={1})
    assert not await crew.workforce._replace_all(RENEWED)
    assert not await crew.workforce._replace_all(RENEWED)
    crew.failing.clear()
    assert await crew.workforce._replace_all(RENEWED)
    assert crew.replaced == [0, 2, 1]
    assert await crew.workforce._replace_all(RENEWED + 2)
    assert crew.replaced == [0, 2, 1, 0, 1, 2], "with the next files"
