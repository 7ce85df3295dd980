"""The ledger under writers that are killed."""

from __future__ import annotations

import pytest

from tests.system.bare_worker.ledger_torture import torture


def test_no_reading_is_impossible_while_writers_are_killed() -> None:
    reader = torture(reads=300_000, kills=8)
    assert reader.changes > 100, "a busy machine shows few; none would mean that nothing was tested"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_reading_of_ten_million_is_impossible_while_writers_are_killed() -> None:
    assert torture(reads=10_000_000, kills=300).readings > 5_000_000
