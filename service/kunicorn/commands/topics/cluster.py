"""The brokers' side of `kunicorn topics`: what there is, and the changes of a plan carried out. Blocks.

librdkafka's AdminClient creates and alters: our own client speaks only what members and jobs ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from kunicorn.clients.access import made, token_login
from kunicorn.clients.config import security_properties
from kunicorn.clients.session import REQUEST_TIMEOUT, ClusterSession, partition_count
from kunicorn.commands.embedded import is_embedded
from kunicorn.commands.topics.plan import CONFIGS, Change, Found, found_in
from kunicorn.errors import ConfigError
from kunicorn.ipc.messages import Token
from kunicorn.kafka_errors import ErrorCode
from kunicorn.librdkafka.errors import fault_of
from kunicorn.librdkafka.properties import letter_properties
from kunicorn.settings import Settings

_LOOKING = "DESCRIBE_CONFIGS"
"""The right to look at a topic's settings."""
_LIMIT = 2 * REQUEST_TIMEOUT
"""Seconds: a new topic's partitions are spread over the brokers before CreateTopics is answered."""


class Admin:
    """Requests to the controller. Methods raise `ConfigError` where a broker refuses or does not answer."""

    def __init__(self, settings: Settings, token: Token | None) -> None:
        """Opens nothing yet."""
        kafka = settings.kafka
        # The client of administration is a producer that sends nothing.
        properties = letter_properties(
            bootstrap_servers=kafka.bootstrap_servers,
            client_id=f"{kafka.client_id}-topics",
            security=security_properties(kafka),
            extra=dict(kafka.librdkafka),
            delivery_timeout_ms=settings.dead_letters.delivery_timeout_ms,
        )
        self._client = made(lambda: AdminClient({**properties, "log_level": 0, **token_login(token)}))
        self._client.poll(0)  # A token is asked for by a callback.

    def configs(self, topics: Collection[str]) -> dict[str, Mapping[str, str]]:
        """Of each topic those of `CONFIGS` that the broker tells. Needs the right DESCRIBE_CONFIGS."""
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        if not asked:
            return {}
        found: dict[str, Mapping[str, str]] = {}
        for resource, answer in self._client.describe_configs(asked, request_timeout=_LIMIT).items():
            entries = _answered(answer, f"the settings of topic {resource.name}", _LOOKING)
            found[resource.name] = {name: str(entries[name].value) for name in CONFIGS if name in entries}
        return found

    def carry_out(self, change: Change) -> None:
        """Create or alter the topic; returns when the controller has confirmed it."""
        values = {name: then for name, (_, then) in change.configs.items()}
        if change.create:
            new = NewTopic(change.name, change.partitions, change.replicas, config=values)
            (answer,) = self._client.create_topics([new], operation_timeout=_LIMIT, request_timeout=_LIMIT).values()
            _answered(answer, f"topic {change.name}", "CREATE")
            return
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, change.name, incremental_configs=entries)
        (answer,) = self._client.incremental_alter_configs([resource], request_timeout=_LIMIT).values()
        _answered(answer, f"the settings of topic {change.name}", "ALTER_CONFIGS")


_UNSURE = frozenset({ErrorCode.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT})


def _remedy(code: int, what: str, rights: str) -> str:
    known = fault_of(code).remedy(topic=what, rights=rights)
    if rights == _LOOKING or code not in _UNSURE:
        return known
    return f"{known}; what was asked for may be done yet: see kunicorn topics plan"


def _answered(answer: Future[Any], what: str, rights: str) -> Any:
    try:
        return answer.result(_LIMIT + REQUEST_TIMEOUT)
    except KafkaException as error:
        code, why = error.args[0].code(), error.args[0].str()
        raise ConfigError(f"{what}: {fault_of(code)} ({why}): {_remedy(code, what, rights)}") from error
    except TimeoutError as error:
        raise ConfigError(f"{what}: no broker has answered within {_LIMIT:g} s; look whether it was done") from error


def look(session: ClusterSession, admin: Admin) -> Found:
    """The topics that the settings name, as the brokers describe them."""
    settings = session.settings
    wanted = settings.assign.wanted.topics or settings.group.topics
    patterns = [name for name in wanted if name.startswith("^")]
    named = [name for name in wanted if not name.startswith("^")]
    others = settings.other_topics
    matched = session.topics(patterns) if patterns else []
    metadata = session.metadata({*named, *matched, *others})
    if is_embedded(metadata):
        raise ConfigError(
            "the embedded broker tells and changes no topic's settings: it has made the topics that the settings named "
            "when it began; start it again for others, or use a real Kafka"
        )
    inputs = [name for name in dict.fromkeys((*named, *matched)) if name not in others]
    there = [name for name in (*inputs, *others) if partition_count(metadata, name)]
    return found_in(metadata, inputs, others, admin.configs(there))


def carry_out(admin: Admin, changes: Iterable[Change], say: Callable[[str], None]) -> list[str]:
    """Carry out one change after the other, whatever becomes of the others; returns why some failed."""
    failed = []
    for change in changes:
        try:
            admin.carry_out(change)
        except ConfigError as error:
            failed.append(str(error))
        else:
            say(f"{change.name}: {'created' if change.create else 'changed'}")
    return failed
