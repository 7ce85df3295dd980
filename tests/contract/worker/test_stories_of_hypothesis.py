"""Stories of a worker of which hypothesis draws every choice: what happens next, at which store, and to what end.

The state machine is the story's own, as it has to interrupt the worker between any two of its steps. One that does not
hold hypothesis makes simpler.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import compiled
from tests.contract.conformance.endurance import came_through
from tests.contract.stories import COLLECTED_EVERY, collected_between
from tests.contract.worker.choices import Choices, from_bytes
from tests.contract.worker.plan import DECODERS_FROM, GATES_FROM, OWN_FROM, STORES_FROM
from tests.contract.worker.story import tell_as
from tests.contract.worker.supervised import Memory

_KINDS = {"plain": 1, "stores": STORES_FROM, "own": OWN_FROM, "gates": GATES_FROM, "decoders": DECODERS_FROM}
_BYTES = 2_000
"""For the choices of the longest stories; behind them a story is dull."""
_STORIES, _STORIES_LONG = 40, 4_000
"""Of each kind."""


def _play(kind: str, memory: Memory, stories: int, *, same: bool) -> None:
    """So many; `same`: as in every other run."""
    if kind == "own":
        compiled()
    numbers, failing = count(), [b""]

    @settings(
        max_examples=stories,
        deadline=None,
        derandomize=same,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=st.binary(min_size=_BYTES, max_size=_BYTES))
    def every_story_holds(drawn: bytes) -> None:
        if next(numbers) % COLLECTED_EVERY == 0:
            collect()
        try:
            tell_as(Choices(from_bytes(drawn)), _KINDS[kind], memory)
        except Exception:
            failing.append(drawn)
            raise

    with collected_between() as collect:
        try:
            every_story_holds()
        except Exception as error:
            error.add_note(_read(kind, memory, failing[-1]))
            raise


def _read(kind: str, memory: Memory, drawn: bytes) -> str:
    lines: list[str] = []
    with suppress(Exception):
        tell_as(Choices(from_bytes(drawn)), _KINDS[kind], memory, lines)
    return "\n".join(lines)


@pytest.mark.once
@pytest.mark.parametrize("kind", _KINDS)
def test_whatever_hypothesis_does_to_a_worker_every_record_is_accounted_for(kind: str, memory: Memory) -> None:
    _play(kind, memory, _STORIES, same=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", _KINDS)
def test_in_thousands_of_stories_of_hypothesis_every_record_is_accounted_for(kind: str, memory: Memory) -> None:
    _play(kind, memory, _STORIES_LONG, same=False)
    came_through("stories of hypothesis after which a worker came to rest", kind, _STORIES_LONG)
