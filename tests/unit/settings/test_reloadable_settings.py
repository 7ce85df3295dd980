"""What a reload may change, and what waits for the next start."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.settings import Settings
from kunicorn.settings.load import reloaded


def settings(**sections: dict[str, Any]) -> Settings:
    whole: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrap_servers": ["127.0.0.1:9092"]},
        "group": {"id": "orders", "topics": ["orders"]},
        "handler": {"entrypoint": "shop:handle"},
        "workers": {"count": 2},
    }
    tables: Any = {name: whole.get(name, {}) | sections.get(name, {}) for name in whole.keys() | sections.keys()}
    return Settings(**tables)


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
