"""The tables, walked: every row is taken by some story, and no story asks for a row that is not there."""

from __future__ import annotations

from random import Random

import pytest
from kio.schema.errors import ErrorCode as KafkaErrorCode

from kunicorn.group import classic, consumer, events, states
from kunicorn.group.reactions import Api, Reaction, reaction
from kunicorn.group.states import OVER, State, Table, Transition
from tests.contract.conformance.machine.storm import EVENTS, Storm

LEAST, MOST = 40_000, 1_000_000
"""Events, in all: it goes on until everything was seen."""
LONGEST = 200
STORIES = 2_000
OF_ANOTHER: dict[bool, set[type]] = {
    False: {events.ConsumerHeartbeatAnswered, events.TopicsNamed},
    True: {events.Joined, events.Planned, events.PlanFailed, events.Synced, events.HeartbeatAnswered,
           events.LeaveAnswered},
}  # fmt: skip
"""By whether the member has the consumer protocol: answers that it never gets."""


class Walk:
    """Many storms, and the rows of the table that they took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
        self.rows: set[tuple[State, Transition]] = set()
        self.pairs: set[tuple[State, type]] = set()

        def state_after(table: Table, state: State, transition: Transition) -> State:
            after = states.state_after(table, state, transition)
            self.rows.add((state, transition))
            return after

        self._table, self._consumer = table, table is states.CONSUMER
        monkeypatch.setattr(consumer if self._consumer else classic, "state_after", state_after)
        rng = Random(1)
        told = 0
        while told < LEAST or (told < MOST and (self.rows_missed() or self.pairs_missed())):
            storm = Storm(rng, consumer=self._consumer)
            told += storm.play(LONGEST, leaving=rng.choice((0.0, 0.02)))
            self.pairs |= storm.pairs

    def rows_missed(self) -> set[tuple[State, Transition]]:
        """Rows that no member took."""
        return set(self._table) - self.rows

    def pairs_missed(self) -> set[str]:
        """States in which nobody was told of that event. Before it wants to join a member has asked nobody anything."""
        reachable = {state for state, _ in self._table} - OVER - {State.IDLE}
        pairs: set[tuple[State, type]] = {
            (state, event) for state in reachable for event in set(EVENTS) - OF_ANOTHER[self._consumer]
        }
        return {f"{state.value}: {event.__name__}" for state, event in pairs - self.pairs}


TABLES = pytest.mark.parametrize("table", [states.CLASSIC, states.CONSUMER], ids=["classic", "consumer"])


@TABLES
def test_every_row_of_the_table_is_taken_and_none_is_missed_whatever_a_member_is_told(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(monkeypatch, table)
    assert walk.rows_missed() == set(), "these rows lead nowhere that a member gets to"
    assert walk.pairs_missed() == set()


@TABLES
@pytest.mark.parametrize("over", [State.LEFT, State.FAILED])
def test_a_member_whose_story_is_over_orders_nothing_whatever_it_is_told(
    table: Table, over: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: set[type] = set()
    for seed in range(STORIES):
        storm = Storm(Random(seed), consumer=table is states.CONSUMER)
        # Not for ever: what would end it may have been ordered too long ago for the storm to answer.
        storm.play(LONGEST, leaving=0.1)
        if storm.member.state is not over:
            continue
        storm.ordered = storm.ordered[-4:]
        before = list(storm.ordered)
        for _ in range(10):
            event = storm.something(leaving=0.1)
            told.add(type(event))
            storm.tell(event)
        assert storm.ordered == before
        assert storm.member.state is over
        if len(told) > len(EVENTS) // 2:
            return
    raise AssertionError(f"only {told} were told to a member that is {over.value}")


@pytest.mark.parametrize("api", Api)
def test_every_error_of_every_api_has_a_reaction_that_its_member_knows(api: Api) -> None:
    codes = {*map(int, KafkaErrorCode), *range(-1, 150), 999, 32_767, -32_768}
    assert {reaction(api, code) for code in codes} <= _KNOWN[api]


_MEMBERSHIP = {Reaction.PROCEED, Reaction.RETRY, Reaction.REDISCOVER, Reaction.FAIL}
_CLASSIC = _MEMBERSHIP | {Reaction.REJOIN, Reaction.RESET_GENERATION, Reaction.FORGET_MEMBER}
_KNOWN = {
    Api.FIND_COORDINATOR: {Reaction.PROCEED, Reaction.RETRY, Reaction.FAIL},
    Api.JOIN: _CLASSIC | {Reaction.ADOPT_MEMBER_ID},
    Api.SYNC: _CLASSIC | {Reaction.REJOIN_LATER},
    Api.HEARTBEAT: _CLASSIC,
    Api.COMMIT: _CLASSIC - {Reaction.REJOIN} | {Reaction.GIVE_UP, Reaction.BEAT},
    Api.OFFSET_FETCH: _MEMBERSHIP | {Reaction.GIVE_UP, Reaction.BEAT},
    Api.CONSUMER_HEARTBEAT: _MEMBERSHIP | {Reaction.RESET_GENERATION, Reaction.AWAIT_SLOT, Reaction.FALL_BACK},
}
