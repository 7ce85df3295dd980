"""Which topic a dead letter goes to: by reason, by handler, or that of the service."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kunicorn import DeadLetter, Record
from kunicorn.errors import ConfigError
from kunicorn.handler.config import REASONS
from kunicorn.handler.retry import Reason
from kunicorn.settings.load import load_tables
from kunicorn.testing import HandlerTest, record
from tests.fakes.complete_settings import tables_of

HANDLER = {"on_failure": "dead_letter", "max_attempts": 1, "max_age_ms": 3_600_000, "on_expired": "dead_letter"}
TOPICS = {"topics": {"handler": "said", "expired": "old"}, "topic": "all"}


def handle(record: Record) -> None:
    if record.value == b"said":
        raise DeadLetter("no use")
    raise ValueError("no")


def run(records: list[Any], letters: dict[str, Any], **handler: Any) -> list[str]:
    """Topics of the letters."""
    test = HandlerTest(handle, settings={"dead_letters": letters}, **{**HANDLER, **handler})
    return [letter.topic for letter in test.run(*records).dead_letters]


def test_the_reason_goes_before_the_handler_and_the_handler_before_the_service() -> None:
    old = int(time.time() * 1000) - 7_200_000
    given = [record("said"), record("fails"), record("a", timestamp=old)]
    assert run(given, TOPICS) == ["said", "all", "old"]
    assert run(given, TOPICS, dead_letter_topic="mine") == ["said", "mine", "old"]
    assert run(given, {}, dead_letter_topic="mine") == ["mine", "mine", "mine"]


def test_the_exceptions_rule_goes_before_all_and_what_it_leaves_out_is_as_ever() -> None:
    rule = {"exceptions": ["builtins.ValueError"], "dead_letter_topic": "by-rule"}
    other = {"exceptions": ["builtins.KeyError"], "max_attempts": 1}
    letters = {"topics": {"attempts": "tried", "handler": "said"}, "topic": "all"}
    given = [record("said"), record("fails")]
    assert run(given, letters, failures=[rule], dead_letter_topic="mine") == ["said", "by-rule"]
    assert run(given, letters, failures=[other], dead_letter_topic="mine") == ["said", "tried"]
    assert run(given, {}, failures=[{**other, "exceptions": ["builtins.ValueError"]}], dead_letter_topic="mine") == [
        "mine",
        "mine",
    ]


def test_a_rules_topic_is_among_those_that_have_to_exist_and_may_not_be_consumed() -> None:
    rule = {"exceptions": ["builtins.ValueError"], "dead_letter_topic": "test"}
    with pytest.raises(ConfigError, match="would be consumed again and again"):
        run([record("a")], {}, failures=[rule])
    handler = {"entrypoint": "shop:handle", "failures": [{**rule, "dead_letter_topic": "by-rule"}]}
    tables = tables_of(group={"id": "shop"}, handler=handler)
    assert load_tables(Path("config.toml"), tables).dead_letter_topics == ("shop.dead-letters", "by-rule")


def test_settings_know_every_reason() -> None:
    assert sorted(REASONS) == sorted(Reason)


@pytest.mark.parametrize(
    ("letters", "told"),
    [
        ({"topics": {"poisoned": "t"}}, "no record is given up for the reason 'poisoned'; the reasons are handler, "),
        ({"topics": {"poison": "a topic"}}, "not a legal name"),
        ({"topics": {"poison": "test"}}, "would be consumed again and again"),
    ],
)
def test_topics_that_cannot_be_are_refused(letters: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        run([record("a")], letters)
