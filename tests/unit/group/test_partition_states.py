"""The table of a partition's states, walked."""

from __future__ import annotations

from itertools import product

import pytest

from kunicorn.group.states import TRANSITIONS, IllegalTransition, PartitionEvent, PartitionState, advance


def test_every_event_is_in_the_table_or_refused() -> None:
    for state, event in product(PartitionState, PartitionEvent):
        if (state, event) in TRANSITIONS:
            assert advance(state, event) is TRANSITIONS[state, event], (state, event)
        else:
            with pytest.raises(IllegalTransition, match=state.value):
                advance(state, event)


def test_a_revoke_is_possible_from_every_state_that_is_ours() -> None:
    """Invariant 7: nothing that is assigned can get stuck because a revoke did not fit."""
    for state in PartitionState:
        if state is not PartitionState.RELEASED:
            assert (state, PartitionEvent.STOP) in TRANSITIONS


def test_every_state_leads_to_released_and_only_released_leads_nowhere() -> None:
    reachable = {PartitionState.RELEASED}
    while True:
        more = {s for (s, _), after in TRANSITIONS.items() if after in reachable} - reachable
        if not more:
            break
        reachable |= more
    assert reachable == set(PartitionState)
    assert not [row for row in TRANSITIONS if row[0] is PartitionState.RELEASED]


def test_a_death_of_the_worker_never_takes_a_partition_from_us() -> None:
    """Invariant 6: in every state that a worker can hold, its death leaves the partition ours or on its way out."""
    ours = (PartitionState.STARTING, PartitionState.RUNNING, PartitionState.PAUSED, PartitionState.MOVING)
    for state in ours:
        assert advance(state, PartitionEvent.LET_GO) is not PartitionState.RELEASED
