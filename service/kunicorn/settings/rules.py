"""Rules between settings, as flat tables walked in order: every broken rule is reported, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from kunicorn.allocator import AUTO, SYSTEM
from kunicorn.handler.config import takes
from kunicorn.librdkafka.properties import EVERY_CLIENTS
from kunicorn.settings.problems import NO_VALUE, Contradictions, Problem

S = TypeVar("S")

_LEAST_SESSION_MS = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition `holds` on a section; where it fails, `otherwise` is reported of its setting `name`, with `{s}` for
    the section.

    The settings as a whole are a section, too; a name in it is then `section.name`.
    """

    name: str
    holds: Callable[[Any], bool]
    otherwise: str


KAFKAS_OWN = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics that Kafka keeps for itself: `Topic.INTERNAL_TOPICS` of 4.4."""


def _brokers_leave_out_kafkas_own(group: Any) -> bool:
    """Brokers match patterns with every topic's name: Kafka's GroupMetadataManager.refreshRegularExpressions."""
    patterns = [topic for topic in group.topics if topic.startswith("^")]
    return group.group_protocol == "classic" or not any(takes(patterns, topic) for topic in KAFKAS_OWN)


GROUP_RULES = (
    Rule(
        "topics",
        _brokers_leave_out_kafkas_own,
        "a pattern in it matches topics that Kafka keeps for itself (__consumer_offsets), which brokers do not leave "
        'out under group_protocol = "consumer", so that each commit would be one more record to handle; write one that '
        'does not match them, such as "^[^_].*", or set group_protocol = "classic"',
    ),
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
    Rule(
        "group_remote_assignor",
        lambda s: s.group_remote_assignor is None or s.group_protocol == "consumer",
        'set, but with group_protocol = "classic" no broker is asked to assign; set group_protocol = "consumer", or '
        "remove it",
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

_RECORD_BY_RECORD = (
    'decodes records one by one, and mode = "arrow" hands out columns; remove one of them: only value = "json", with '
    "value_schema, is decoded to columns"
)
COLUMN_RULES = (
    Rule("value", lambda s: s.mode != "arrow" or s.value in ("bytes", "json"), _RECORD_BY_RECORD),
    Rule("key", lambda s: s.mode != "arrow" or s.key == "bytes", _RECORD_BY_RECORD),
    Rule(
        "value",
        lambda s: s.mode != "arrow" or s.value != "json" or s.value_schema is not None,
        'gives columns of what handler.value_schema says; set it beside mode = "arrow", or remove value',
    ),
    Rule(
        "value_schema",
        lambda s: s.value_schema is None or (s.mode == "arrow" and s.value == "json"),
        'given without mode = "arrow" and value = "json", and nothing else heeds it; set both, or remove it',
    ),
    Rule(
        "batch_across_partitions",
        lambda s: s.mode == "arrow" or not s.batch_across_partitions,
        'for mode = "arrow" alone: Batch.offsets(), and so BatchError, name records of one partition; set that, or '
        "remove it",
    ),
    Rule(
        "batch_across_partitions",
        lambda s: not s.batch_across_partitions or not (s.filters or s.max_age_ms is not None),
        "given beside filters or max_age_ms, which know records by their offsets, and those of several partitions are "
        "alike; leave rows out in the handler, or remove it",
    ),
)

LIMIT_RULES = (
    Rule(
        "rate_limit",
        lambda s: s.rate_limit is None or s.rate_limit.per != "key" or s.mode == "record",
        'per = "key" beside mode = "{s.mode}": a batch has records of many keys; set per = "service"',
    ),
)

CONCURRENCY_RULES = (
    Rule(
        "ordering",
        lambda s: s.ordering == "partition" or s.mode == "record",
        'not to be had with mode = "{s.mode}", as a batch is of one partition and in its order; remove one of them',
    ),
    Rule(
        "concurrency",
        lambda s: s.concurrency in (None, 1) or s.mode == "record",
        'more than one, but with mode = "{s.mode}" a worker has one batch in hand at a time; remove one of them',
    ),
    Rule(
        "concurrency",
        lambda s: s.concurrency != 1 or s.ordering == "partition",
        "one record at a time, which is ordered by partition whatever ordering = {s.ordering!r} says; raise it, or "
        "remove ordering",
    ),
)


def _may_be_preloaded(path: str) -> bool:
    """Whether ld.so takes the path: it splits its list at colons and spaces."""
    return path.startswith("/") and not set(path) & set(": ")


WORKER_RULES = (
    Rule(
        "max_rss_mb",
        lambda s: s.max_rss_mb is None or s.max_rss_mb >= s.memory_per_worker_mb,
        "below memory_per_worker_mb = {s.memory_per_worker_mb}, which fetch buffers are sized for, so that workers "
        "would be replaced for using what they were given; raise it, or lower that",
    ),
    Rule(
        "allocator",
        lambda s: s.allocator in (AUTO, SYSTEM) or _may_be_preloaded(s.allocator),
        f'not "{AUTO}", "{SYSTEM}" or the absolute path of a library, without spaces and colons; correct it',
    ),
    Rule(
        "allocator",
        lambda s: not _may_be_preloaded(s.allocator) or Path(s.allocator).is_file(),
        f'there is no such file; install the library, or say "{AUTO}" or "{SYSTEM}"',
    ),
)

_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TLS_ONLY = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location")
_OAUTHBEARER_ONLY = (
    "sasl_oauthbearer_token_endpoint_url",
    "sasl_oauthbearer_token_provider",
    "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_scope",
    "sasl_oauthbearer_extensions",
)
_ENDPOINT_ONLY = ("sasl_oauthbearer_client_id", "sasl_oauthbearer_scope")


def _has(settings: Any, name: str) -> bool:
    """Whether a secret is given, as a value or as a file."""
    return getattr(settings, name) is not None or getattr(settings, f"{name}_file") is not None


def _needs(name: str, applies: Callable[[Any], bool], otherwise: str) -> Rule:
    """Rule that `name` may be set only where it applies."""
    return Rule(name, lambda s: getattr(s, name) is None or applies(s), otherwise)


SECURITY_RULES = (
    Rule(
        "sasl_mechanism",
        lambda s: s.sasl_mechanism is not None or not s.security_protocol.startswith("SASL_"),
        "not set, although security_protocol = {s.security_protocol} logs in with it; set it, or change that",
    ),
    _needs(
        "sasl_mechanism",
        lambda s: s.security_protocol.startswith("SASL_"),
        "no login with security_protocol = {s.security_protocol}; set that to SASL_SSL (or SASL_PLAINTEXT), "
        "or remove this",
    ),
    Rule(
        "sasl_username",
        lambda s: s.sasl_mechanism not in _PASSWORD_MECHANISMS or s.sasl_username is not None,
        "not set; sasl_mechanism = {s.sasl_mechanism} needs it",
    ),
    Rule(
        "sasl_password",
        lambda s: s.sasl_mechanism not in _PASSWORD_MECHANISMS or _has(s, "sasl_password"),
        "not set; sasl_mechanism = {s.sasl_mechanism} needs it, or sasl_password_file",
    ),
    Rule(
        "sasl_username",
        lambda s: s.sasl_mechanism in _PASSWORD_MECHANISMS or s.sasl_username is None,
        "nothing uses it without sasl_mechanism = PLAIN or SCRAM-…; set that, or remove this",
    ),
    Rule(
        "sasl_password",
        lambda s: s.sasl_mechanism in _PASSWORD_MECHANISMS or not _has(s, "sasl_password"),
        "nothing uses it without sasl_mechanism = PLAIN or SCRAM-…; set that, or remove this",
    ),
    *(
        _needs(
            name,
            lambda s: s.security_protocol.endswith("SSL"),
            "no TLS with security_protocol = {s.security_protocol}; set that to SSL or SASL_SSL, or remove this",
        )
        for name in _TLS_ONLY
    ),
    Rule(
        "ssl_key_location",
        lambda s: s.ssl_certificate_location is not None or s.ssl_key_location is None,
        "a key without its certificate; set ssl_certificate_location, too",
    ),
    Rule(
        "ssl_certificate_location",
        lambda s: s.ssl_key_location is not None or s.ssl_certificate_location is None,
        "a certificate without its key; set ssl_key_location, too",
    ),
    Rule(
        "ssl_key_password",
        lambda s: s.ssl_key_location is not None or not _has(s, "ssl_key_password"),
        "a password without a key; set ssl_key_location, or remove this",
    ),
    *(
        _needs(
            name,
            lambda s: s.sasl_mechanism == "OAUTHBEARER",
            "nothing uses it without sasl_mechanism = OAUTHBEARER; set that, or remove this",
        )
        for name in _OAUTHBEARER_ONLY
    ),
    Rule(
        "sasl_oauthbearer_token_endpoint_url",
        lambda s: (
            s.sasl_mechanism != "OAUTHBEARER"
            or (s.sasl_oauthbearer_token_endpoint_url is None) != (s.sasl_oauthbearer_token_provider is None)
        ),
        "sasl_mechanism = OAUTHBEARER needs either this or sasl_oauthbearer_token_provider; set one of them",
    ),
    *(
        _needs(
            name,
            lambda s: s.sasl_oauthbearer_token_provider is None,
            "sasl_oauthbearer_token_provider takes nothing from it; remove one of them",
        )
        for name in _ENDPOINT_ONLY
    ),
    Rule(
        "sasl_oauthbearer_client_id",
        lambda s: s.sasl_oauthbearer_token_endpoint_url is None or s.sasl_oauthbearer_client_id is not None,
        "not set; sasl_oauthbearer_token_endpoint_url needs it",
    ),
    Rule(
        "sasl_oauthbearer_client_secret",
        lambda s: _has(s, "sasl_oauthbearer_client_secret") == (s.sasl_oauthbearer_token_endpoint_url is not None),
        "goes with sasl_oauthbearer_token_endpoint_url; set both, or neither",
    ),
)


_HEEDED = frozenset(
    {
        "fetch.max.bytes",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "queued.max.messages.kbytes",
    }
)
"""Properties of librdkafka's consumer that mean the same to our own fetcher."""


