"""In which order the words of a slot are stored and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kunicorn.ipc import ledger as ledger_module
from kunicorn.ipc.ledger import CONSUMED, GRANT, Ledger
from kunicorn.positions import Position

FENCE = "a fence"


class Noted:
    """Memory that notes which words of the slot are stored or loaded."""

    def __init__(self, memory: Any, base: int, notes: list[object]) -> None:
        self._memory, self._base, self._notes = memory, base, notes

    def __getitem__(self, at: int) -> int:
        self._notes.append(at - self._base)
        return int(self._memory[at])

    def __setitem__(self, at: int, value: int) -> None:
        self._notes.append(at - self._base)
        self._memory[at] = value

    def release(self) -> None:
        self._memory.release()


@pytest.fixture
def notes() -> list[object]:
    return []


@pytest.fixture
def ledger(notes: list[object], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    fence = ledger_module._fence

    def noted() -> None:
        notes.append(FENCE)
        fence()

    monkeypatch.setattr(ledger_module, "_fence", noted)
    found = Ledger.create(2)
    cells: Any = Noted(found.cells, Ledger.index(0), notes)
    found.cells = cells
    yield found
    found.close()


def test_a_new_grant_is_stored_behind_a_fence_that_is_behind_its_offset(ledger: Ledger, notes: list[object]) -> None:
    ledger.open_slot(0, 7, Position(42, 3))
    assert notes[0] == GRANT, "first nobody's"
    assert notes[-2:] == [FENCE, GRANT]
    assert CONSUMED in notes[1:-2]


def test_the_offset_is_loaded_behind_a_fence_that_is_behind_its_grant(ledger: Ledger, notes: list[object]) -> None:
    ledger.open_slot(0, 7, Position(42, 3))
    notes.clear()
    assert ledger.read(0, 7).consumed == Position(42, 3)
    assert notes[:3] == [GRANT, FENCE, CONSUMED]
    assert notes.count(FENCE) == 1
