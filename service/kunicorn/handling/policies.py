"""The retry rules in force: those of the settings, the exception classes that they name found in the user's code."""

from __future__ import annotations

from collections.abc import Iterable

from kunicorn.handling.exceptions import find
from kunicorn.handling.retry import End, Policies, RetryPolicy
from kunicorn.pipes.orders import FailureRule
from kunicorn.retry_topics import RetryTopic


def policies_of(default: RetryPolicy, rules: Iterable[FailureRule], on_undecodable: str | None = None) -> Policies:
    """`default`, and before it the rules of [[handler.failures]], which know of the same retry topics. Raises
    `ConfigError` for a class that is not there.

    Imports the modules that the rules name. Caller: a process that has the user's code, after the handler's import.
    """
    found = [(tuple(map(find, rule.exceptions)), _policy(rule, default.retry_topics)) for rule in rules]
    return Policies(default, found, None if on_undecodable is None else End(on_undecodable))


def _policy(rule: FailureRule, retry_topics: Iterable[RetryTopic]) -> RetryPolicy:
    return RetryPolicy(
        rule.attempts,
        rule.retry_backoff_ms,
        rule.retry_backoff_max_ms,
        rule.retry_timeout_ms,
        End(rule.on_failure),
        tuple(each for each in retry_topics if each.delay_ms in rule.retry_topic_delays_ms),
    )
