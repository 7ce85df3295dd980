"""[[handlers]]: each consumed topic has one handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.clients.config import handler_configs
from kunicorn.handler.config import route
from kunicorn.settings.load import reloaded, shown
from tests.unit.settings.files import LEAST, loaded, problems

WITHOUT = LEAST.partition("[handler]")[0].replace('topics = ["orders"]\n', "")
TWO = """
[[handlers]]
topics = ["orders"]
entrypoint = "shop:orders"
[handlers.options]
key = "hunter2"
[[handlers]]
topics = ["^refunds-.*", "returns"]
entrypoint = "shop:Refunds"
mode = "batch"
on_failure = "dead_letter"
handler_timeout_ms = 7000
"""


def with_topics(*topics: str) -> str:
    """[[handlers]] for these, one each, beside group.topics = ["orders"]."""
    tables = [f'[[handlers]]\ntopics = ["{topic}"]\nentrypoint = "shop:handle"\n' for topic in topics]
    return LEAST.partition("[handler]")[0] + "".join(tables)


def test_the_topics_of_all_handlers_are_consumed_where_the_group_names_none(tmp_path: Path) -> None:
    settings = loaded(tmp_path, WITHOUT + TWO)
    assert settings.group.topics == ("orders", "^refunds-.*", "returns")
    assert settings.handler_of("refunds-eu").handler_timeout_ms == 7000
    assert settings.handler_of("orders").mode == "record"
    assert settings.dead_letter_topic == "orders.dead-letters"
    assert [(each.topics, each.mode) for each in handler_configs(settings)] == [
        (["orders"], "record"),
        (["^refunds-.*", "returns"], "batch"),
    ]


def test_a_single_handler_has_every_topic(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    assert settings.handler_of("anything") is settings.handler
    assert settings.every_handler == (settings.handler,)


def test_a_name_goes_before_patterns_and_of_these_the_first_that_matches_counts() -> None:
    handlers = [["^a.*"], ["^ab.*", "a-named"], ["abc"]]
    assert [route(handlers, topic) for topic in ("abc", "abd", "a-named", "b")] == [2, 0, 1, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (with_topics("orders", "orders"), "handlers: two of them take 'orders'; leave it to one of them"),
        (with_topics("returns"), "handlers: none of them takes 'orders', which is consumed"),
        (with_topics("orders", "returns"), "handlers: 'returns' is in the topics of one of them, but is not consumed"),
        (with_topics("orders", "^x.*"), "handlers: '^x.*' is in the topics of one of them, but is not consumed"),
        (LEAST + with_topics("orders").partition("[[")[2].join(["[[", ""]), "handler: given beside [[handlers]]"),
        (WITHOUT + '[[handlers]]\nentrypoint = "shop:handle"\n', "handlers[0].topics: is missing"),
        (with_topics("orders") + "modes = 1\n", "handlers[0].modes: unknown setting"),
        (with_topics("orders") + "max_attempts = 0\n", "handlers[0].max_attempts = 0: too small"),
        (with_topics("orders") + "options = 5\n", "handlers[0].options = (not shown)"),
        ('handlers = "shop:handle"\n' + WITHOUT, 'handlers = "shop:handle": not a list'),
    ],
)
def test_what_does_not_go_together_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    found = problems(tmp_path, text)
    assert any(line.startswith(said) for line in found), found
    assert sum("max_attempts" in line for line in found) <= 1, "told once"


def test_a_variable_for_the_single_handler_beside_several_is_named(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, TWO, {"KUNICORN_HANDLER__MAX_ATTEMPTS": "5"})
    assert only.startswith("handler.max_attempts (from KUNICORN_HANDLER__MAX_ATTEMPTS): given beside [[handlers]]")


def test_options_of_several_handlers_are_not_shown_either(tmp_path: Path) -> None:
    view = shown(loaded(tmp_path, WITHOUT + TWO))
    assert "hunter2" not in str(view)
    assert "handler" not in view
    assert "hunter2" not in repr(handler_configs(loaded(tmp_path, WITHOUT + TWO)))


def test_a_reload_takes_other_handlers_but_no_other_topics(tmp_path: Path) -> None:
    now = loaded(tmp_path, WITHOUT + TWO)
    file = loaded(tmp_path, WITHOUT + TWO.replace("7000", "9000"))
    found = reloaded(now, file)
    assert found.changed == ("handlers",)
    assert found.settings.handler_of("returns").handler_timeout_ms == 9000
    moved = reloaded(now, loaded(tmp_path, WITHOUT + TWO.replace('"returns"', '"exchanges"')))
    assert moved.kept == ("handlers.topics", "group.topics")
    assert moved.settings.handlers == now.handlers


@pytest.mark.parametrize("several_first", [False, True])
def test_a_reload_takes_no_handler_from_the_other_form_as_its_topics_wait_for_a_restart(
    tmp_path: Path, several_first: bool
) -> None:
    one = loaded(tmp_path, LEAST.replace("shop:handle", "shop:all"))
    several = loaded(tmp_path, WITHOUT + TWO)
    now, file = (several, one) if several_first else (one, several)
    found = reloaded(now, file)
    assert {"handlers.topics", "handler.entrypoint"} <= {*found.kept}
    assert (found.settings.handler, found.settings.handlers) == (now.handler, now.handlers)
