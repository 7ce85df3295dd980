"""Outputs are counted by the inputs that they name."""

from __future__ import annotations

from tests.chaos.offsets import Offsets
from tests.soak.outputs import counted


def handled(*offsets: int) -> Offsets:
    found = Offsets()
    for offset in offsets:
        found.add(offset)
    return found


def test_an_input_without_an_output_is_missing_if_it_was_handled() -> None:
    made = counted([(0, 0), (0, 2), (1, 0)])
    assert (made.made, made.twice) == (3, 0)
    assert made.missing({0: handled(0, 1, 2, 3), 1: handled(0)}, {0: 4, 1: 1}) == 2
    assert made.missing({0: handled(0, 2), 1: handled(0)}, {0: 4, 1: 1}) == 0, "nobody handled the others"


def test_an_output_that_is_there_twice_is_told_wherever_it_comes() -> None:
    assert counted([(0, 0), (0, 1), (0, 0)]).twice == 1
    assert counted([(0, 1), (0, 0), (0, 1), (0, 1)]).twice == 2


def test_a_partition_without_any_output_has_all_missing() -> None:
    assert counted([]).missing({0: handled(0, 1, 2)}, {0: 3}) == 3
