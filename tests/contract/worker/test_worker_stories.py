"""Whatever happens to a worker, no record is lost, passed over, handled out of order or left behind."""

from __future__ import annotations

import pytest

from kunicorn.worker import loop
from tests.compiled import compiled
from tests.contract.conformance.endurance import came_through
from tests.contract.stories import first_and_more, seeds_of_today
from tests.contract.worker.plan import DECODERS_FROM, GATES_FROM, OWN_FROM, STORES_FROM
from tests.contract.worker.stories import STORIES, told

_SEED = 1
_EACH = 125
_EACH_LONG, _SEEDS_LONG = 10_000, 4
"""Of each kind of story."""
_KINDS = {"plain": 0, "stores": STORES_FROM, "own": OWN_FROM, "gates": GATES_FROM, "decoders": DECODERS_FROM}


@pytest.mark.parametrize("part", first_and_more(0, 8))
def test_every_story_holds(part: int) -> None:
    found = told(_SEED, range(part * _EACH, (part + 1) * _EACH))
    assert found is None, str(found)


def test_every_story_holds_where_each_call_is_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_TURN_NS", 0)
    found = told(_SEED + 1, range(_EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, 2))
def test_every_story_of_letters_that_wait_and_of_handlers_that_keep_their_offsets_holds(part: int) -> None:
    found = told(STORES_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, 2))
def test_every_story_of_our_own_fetcher_holds(part: int) -> None:
    compiled()
    found = told(OWN_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, 4))
def test_every_story_of_filters_circuit_breakers_and_rate_limits_holds(part: int) -> None:
    found = told(GATES_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.parametrize("part", first_and_more(0, 2))
def test_every_story_of_records_that_cannot_be_decoded_holds(part: int) -> None:
    found = told(DECODERS_FROM + part, range(_EACH))
    assert found is None, str(found)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_SEEDS_LONG))
@pytest.mark.parametrize("kind", _KINDS)
def test_every_one_of_many_stories_holds(kind: str, part: int) -> None:
    if kind == "own":
        compiled()
    found = told(seeds_of_today(_SEEDS_LONG, _KINDS[kind])[part], range(_EACH_LONG))
    assert found is None, str(found)
    came_through("stories after which a worker came to rest", "worker", _EACH_LONG, part=_KINDS[kind] + part)


def test_a_story_is_the_same_each_time_and_in_each_process() -> None:
    first = STORIES.traces(7, range(4))
    assert STORIES.traces(7, range(4)) == first
    assert STORIES.printed(7, 3) == first[3]
