"""The drawn tables of states."""

from __future__ import annotations

from pathlib import Path

from kunicorn.group.states import CONSUMER
from kunicorn.observe.generate import states_page


def test_the_page_of_states_is_current() -> None:
    assert (Path(__file__).parents[3] / "docs" / "states.md").read_text() == states_page(), (
        "run python -m kunicorn.observe"
    )


def test_every_step_of_a_table_is_on_the_page() -> None:
    section = states_page().split("## A member with the consumer protocol")[1].split("## ")[0]
    for state, step in CONSUMER:
        assert step.value in section
        assert state.value in section
