"""Outputs are counted by the inputs that they name."""

from __future__ import annotations

from tests.chaos.offsets import Offsets
from tests.soak.outputs import Output, Place, counted


def handled(*offsets: int) -> Offsets:
    found = Offsets()
    for offset in offsets:
        found.add(offset)
    return found


A, B = (0, 0), (1, 0)
"""Logs of two partitions."""


def outputs(*places: Place) -> list[Output]:
    return [Output(log, offset) for log, offset in places]


def test_an_input_without_an_output_is_missing_if_it_was_handled() -> None:
    made = counted(outputs((A, 0), (A, 2), (B, 0)))
    assert (made.made, made.twice) == (3, 0)
    owed = {A: range(4), B: range(1)}
    assert made.missing({A: handled(0, 1, 2, 3), B: handled(0)}, owed) == 2
    assert made.missing({A: handled(0, 2), B: handled(0)}, owed) == 0, "nobody handled the others"


def test_an_output_that_is_there_twice_is_told_wherever_it_comes() -> None:
    assert counted(outputs((A, 0), (A, 1), (A, 0))).twice == 1
    assert counted(outputs((A, 1), (A, 0), (A, 1), (A, 1))).twice == 2


def test_a_partition_without_any_output_has_all_missing() -> None:
    assert counted([]).missing({A: handled(0, 1, 2)}, {A: range(3)}) == 3


def test_offsets_that_were_taken_twice_have_an_output_for_each_log() -> None:
    anew = (0, 1)
    made = counted(outputs((A, 0), (A, 1), (anew, 1), (anew, 2)))
    assert made.twice == 0
    inputs = {A: handled(0, 1, 2), anew: handled(1, 2, 3)}
    assert made.missing(inputs, {A: range(1), anew: range(1, 3)}) == 0
    assert made.missing(inputs, {A: range(3), anew: range(1, 4)}) == 2


def test_an_input_that_was_handled_again_behind_its_committed_output_is_told() -> None:
    made = [Output(A, 0, made=10), Output(A, 1, made=30), Output(A, 2, made=10), Output(B, 0, made=10)]
    again = {(A, 0): 20, (A, 1): 20, (B, 0): 10}
    assert counted(made, again).early == [(A, 0)], "the outputs of A 1 and B 0 are of the later call, A 2 had but one"
