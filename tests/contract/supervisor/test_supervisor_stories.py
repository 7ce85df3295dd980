"""Whatever happens to members, brokers and workers, no record is lost, no partition left, no offset taken back."""

from __future__ import annotations

import pytest

from tests.contract.conformance.endurance import came_through
from tests.contract.stories import first_and_more, seeds_of_today
from tests.contract.supervisor.defects.recorded import EACH_RUN, LONG
from tests.contract.supervisor.plan import AWAY_FROM, BUSY_FROM, LATE_FROM, PERSONS_FROM
from tests.contract.supervisor.stories import STORIES, told

_SEED = 1
_PARTS, _SEEDS_LONG = 3, 10
_KINDS = {"plain": 0, "persons": PERSONS_FROM, "away": AWAY_FROM, "late": LATE_FROM, "busy": BUSY_FROM}
_EACH, _EACH_LONG = EACH_RUN // _PARTS, LONG // _SEEDS_LONG // len(_KINDS)
"""Of each seed."""


@pytest.mark.parametrize("part", first_and_more(0, _PARTS))
def test_every_story_holds(part: int) -> None:
    found = told(_SEED, range(part * _EACH, (part + 1) * _EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, _PARTS))
def test_every_story_of_people_and_of_several_records_in_hand_holds(part: int) -> None:
    found = told(PERSONS_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, _PARTS))
def test_every_story_of_coordinators_that_are_away_during_a_rebalance_holds(part: int) -> None:
    found = told(AWAY_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, _PARTS))
def test_every_story_of_topics_of_which_brokers_hear_late_holds(part: int) -> None:
    found = told(LATE_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, _PARTS))
def test_every_story_of_workers_that_read_late_what_they_are_told_holds(part: int) -> None:
    found = told(BUSY_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_SEEDS_LONG))
@pytest.mark.parametrize("kind", _KINDS)
def test_every_one_of_many_stories_holds(kind: str, part: int) -> None:
    found = told(seeds_of_today(_SEEDS_LONG, _KINDS[kind])[part], range(_EACH_LONG))
    assert found is None, str(found)
    part += _KINDS[kind]
    came_through("stories after which a group's members came to rest", "supervisor", _EACH_LONG, part=part)


def test_a_story_is_the_same_each_time_and_in_each_process() -> None:
    first = STORIES.traces(7, range(2))
    assert STORIES.traces(7, range(2)) == first
    assert STORIES.printed(7, 1) == first[1]
