"""Every setting, declared once with type, default, limits and meaning: the sections [kafka], [group], [http], [log],
[tracing], and `Settings`, which has all of them. config.example.toml and docs/settings.md are generated from here.

A setting that Kafka has keeps Kafka's name (`ConsumerConfig.java`), dots turned into underscores, and Kafka's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, Strict, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from kunicorn.errors import ConfigError
from kunicorn.handler.config import RetryTopic, route
from kunicorn.settings.assign import CLIENTS_GROUP, AssignSettings
from kunicorn.settings.checks import (
    MOST_COUNT,
    Milliseconds,
    Section,
    assignors_differ,
    is_broker_address,
    is_group_id,
    is_host_name,
    is_kafka_name,
    is_token,
    is_topic_or_pattern,
    librdkafka_properties,
)
from kunicorn.settings.handler import (
    DEAD_LETTER_RULES,
    DeadLetterSettings,
    HandlerSettings,
    OneOfHandlers,
    default_topic,
    handlers_problems,
    named,
    refuse_settings_of_none,
    retry_topic_problems,
    taken_topics,
    topics_of,
    without_topics,
)
from kunicorn.settings.otlp import OtlpSettings
from kunicorn.settings.pipeline import PIPELINE_RULES, PipelineSettings, default_stream_group
from kunicorn.settings.problems import Contradictions, Problem
from kunicorn.settings.producing import PRODUCING_RULES, ProducingSettings
from kunicorn.settings.rules import GROUP_RULES, RETRY_RULES, SOURCE_RULES, Rule, check
from kunicorn.settings.schema_registry import DECODING_RULES, SchemaRegistrySettings
from kunicorn.settings.security import SecuritySettings, token_content, unreadable
from kunicorn.settings.topics import TopicSettings
from kunicorn.settings.workers import WorkerSettings

_RULES = (
    Rule(
        "token_file",
        lambda s: s.token is None or s.token_file is None,
        "token is set, too; remove one of them",
    ),
    Rule(
        "tls_certificate_file",
        lambda s: s.tls_certificate_file is not None or s.tls_key_file is None,
        "not set beside tls_key_file = {s.tls_key_file!r}; name the certificate, or remove the key",
    ),
    Rule(
        "tls_key_file",
        lambda s: s.tls_key_file is not None or s.tls_certificate_file is None,
        "not set beside tls_certificate_file = {s.tls_certificate_file!r}; name its key, or remove the certificate",
    ),
)


class HttpSettings(Section):
    """Probes, metrics and the status page; read-only unless there is a token."""

    enabled: bool = Field(True, description="Serve the status page at /, and /livez, /readyz, /metrics and /status.")
    host: str = Field(
        "0.0.0.0",  # noqa: S104 - a pod is scraped from outside
        min_length=1,
        description="Address to listen on; 127.0.0.1 keeps it to this machine. With `kunicorn run --reload`, which is "
        "for a desk, that is the default.",
    )
    port: int = Field(9400, ge=0, le=65_535, description="Port to listen on; 0 takes a free one and logs it.")
    allowed_hosts: Annotated[tuple[Annotated[str, AfterValidator(is_host_name)], ...], Strict(False)] = Field(
        (),
        examples=[["orders.example.com"]],
        description="Further names under which the pages are shown. Addresses, names without a dot, this machine's "
        "name, and those that end in .svc, .local, .internal, .home.arpa, .localhost or .test always are. Others are "
        "refused on all but /livez, /readyz and /metrics: whoever owns a name may point it here, and read by the "
        "browser of a visitor.",
    )
    partition_metrics_max: int = Field(
        2000,
        ge=0,
        le=MOST_COUNT,
        description="With more assigned partitions than this, /metrics leaves out the series per partition. What is "
        "told of a topic or of the group stays, such as kafka_consumer_max_lag_seconds.",
    )
    token: Annotated[SecretStr, AfterValidator(is_token)] | None = Field(
        None,
        examples=["a-long-and-random-text"],
        description="Permits whoever sends it to pause, resume and seek partitions, recycle workers, and reload and "
        "drain the service over HTTP. Not set: nothing can be done over HTTP.",
    )
    token_file: str | None = Field(
        None,
        min_length=1,
        examples=["/run/secrets/http_token"],
        description="A file that holds the token; in place of token.",
    )
    tls_certificate_file: str | None = Field(
        None,
        min_length=1,
        examples=["/run/secrets/http/tls.crt"],
        description="A certificate and its chain in PEM: the port then speaks TLS 1.2 or later, and nothing else. A "
        "renewed one is read within ten seconds, without a restart.",
    )
    tls_key_file: str | None = Field(
        None,
        min_length=1,
        examples=["/run/secrets/http/tls.key"],
        description="The key of tls_certificate_file, in PEM and not encrypted.",
    )

    @property
    def scheme(self) -> str:
        """How the port is asked: http, or https where there is a certificate."""
        return "http" if self.tls_certificate_file is None else "https"

    @property
    def acts(self) -> bool:
        """Whether there is a token, so that actions are allowed over HTTP."""
        return self.token is not None or self.token_file is not None

    def secret_token(self) -> str:
        """The token; its file is read at every call, as it may be rotated. Raises `ConfigError`. Blocks on the disk."""
        if self.token_file is None:
            assert self.token is not None
            return self.token.get_secret_value()
        try:
            return token_content(self.token_file).get_secret_value()
        except ValueError as error:
            raise ConfigError(f"http.token_file = {self.token_file!r} {error}") from error

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(self, "http", _RULES)
        problems = [
            *unreadable("http", {name: getattr(self, name) for name in ("tls_certificate_file", "tls_key_file")}),
            *self._token_problems(),
        ]
        if problems:
            raise Contradictions(problems)
        return self

    def _token_problems(self) -> Iterator[Problem]:
        if self.token_file is not None:
            try:
                self.secret_token()
            except ConfigError as error:
                yield Problem("http.token_file", self.token_file, str(error).partition(" = ")[2].partition(" ")[2])


# TOML's arrays arrive as lists; the settings are frozen, so they are kept as tuples (hence `Strict(False)`, which is
# about the array only: its items stay strict).
Servers = Annotated[tuple[Annotated[str, AfterValidator(is_broker_address)], ...], Strict(False), Field(min_length=1)]
Topics = Annotated[tuple[Annotated[str, AfterValidator(is_topic_or_pattern)], ...], Strict(False)]
Assignors = Annotated[
    tuple[Literal["range", "roundrobin", "sticky", "cooperative-sticky"], ...],
    Strict(False),
    Field(min_length=1),
    AfterValidator(assignors_differ),
]


class _ClusterSettings(Section):
    """The part of [kafka] that is not about security."""

    bootstrap_servers: Servers = Field(
        description="Brokers to ask first, as host:port; any of them that answers will do.",
        examples=[["127.0.0.1:9092"]],
    )
    client_id: str = Field(
        "kunicorn", min_length=1, max_length=200, description="Our name in the brokers' logs, quotas and metrics."
    )
    client_rack: str | None = Field(
        None,
        min_length=1,
        examples=["eu-west-1a"],
        description="Where we run; the brokers then let us fetch from replicas nearby (KIP-392).",
    )
    isolation_level: Literal["read_uncommitted", "read_committed"] = Field(
        "read_uncommitted", description="With read_committed, records of open and aborted transactions are not handled."
    )
    request_timeout_ms: Milliseconds = Field(
        30_000, description="How long a broker may take to answer before it counts as gone."
    )
    retry_backoff_ms: Milliseconds = Field(100, description="Wait before the first repetition of a failed request.")
    retry_backoff_max_ms: Milliseconds = Field(
        1000, description="The wait doubles with every failure, up to this (KIP-580)."
    )
    metadata_max_age_ms: Milliseconds = Field(
        300_000, description="How often topics and partitions are looked up anew; new ones are found no later."
    )
    statistics_interval_ms: int = Field(
        0,
        ge=0,
        le=86_400_000,
        description="How often the workers' clients give figures of their own (kunicorn_client_…), such as 15000; "
        "0: never. A thousand partitions make 763 kB of JSON each time.",
    )
    fetcher: Literal["librdkafka", "own"] = Field(
        "librdkafka",
        description="Who fetches in the workers: librdkafka, or kunicorn's own fetcher, for handlers of every mode. "
        "That makes columns of what the brokers send, and objects of those records that a handler looks at; it needs "
        "the wheel kunicorn_columns. It is new: librdkafka stays the default until it has been through every fault of "
        "docs/delivery.md.",
    )
    librdkafka: Annotated[Mapping[str, str | int | float | bool], BeforeValidator(librdkafka_properties)] = Field(
        default={},
        examples=[{"fetch.wait.max.ms": 100}],
        description="Further librdkafka properties of the workers' consumers, their dotted names in quotes.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        return check(self, "kafka", RETRY_RULES)


class KafkaSettings(SecuritySettings, _ClusterSettings):
    """The cluster and how it is reached."""


class GroupSettings(Section):
    """The consumer group: one service is one member of it."""

    id: Annotated[str, AfterValidator(is_group_id)] = Field(
        description="The consumer group; all services with this id share its partitions. With [assign] only what the "
        "brokers check rights against.",
        examples=["orders"],
        json_schema_extra={"default": f"**required**; with [assign] `{CLIENTS_GROUP}`"},
    )
    topics: Topics = Field(
        description="Topics to consume; a leading ^ makes a regular expression, for all topics but Kafka's own; for "
        "the consumer protocol it must not match these.",
        examples=[["orders", "^refunds-.*"]],
        json_schema_extra={"default": "**required**, but for [assign]"},
    )
    group_protocol: Literal["classic", "consumer"] = Field(
        "classic",
        description="The rebalance protocol: classic, or consumer (KIP-848), where the brokers share out and hand "
        "over; brokers before 4.0 do not have it, and the service goes on with classic then.",
    )
    group_remote_assignor: Literal["uniform", "range"] | None = Field(
        None,
        examples=["uniform"],
        description="Which of the brokers' assignors is used, with the consumer protocol; theirs to choose if unset.",
    )
    allow_protocol_upgrade: bool = Field(
        False,
        description="Permits group_protocol = consumer for a group that is a classic one, and so converts it.",
    )
    partition_assignment_strategy: Assignors = Field(
        ("cooperative-sticky",),
        description="How partitions are shared out between members, best first; all members must have one in common.",
    )
    auto_offset_reset: Literal["earliest", "latest", "none"] = Field(
        "earliest",
        description="Where to begin without a committed offset; none stops the partition instead. "
        "latest skips what was written before the group began; partitions added later start at their beginning.",
    )
    session_timeout_ms: Milliseconds = Field(
        45_000,
        description="A member that is silent for so long loses its partitions. With the consumer protocol the brokers' "
        "group.consumer.session.timeout.ms decides, and workers pause after the shorter of the two. Where this user "
        "may not read theirs (DESCRIBE_CONFIGS on the group), this must not be above it.",
    )
    allow_short_session_timeout: bool = Field(False, description="Permits a session_timeout_ms below 10000, for tests.")
    heartbeat_interval_ms: Milliseconds = Field(
        1000, description="Pace of heartbeats, and so of noticing a rebalance; at most a third of session_timeout_ms."
    )
    max_poll_interval_ms: Milliseconds = Field(
        300_000,
        description="The rebalance timeout: how long the group waits for a member that still drains and commits.",
    )
    drain_timeout_ms: Milliseconds = Field(
        25_000, description="How long records in hand may take to finish when their partition leaves us."
    )
    commit_timeout_ms: Milliseconds = Field(
        5000,
        description="How long the commit of a leaving partition may take, after draining. In a rebalance the time "
        "without a coordinator does not count, up to three quarters of max_poll_interval_ms; in a stop it does.",
    )
    commit_interval_ms: Milliseconds = Field(5000, description="How often what has been handled is committed.")
    group_instance_id: Annotated[str, AfterValidator(is_kafka_name)] | None = Field(
        None,
        examples=["orders-0"],
        description="Makes a static member (KIP-345); unique in the group, such as the pod's name in a StatefulSet.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        return check(self, "group", GROUP_RULES)


class LogSettings(Section):
    """Logs go to standard output, one event a line."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is written.")
    format: Literal["auto", "text", "json"] = Field(
        "auto", description="auto is text on a terminal and json elsewhere."
    )


