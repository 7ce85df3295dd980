"""From the settings to the worker: every setting of a handler arrives, under its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kunicorn.clients.config import handler_configs
from kunicorn.handler.config import CircuitBreaking, FailureRule, FilterRule, HandlerConfig, RateLimiting
from kunicorn.handler.retry import End, RetryPolicy, policies_of
from kunicorn.settings import FailureSettings, HandlerSettings
from kunicorn.settings.limits import RateLimitSettings
from tests.unit.settings.files import loaded

NOT_FOR_WORKERS = {"handler_timeout_ms"}
"""The supervisor's watchdog goes by it."""
OF_RETRY_TOPICS = {"retry_topic", "retry_topic_delays_ms"}
"""Workers get the topics that these name."""
UNLIKE_THE_DEFAULTS: dict[str, Any] = {
    "entrypoint": "shop:handle_refund",
    "mode": "batch",
    "ordering": "key",
    "concurrency": 7,
    "batch_max_records": 8,
    "batch_max_bytes": 9,
    "batch_max_ms": 10,
    "value_schema": "shop.orders:Order",
    "batch_across_partitions": True,
    "value": "json",
    "key": "text",
    "on_undecodable": "skip",
    "max_attempts": 11,
    "retry_backoff_ms": 12,
    "retry_backoff_max_ms": 13,
    "retry_timeout_ms": 14,
    "on_failure": "dead_letter",
    "filters": [FilterRule(on="key", one_of=["a"])],
    "dead_letter_topic": "refunds.dead",
    "delay_ms": 16,
    "max_age_ms": 15,
    "on_expired": "dead_letter",
    "middlewares": ["shop.middlewares:timed"],
    "circuit_breaker": CircuitBreaking(["builtins.OSError"], 0.25, 31, 32, 33, 34),
    "options": {"currency": "EUR", "limits": {"EU": 3}},
}
RULE: dict[str, Any] = {
    "exceptions": ("builtins.ValueError",),
    "max_attempts": 21,
    "retry_backoff_ms": 22,
    "retry_backoff_max_ms": 23,
    "retry_timeout_ms": 24,
    "retry_topic_delays_ms": (5000,),
    "dead_letter_topic": "refused",
    "on_failure": "skip",
}


def config_of(directory: Path, **values: Any) -> HandlerConfig:
    """What workers are told of a handler with these settings; whether they go together is not asked."""
    settings = loaded(directory)
    handler = settings.handler.model_copy(update=values)
    (config,) = handler_configs(settings.model_copy(update={"handler": handler}))
    return config


def told(config: HandlerConfig) -> dict[str, Any]:
    """What workers are told, by the names of the settings."""
    parts: tuple[msgspec.Struct, ...] = (config, config.decoding, config.batching)
    return {name: getattr(part, name) for part in parts for name in part.__struct_fields__}


def test_every_setting_of_a_handler_arrives_under_its_name(tmp_path: Path) -> None:
    wanted = set(HandlerSettings.model_fields) - NOT_FOR_WORKERS - OF_RETRY_TOPICS - {"failures", "rate_limit"}
    assert set(UNLIKE_THE_DEFAULTS) == wanted, "each setting is tried with another value than its default"
    defaults = told(config_of(tmp_path))
    assert not [name for name, value in UNLIKE_THE_DEFAULTS.items() if defaults[name] == value]
    arrived = told(config_of(tmp_path, **UNLIKE_THE_DEFAULTS))
    assert {name: arrived[name] for name in UNLIKE_THE_DEFAULTS} == UNLIKE_THE_DEFAULTS


def test_every_setting_of_a_rate_limit_arrives_but_the_number_of_members(tmp_path: Path) -> None:
    limit = RateLimitSettings(per_second=35, burst=36, per="key", header="tenant", counts="calls", members=3)
    arrived = config_of(tmp_path, rate_limit=limit).rate_limit
    assert arrived == RateLimiting(35, 36, "key", "calls", "tenant")
    assert arrived.shared(0.5) == RateLimiting(17.5, 18, "key", "calls", "tenant")


def test_every_setting_of_a_rule_for_failures_arrives_under_its_name(tmp_path: Path) -> None:
    assert set(RULE) == set(FailureSettings.model_fields) == set(FailureRule.__struct_fields__)
    (rule,) = config_of(tmp_path, failures=(FailureSettings(**RULE),)).failures
    assert msgspec.structs.asdict(rule) == {
        name: list(value) if isinstance(value, tuple) else value for name, value in RULE.items()
    }


def test_what_arrives_passes_a_pipe_unchanged(tmp_path: Path) -> None:
    config = config_of(tmp_path, **UNLIKE_THE_DEFAULTS, failures=(FailureSettings(**RULE),))
    assert msgspec.json.decode(msgspec.json.encode(config), type=HandlerConfig) == config


@pytest.mark.parametrize("rules", ["handler", "rule"])
def test_a_retry_policy_has_the_names_of_the_settings_too(tmp_path: Path, rules: str) -> None:
    config = config_of(tmp_path, **UNLIKE_THE_DEFAULTS, failures=(FailureSettings(**RULE),))
    policies = policies_of(config)
    policy, given = (policies.default, UNLIKE_THE_DEFAULTS) if rules == "handler" else (policies.rules[0][1], RULE)
    # That of [handler] is looked at behind a reason's own topic, and is none of the policy's.
    apart = {"on_failure", "retry_topics", *(["dead_letter_topic"] if rules == "handler" else [])}
    names = [name for name in RetryPolicy.__dataclass_fields__ if name not in apart]
    assert {name: getattr(policy, name) for name in names} == {name: given[name] for name in names}
    assert policy.on_failure is End(given["on_failure"])
