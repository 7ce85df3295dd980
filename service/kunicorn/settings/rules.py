"""Rules between settings: flat tables, walked in order; every rule that is broken is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from kunicorn.settings.problems import Contradictions, Problem

S = TypeVar("S")

_LEAST_SESSION_MS = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds` of a section, or `otherwise` is said of its setting `name`; `{s}` in it is the section.

    The settings as a whole are a section, too; a name in it is then `section.name`.
    """

    name: str
    holds: Callable[[Any], bool]
    otherwise: str


GROUP_RULES = (
    Rule(
        "session_timeout_ms",
        lambda s: s.session_timeout_ms >= _LEAST_SESSION_MS or s.allow_short_session_timeout,
        f"below {_LEAST_SESSION_MS}, a pause of a few seconds costs the member its partitions; "
        "raise it, or set allow_short_session_timeout = true",
    ),
    Rule(
        "heartbeat_interval_ms",
        lambda s: s.heartbeat_interval_ms * 3 <= s.session_timeout_ms,
        "more than a third of session_timeout_ms = {s.session_timeout_ms}, so that one lost heartbeat may cost "
        "the partitions; lower it, or raise session_timeout_ms",
    ),
    Rule(
        "max_poll_interval_ms",
        lambda s: s.drain_timeout_ms + s.commit_timeout_ms < s.max_poll_interval_ms,
        "not above drain_timeout_ms = {s.drain_timeout_ms} and commit_timeout_ms = {s.commit_timeout_ms} together, "
        "so that the group would exclude us while we still drain; raise it, or lower those",
    ),
)

SOURCE_RULES = (
    Rule(
        "group.topics",
        lambda s: s.group.topics or s.assigned,
        "empty; name at least one, or name partitions in [assign]",
    ),
    Rule(
        "group.topics",
        lambda s: not (s.group.topics and s.assigned),
        "given beside assign.partitions; remove one of them: the group assigns, or [assign] does",
    ),
    Rule(
        "group.group_instance_id",
        lambda s: not (s.group.group_instance_id and s.assigned),
        "given beside assign.partitions, where nobody is a member of the group; remove one of them",
    ),
)
"""Of the settings as a whole: who says which partitions are ours."""

RETRY_RULES = (
    Rule(
        "retry_backoff_max_ms",
        lambda s: s.retry_backoff_ms <= s.retry_backoff_max_ms,
        "below retry_backoff_ms = {s.retry_backoff_ms}, which it limits; raise it, or lower that",
    ),
)


def check(settings: S, section: str, rules: Sequence[Rule]) -> S:
    """The section itself where every rule holds. Raises `Contradictions`."""
    broken = [
        Problem(
            f"{section}.{rule.name}".lstrip("."), attrgetter(rule.name)(settings), rule.otherwise.format(s=settings)
        )
        for rule in rules
        if not rule.holds(settings)
    ]
    if broken:
        raise Contradictions(broken)
    return settings
