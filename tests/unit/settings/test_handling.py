"""[handler] and [dead_letters]: what is taken, and in which words the rest is refused."""

from __future__ import annotations

from pathlib import Path

from kunicorn.clients import handler_orders
from tests.unit.settings.files import LEAST, loaded, problems


def with_rule(*lines: str) -> str:
    """The least settings and one rule."""
    return LEAST + "\n".join(["[[handler.failures]]", *lines, ""])


def test_a_rule_takes_what_it_leaves_out_from_the_handlers_section(tmp_path: Path) -> None:
    text = LEAST + "max_attempts = 7\n" + with_rule('exceptions = ["shop.Error"]', 'on_failure = "skip"')[len(LEAST) :]
    (rule,) = handler_orders(loaded(tmp_path, text))[0].failures
    assert (rule.exceptions, rule.attempts, rule.on_failure) == (["shop.Error"], 7, "skip")
    assert (rule.retry_backoff_ms, rule.retry_backoff_max_ms, rule.retry_timeout_ms) == (100, 10_000, None)


def test_what_is_wrong_in_a_rule_is_told_with_its_place(tmp_path: Path) -> None:
    text = with_rule('exceptions = ["ValueError"]', "max_attempt = 3", 'on_failure = "drop"')
    found = problems(tmp_path, text + "[[handler.failures]]\n")
    assert [line.split(":")[0] for line in found] == [
        'handler.failures[0].exceptions = "ValueError"',
        'handler.failures[0].on_failure = "drop"',
        "handler.failures[0].max_attempt = 3",
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
