"""No event can break a line's form, whatever it contains."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunicorn.observe.logs import as_json, as_text

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(object),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=5,
)
fields = st.dictionaries(st.text(), anything)


def json_of(event: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(as_json("info", "kunicorn", "supervisor", event))
    return line


@settings(max_examples=60, deadline=None)
@given(fields)
def test_a_json_event_is_one_line_of_json(event: dict[str, Any]) -> None:
    line = as_json("info", "kunicorn", "supervisor", event)
    assert "\n" not in line
    assert json.loads(line)["process"] == "supervisor"


@settings(max_examples=60, deadline=None)
@given(fields)
def test_a_text_event_has_no_control_characters_and_no_second_line_at_the_margin(event: dict[str, Any]) -> None:
    first, *rest = as_text("info", "kunicorn", "supervisor", event).split("\n")
    assert first[:2] == "20"
    assert all(line.startswith("    ") for line in rest)
    assert [c for c in first + "".join(rest) if unicodedata.category(c) == "Cc" and c != "\t"] == []


def test_a_field_never_replaces_one_of_ours() -> None:
    line = json_of({"event": "x", "level": "mine", "pid": 0})
    assert (line["level"], line["level_"], line["pid_"]) == ("info", "mine", 0)


def test_numbers_beyond_64_bits_are_shown() -> None:
    line = json_of({"event": "x", "big": 2**80, "small": 1})
    assert (line["big"], line["small"]) == (str(2**80), 1)


@pytest.mark.parametrize("name", ["event", "payload", "exception"])
def test_a_huge_field_is_cut_and_says_so(name: str) -> None:
    line = json_of({"event": "x", name: "y" * 1_000_000})
    assert len(line[name]) < 17_000
    assert line[name].endswith("(984000 more characters)")


def test_a_forged_event_inside_a_message_is_indented() -> None:
    text = as_text("info", "l", "p", {"event": "bad record: a\n2026-01-01T00:00:00Z ERROR p[1] fake"})
    assert "\n    2026-01-01" in text


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in as_text("info", "l", "p", {"event": "\x1b[2J", "field": "\x1b]0;x\x07"})


def test_values_with_spaces_are_quoted() -> None:
    assert as_text("info", "l", "p", {"event": "e", "why": "a b", "n": 5}).endswith('e  why="a b" n=5')
