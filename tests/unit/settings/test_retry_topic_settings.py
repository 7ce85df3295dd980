"""Which retry topics a handler has, and what is refused about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.clients.config import configs_of_jobs, dead_letter_target, handler_configs
from kunicorn.handler.config import RetryTopic, delay_in_words
from kunicorn.settings.load import takes_effect
from tests.unit.settings.files import LEAST, loaded, problems


def refused_text(tmp_path: Path, text: str) -> str:
    """Everything that is said against it."""
    return "\n".join(problems(tmp_path, text))


DELAYS = "retry_topic_delays_ms = [5000, 60000, 600000]\n"


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(5000, "5s"), (60_000, "1m"), (90_000, "90s"), (600_000, "10m"), (7_200_000, "2h"), (1500, "1500ms"), (1, "1ms")],
)
def test_a_delay_has_a_short_name(milliseconds: int, words: str) -> None:
    assert delay_in_words(milliseconds) == words


def test_there_is_a_topic_for_each_delay_and_the_group_consumes_them_beside_its_own(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LEAST + DELAYS)
    topics = [RetryTopic("orders.retry.5s", 5000), RetryTopic("orders.retry.1m", 60_000),
              RetryTopic("orders.retry.10m", 600_000)]  # fmt: skip
    assert list(settings.retry_topics.values()) == topics
    assert settings.subscribed_topics == (*settings.group.topics, *(topic.name for topic in topics))
    assert settings.other_topics == {topic.name: "handler.retry_topic" for topic in topics}
    assert handler_configs(settings)[0].retry_topics == topics
    assert configs_of_jobs(settings)[0].retry_topics == []


def test_retry_topics_need_a_producer_though_no_dead_letter_topic(tmp_path: Path) -> None:
    target = dead_letter_target(loaded(tmp_path, LEAST + DELAYS), "us", None)
    assert target is not None
    assert target.topic is None
    assert dead_letter_target(loaded(tmp_path, LEAST), "us", None) is None


def test_a_rule_for_some_exceptions_may_go_without_or_through_some_of_them(tmp_path: Path) -> None:
    rules = """
[[handler.failures]]
exceptions = ["builtins.ValueError"]
retry_topic_delays_ms = []
[[handler.failures]]
exceptions = ["builtins.OSError"]
retry_topic_delays_ms = [600000]
[[handler.failures]]
exceptions = ["builtins.KeyError"]
"""
    order = handler_configs(loaded(tmp_path, LEAST + DELAYS + rules))[0]
    assert [rule.retry_topic_delays_ms for rule in order.failures] == [[], [600_000], [5000, 60_000, 600_000]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retry_topic_delays_ms = [5000, 5000]\n", "handler.retry_topic_delays_ms = [5000, 5000]: not ascending"),
        ("retry_topic_delays_ms = [0]\n", "handler.retry_topic_delays_ms"),
        (DELAYS + 'retry_topic = "retries"\n', "put {delay} into the name"),
        (DELAYS + 'retry_topic = "{topic}.{delay}"\n', "{topic} stands for nothing; {group} and {delay} do"),
        (DELAYS + 'retry_topic = "{delay"\n', "no template"),
        (DELAYS + 'retry_topic = "r.{delay:d}"\n', "write the names alone, as in {group}.retry.{delay}"),
        (DELAYS + 'retry_topic = "r.{delay!z}"\n', "write the names alone, as in {group}.retry.{delay}"),
        (DELAYS + 'retry_topic = "a/{delay}"\n', "'a/5s' is no legal name of a topic"),
        (DELAYS + 'ordering = "key"\nconcurrency = 4\n', 'set beside ordering = "key"'),
        (DELAYS + '[[handler.failures]]\nexceptions = ["builtins.OSError"]\nretry_topic_delays_ms = [1]\n',
         "one of the failures' rules has delays of its own"),
        (DELAYS + '[producing]\ndelivery = "transactions"\n', "and those of aborted ones would be handled, too"),
        (DELAYS + '[dead_letters]\ntopic = "orders.retry.1m"\n', "'orders.retry.1m' is the dead-letter topic, too"),
        (DELAYS + '[producing]\ndelivery = "at_least_once"\ntopic = "orders.retry.1m"\n', "is producing.topic, too"),
        (DELAYS + '[producing]\ndelivery = "at_least_once"\n[[producing.topics]]\ntopic = "orders.retry.1m"\n',
         "'orders.retry.1m' is among producing.topics, too"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused_text(tmp_path, LEAST + text)


def test_a_pattern_of_the_group_must_leave_them_out(tmp_path: Path) -> None:
    text = LEAST.replace('topics = ["orders"]', 'topics = ["^orders.*"]')
    assert text != LEAST
    assert "'orders.retry.5s' is among group.topics, too, where records would not wait" in refused_text(
        tmp_path, text + DELAYS
    )


TWO = """
[[handlers]]
topics = ["orders"]
entrypoint = "shop:orders"
retry_topic_delays_ms = [5000]
[[handlers]]
topics = ["^refunds"]
entrypoint = "shop:refunds"
retry_topic_delays_ms = [5000]
"""
WITHOUT = '[kafka]\nbootstrap_servers = ["127.0.0.1:9092"]\n[group]\nid = "shop"\n'


def test_each_of_several_handlers_has_its_own(tmp_path: Path) -> None:
    assert "'shop.retry.5s' would be that of several of [[handlers]]" in refused_text(tmp_path, WITHOUT + TWO)
    settings = loaded(tmp_path, WITHOUT + TWO + 'retry_topic = "{group}.refunds.{delay}"\n')
    assert settings.handler_of("shop.retry.5s").entrypoint == "shop:orders"
    assert settings.handler_of("shop.refunds.5s").entrypoint == "shop:refunds"
    assert [order.topics for order in handler_configs(settings)] == [
        ["orders", "shop.retry.5s"],
        ["^refunds", "shop.refunds.5s"],
    ]


def test_partitions_that_are_assigned_by_name_have_none(tmp_path: Path) -> None:
    text = '[kafka]\nbootstrap_servers = ["127.0.0.1:9092"]\n[assign]\npartitions = ["orders:0"]\n[handler]\n'
    said = refused_text(tmp_path, text + 'entrypoint = "shop:handle"\n' + DELAYS)
    assert "with assign.partitions there is none" in said


def test_a_reload_changes_none_of_them_as_the_group_is_subscribed() -> None:
    assert not takes_effect("handler.retry_topic")
    assert not takes_effect("handler.retry_topic_delays_ms")
