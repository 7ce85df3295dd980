"""The tables of members' states: a step is in them, or refused."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest

from kunicorn.group.states import CLASSIC, CONSUMER, IllegalTransition, State, Table, Transition, state_after


@pytest.mark.parametrize("table", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_every_step_is_in_the_table_or_refused(table: Table) -> None:
    taken = {}
    for state, transition in product(State, Transition):
        with suppress(IllegalTransition):
            taken[state, transition] = state_after(table, state, transition)
    assert taken == table