RECORD_KEY: Final = "messaging.kafka.message.key"
BODY_SIZE: Final = "messaging.message.body.size"
OptionalAttribute = Literal["messaging.kafka.message.key", "messaging.message.body.size"]


class TracingSettings(Section):
    """Spans around the handler's calls, for OpenTelemetry, which the extra `tracing` installs."""

    enabled: bool = Field(
        False,
        description="Call the handler within a span for each record (batch), which goes on with the trace that the "
        "record's headers tell. The handler's setup says where spans go.",
    )
    optional_attributes: Annotated[tuple[OptionalAttribute, ...], Strict(False)] = Field(
        (),
        examples=[[RECORD_KEY]],
        description="Attributes that spans of single records have only if they are named here: a record's key, which "
        "may be somebody's name, and the size of its value.",
    )


class Settings(BaseSettings):
    """All settings; made by `load`, frozen, and sent nowhere as a whole."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", strict=True, case_sensitive=True, hide_input_in_errors=True
    )

    kafka: KafkaSettings
    group: GroupSettings
    assign: AssignSettings = Field(default_factory=AssignSettings)
    handler: HandlerSettings
    """With [[handlers]] the first of them: look at `handler_of` for what concerns records."""
    handlers: Annotated[tuple[OneOfHandlers, ...], Strict(False)] = ()
    dead_letters: DeadLetterSettings = Field(default_factory=DeadLetterSettings)
    producing: ProducingSettings = Field(default_factory=ProducingSettings)
    topics: TopicSettings = Field(default_factory=TopicSettings)
    schema_registry: SchemaRegistrySettings = Field(default_factory=SchemaRegistrySettings)
    workers: WorkerSettings = Field(default_factory=WorkerSettings)
    pipeline: PipelineSettings = Field(default_factory=PipelineSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)
    otlp: OtlpSettings = Field(default_factory=OtlpSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @property
    def dead_letter_topic(self) -> str | None:
        """Topic of dead letters; None where no setting asks for any."""
        asked = self.dead_letters.topics or any(each.makes_dead_letters for each in self.every_handler)
        if self.dead_letters.topic is None and not asked:
            return None
        return self.dead_letters.topic or default_topic(self.group.id)

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """That topic, and those of handlers and of reasons."""
        own = (topic for each in self.every_handler for topic in each.own_dead_letter_topics)
        every = (self.dead_letter_topic, *own, *self.dead_letters.topics.values())
        return tuple(dict.fromkeys(topic for topic in every if topic is not None))

    @property
    def every_handler(self) -> tuple[HandlerSettings, ...]:
        """All handlers: the one of [handler], or those of [[handlers]] in their order."""
        return self.handlers or (self.handler,)

    def handler_of(self, topic: str) -> HandlerSettings:
        """Handler of that topic's records. Raises `LookupError` for a topic without one."""
        if not self.handlers:
            return self.handler
        number = route([taken_topics(each, self.group.id) for each in self.handlers], topic)
        if number is None:
            raise LookupError(f"no handler takes topic {topic!r}: add it to the topics of one of [[handlers]]")
        return self.handlers[number]

    @property
    def stream_group(self) -> str:
        """Group that `kunicorn pipeline stream` commits to."""
        return self.pipeline.stream_group_id or default_stream_group(self.group.id)

    @property
    def other_topics(self) -> dict[str, str]:
        """Topics that must exist beside those that are consumed, with the setting that names each."""
        letters = dict.fromkeys(self.dead_letter_topics, "dead_letters.topic")
        retries = dict.fromkeys(self.retry_topics, "handler.retry_topic")
        return {**letters, **self.producing.output_topics, **retries}

    @property
    def retry_topics(self) -> dict[str, RetryTopic]:
        """Retry topics of all handlers, by name."""
        return {topic.name: topic for topic in named(self)}

    def delay_ms_of(self, topic: str) -> int:
        """How long after their timestamps that topic's records are handled at the earliest."""
        if (retry := self.retry_topics.get(topic)) is not None:
            return retry.delay_ms
        try:
            return self.handler_of(topic).delay_ms or 0
        except LookupError:
            return 0

    @property
    def subscribed_topics(self) -> tuple[str, ...]:
        """Topics that the group subscribes to: names and patterns."""
        return (*self.group.topics, *self.retry_topics)

    @property
    def assigned(self) -> bool:
        """Whether [assign] names the partitions: no membership, no commit."""
        return bool(self.assign.partitions)

    @model_validator(mode="before")
    @classmethod
    def _spare(cls, tables: Any) -> Any:
        """Fill in required settings that others imply: `group.topics` and [handler] beside [[handlers]], a group beside
        [assign].
        """
        handler, handlers, assign = (tables.get(name) for name in ("handler", "handlers", "assign"))
        group = tables.get("group", {})
        if handlers:
            refuse_settings_of_none(handler)
        if handlers and not handler:
            tables = {**tables, "handler": without_topics(handlers)}
        if not isinstance(group, Mapping):
            return tables
        if isinstance(assign, Mapping) and assign.get("partitions"):
            return {**tables, "group": {"id": CLIENTS_GROUP, "topics": (), **group}}
        return {**tables, "group": {"topics": topics_of(handlers), **group}} if handlers else tables

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(self, "", (*SOURCE_RULES, *DEAD_LETTER_RULES, *DECODING_RULES, *PRODUCING_RULES, *PIPELINE_RULES))
        if problems := [*handlers_problems(self), *retry_topic_problems(self)]:
            raise Contradictions(problems)
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in: an object made in a test must not depend on the machine's environment."""
        return (init_settings,)
