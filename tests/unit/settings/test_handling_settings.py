"""[handler] and [dead_letters]: what is taken, and in which words the rest is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.clients.config import handler_configs
from kunicorn.errors import ConfigError
from kunicorn.handler.registry import concurrency_of
from tests.unit.settings.files import LEAST, loaded, problems


def with_rule(*lines: str) -> str:
    """The least settings and one rule."""
    return LEAST + "\n".join(["[[handler.failures]]", *lines, ""])


def test_a_rule_takes_what_it_leaves_out_from_the_handlers_section(tmp_path: Path) -> None:
    text = LEAST + "max_attempts = 7\n" + with_rule('exceptions = ["shop.Error"]', 'on_failure = "skip"')[len(LEAST) :]
    (rule,) = handler_configs(loaded(tmp_path, text))[0].failures
    assert (rule.exceptions, rule.max_attempts, rule.on_failure) == (["shop.Error"], 7, "skip")
    assert (rule.retry_backoff_ms, rule.retry_backoff_max_ms, rule.retry_timeout_ms) == (100, 10_000, None)


def test_what_is_wrong_in_a_rule_is_told_with_its_place(tmp_path: Path) -> None:
    text = with_rule('exceptions = ["ValueError"]', "max_attempt = 3", 'on_failure = "drop"')
    found = problems(tmp_path, text + "[[handler.failures]]\n")
    assert [line.split(":")[0] for line in found] == [
        'handler.failures[0].exceptions = "ValueError"',
        'handler.failures[0].on_failure = "drop"',
        "handler.failures[0].max_attempt",
        "handler.failures[1].exceptions",
    ]
    assert found[0].endswith("write it such as builtins.ValueError")


def test_a_rule_whose_backoff_is_above_the_inherited_limit_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, with_rule('exceptions = ["shop.Error"]', "retry_backoff_ms = 20000"))
    assert found.startswith("handler.failures[0].retry_backoff_max_ms = 10000: below retry_backoff_ms = 20000")


def test_the_dead_letter_topic_is_named_after_the_group_and_only_where_letters_are_made(tmp_path: Path) -> None:
    assert loaded(tmp_path).dead_letter_topic is None
    assert loaded(tmp_path, LEAST + 'on_failure = "dead_letter"\n').dead_letter_topic == "orders.dead-letters"
    assert loaded(tmp_path, LEAST + '[dead_letters]\ntopic = "graves"\n').dead_letter_topic == "graves"


def test_a_dead_letter_topic_that_is_consumed_itself_is_refused(tmp_path: Path) -> None:
    text = LEAST.replace('["orders"]', '["^orders"]') + 'on_failure = "dead_letter"\n'
    (found,) = problems(tmp_path, text)
    assert found.startswith("dead_letters.topic: letters to 'orders.dead-letters' would be consumed again and again")


def test_a_group_whose_name_makes_no_topic_has_to_name_one(tmp_path: Path) -> None:
    text = LEAST.replace('id = "orders"', 'id = "all orders"') + 'on_failure = "dead_letter"\n'
    (found,) = problems(tmp_path, text)
    assert "is no legal name of a topic; set it" in found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('mode = "batch"\nordering = "key"', 'handler.ordering = "key": not to be had with mode = "batch"'),
        ('mode = "batch"\nconcurrency = 8', "handler.concurrency = 8: more than one, but with mode"),
        ('ordering = "none"\nconcurrency = 1', "handler.concurrency = 1: one record at a time"),
        ("concurrency = 0", "handler.concurrency = 0"),
        ('ordering = "keys"', 'handler.ordering = "keys"'),
    ],
)
def test_an_order_that_cannot_be_kept_or_is_none_is_refused(tmp_path: Path, lines: str, found: str) -> None:
    (problem,) = problems(tmp_path, LEAST + lines + "\n")
    assert problem.startswith(found)


@pytest.mark.parametrize(
    ("is_async", "mode", "concurrency", "expected"),
    [
        (False, "record", None, 1),
        (False, "record", 8, 8),
        (True, "record", None, 100),
        (True, "record", 1, 1),
        (True, "batch", None, 1),
    ],
)
def test_how_many_records_are_in_hand_depends_on_the_handler_where_nothing_is_set(
    is_async: bool, mode: str, concurrency: int | None, expected: int
) -> None:
    assert concurrency_of(is_async, mode, "partition", concurrency) == expected


def test_order_by_key_needs_more_than_one_record_in_hand() -> None:
    assert concurrency_of(True, "record", "key", None) == 100
    with pytest.raises(ConfigError, match=r"set handler\.concurrency to the number of threads, make it async def"):
        concurrency_of(False, "record", "key", None)