def of_librdkafka_alone(properties: Iterable[str]) -> list[str]:
    """Those of the properties of a consumer that our own fetcher does not know. Pure."""
    return [name for name in properties if name not in _HEEDED and not name.startswith(EVERY_CLIENTS)]


FETCHER_RULES = (
    Rule(
        "librdkafka",
        lambda s: s.fetcher != "own" or not of_librdkafka_alone(s.librdkafka),
        'has properties that only librdkafka\'s consumer knows, beside fetcher = "own"; leave '
        f"{', '.join(sorted(_HEEDED))} and those of connections, which producers heed, or remove fetcher",
    ),
    Rule(
        "statistics_interval_ms",
        lambda s: s.fetcher != "own" or s.statistics_interval_ms == 0,
        'librdkafka\'s figures, and fetcher = "own" has none of them; remove one of the two',
    ),
)


def check(settings: S, section: str, rules: Sequence[Rule]) -> S:
    """The section itself where every rule holds. Raises `Contradictions`."""
    if problems := broken(settings, section, rules):
        raise Contradictions(problems)
    return settings


def broken(settings: Any, section: str, rules: Sequence[Rule]) -> list[Problem]:
    """Problems of the rules that do not hold."""
    return [
        Problem(f"{section}.{rule.name}".lstrip("."), _value(settings, rule.name), rule.otherwise.format(s=settings))
        for rule in rules
        if not rule.holds(settings)
    ]


def _value(settings: Any, name: str) -> object:
    value = attrgetter(name)(settings)
    return NO_VALUE if value is None else value
