"""What a reload may change, and what waits for the next start."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from kunicorn.errors import ConfigError
from kunicorn.settings import Settings
from kunicorn.settings.load import reloaded
from tests.fakes.complete_settings import settings_of


def settings(**sections: dict[str, Any]) -> Settings:
    own: dict[str, dict[str, Any]] = {"group": {"id": "orders"}, "workers": {"count": 2}}
    return settings_of(**{**sections, **{name: section | sections.get(name, {}) for name, section in own.items()}})


NOW = settings()


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [
        ("handler", "entrypoint", "shop.next:handle"),
        ("handler", "options", {"currency": "EUR"}),
        ("handler", "max_attempts", 9),
        ("workers", "max_records", 1000),
        ("workers", "max_crashes", 7),
        ("workers", "memory_per_worker_mb", 64),
        ("log", "level", "debug"),
        ("kafka", "librdkafka", {"fetch.wait.max.ms": 100}),
    ],
)
def test_what_only_workers_and_logs_go_by_takes_effect(section: str, setting: str, value: Any) -> None:
    found = reloaded(NOW, settings(**{section: {setting: value}}))
    assert getattr(getattr(found.settings, section), setting) == value
    assert (found.changed, found.kept) == ((f"{section}.{setting}",), ())


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [
        ("kafka", "bootstrap_servers", ["127.0.0.1:9093"]),
        ("kafka", "isolation_level", "read_committed"),
        ("group", "id", "refunds"),
        ("group", "topics", ["refunds"]),
        ("group", "session_timeout_ms", 30_000),
        ("workers", "count", 3),
        ("http", "port", 9401),
    ],
)
def test_what_the_membership_is_built_upon_is_kept_until_the_next_start(section: str, setting: str, value: Any) -> None:
    found = reloaded(NOW, settings(**{section: {setting: value}}))
    assert found.settings == NOW
    assert (found.changed, found.kept) == ((), (f"{section}.{setting}",))


def test_both_kinds_may_change_at_once() -> None:
    found = reloaded(NOW, settings(workers={"count": 4, "max_records": 5}, log={"level": "error"}))
    assert (found.settings.workers.count, found.settings.workers.max_records) == (2, 5)
    assert found.changed == ("workers.max_records", "log.level")
    assert found.kept == ("workers.count",)


def test_an_unchanged_file_changes_nothing() -> None:
    found = reloaded(NOW, settings())
    assert (found.settings, found.changed, found.kept) == (NOW, (), ())


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            {"group": {"topics": ["^orders.*"]}, "handler": {"on_failure": "halt"}},
            {"handler": {"on_failure": "dead_letter"}, "dead_letters": {"topic": "failed"}},
            "dead_letters.topic: letters to 'orders.dead-letters' would be consumed again and again",
        ),
        (
            {"handler": {"retry_topic_delays_ms": [1000]}},
            {"handler": {"ordering": "key"}},
            """handler.retry_topic_delays_ms = [1000]: set beside ordering = "key\"""",
        ),
    ],
)
def test_a_mixture_of_new_and_kept_settings_that_no_start_would_take_is_refused(
    before: dict[str, Any], after: dict[str, Any], said: str
) -> None:
    now, file = settings(**before), settings(**after)
    with pytest.raises(ConfigError) as refused:
        reloaded(now, file)
    assert "until a restart (" in str(refused.value)
    assert said in str(refused.value)


def test_new_settings_beside_kept_ones_are_checked_with_secrets_and_tables_in_them() -> None:
    password = {"sasl_mechanism": "PLAIN", "sasl_username": "shop", "sasl_password": SecretStr("x")}
    secret = {"security_protocol": "SASL_SSL", **password}
    breaker = {"exceptions": ["builtins.ConnectionError"]}
    now = settings(kafka=secret, handler={"circuit_breaker": breaker, "options": {"currency": "EUR"}})
    found = reloaded(now, settings(kafka=secret | {"librdkafka": {"fetch.wait.max.ms": 100}}, http={"port": 9401}))
    assert found.changed == ("kafka.librdkafka", "handler.circuit_breaker", "handler.options")
    assert found.kept == ("http.port",)
    assert found.settings.kafka.secret("sasl_password") == "x"
