"""What the settings need of topics (`needs`), and what would have to change (`plan`). Pure.

Nothing is ever deleted, and nothing is lowered: a topic may be somebody else's, too. Kafka's names for a topic's
settings are those of `TopicConfig.java`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kunicorn.errors import ConfigError
from kunicorn.kafka.metadata import Metadata, TopicInfo
from kunicorn.settings import Settings

CLEANUP, RETENTION = "cleanup.policy", "retention.ms"
MAX_BYTES, IN_SYNC, UNCLEAN = "max.message.bytes", "min.insync.replicas", "unclean.leader.election.enable"
AHEAD = "message.timestamp.after.max.ms"
CONFIGS = (CLEANUP, RETENTION, MAX_BYTES, IN_SYNC, UNCLEAN, AHEAD)
"""The settings of a topic that are looked at."""
FOR_EVER = -1
"""`retention.ms` of a topic that keeps everything."""

_HEADERS_BYTES = 65_536
"""Room for the headers that a dead letter has beside its record: a traceback takes most of it."""
_MOST_BYTES, _LONGEST = 2**31 - 1, 2**63 - 1
"""Most that brokers take as `max.message.bytes` and as `retention.ms`; people write them for "as much as there is"."""
_REPLICAS = 3
_USUALLY_AHEAD_MS = 3_600_000
"""Kafka's default of `message.timestamp.after.max.ms` since 4.0."""


class Role(StrEnum):
    """What the service does with a topic."""

    INPUT = "input"
    LETTERS = "dead letters"
    RETRIES = "retries"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it."""

    partitions: int
    replicas: int
    """The least that a partition of it has."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Of `CONFIGS` those that the brokers tell."""

    def number(self, name: str) -> int | None:
        """A setting that is a number; None where it is not told."""
        try:
            return int(self.configs[name])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Found:
    """What there is: how many brokers, and which of the topics that the settings name (a pattern: those it matches)."""

    brokers: int
    topics: Mapping[str, Topic]
    inputs: Sequence[str]
    """Topics that are consumed: those named, there or not, and those that patterns match."""


def found_in(
    metadata: Metadata, inputs: Sequence[str], others: Iterable[str], configs: Mapping[str, Mapping[str, str]]
) -> Found:
    """What there is, by the cluster's metadata. `configs`: by topic, as far as they were asked for."""
    infos = {name: info for name in (*inputs, *others) if (info := metadata.topics.get(name)) and info.partitions}
    topics = {name: Topic(len(info.partitions), _replicas(info), configs.get(name, {})) for name, info in infos.items()}
    # One that is down is not listed, and its replicas stay where they are: a topic that is made while a broker restarts
    # would have one replica less for good.
    replicas = {node for info in infos.values() for each in info.partitions.values() for node in each.replicas}
    return Found(len(replicas.union(metadata.brokers)), topics, inputs)


def _replicas(info: TopicInfo) -> int:
    return min(len(partition.replicas) for partition in info.partitions.values())


@dataclass(frozen=True, slots=True)
class Need:
    """What a topic has to be like."""

    name: str
    role: Role
    partitions: int | None
    """Of a new one; None: it is not for us to say."""
    replicas: int
    at_least: Mapping[str, int] = field(default_factory=dict)
    exactly: Mapping[str, str] = field(default_factory=dict)
    spare: int = 0
    """So many replicas may be away while records are written; less, where the topic has no more than one."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that `apply` does to a topic."""

    name: str
    role: Role
    create: bool
    partitions: int = 0
    replicas: int = 0
    configs: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    """Settings, each as it is (None: the topic is new) and as it shall be."""

    def lines(self) -> Iterator[str]:
        """The change for the person who decides."""
        if self.create:
            yield f"+ {self.name}: {self.role}, {self.partitions} partitions, replication factor {self.replicas}"
        else:
            yield f"~ {self.name}: {self.role}"
        for name, (now, then) in self.configs.items():
            yield f"    {name} = {then}" if now is None else f"    {name} = {then}, now {now}"

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.name,
            "role": self.role.value,
            "change": "create" if self.create else "alter",
            **({"partitions": self.partitions, "replication_factor": self.replicas} if self.create else {}),
            "configs": {name: {"now": now, "then": then} for name, (now, then) in self.configs.items()},
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to change, what only a person can, and how many topics are as they should be."""

    changes: Sequence[Change]
    by_hand: Sequence[str]
    fine: int

    def lines(self) -> Iterator[str]:
        for change in self.changes:
            yield from change.lines()
        for told in self.by_hand:
            yield f"! {told}"
        if self.fine:
            yield f"= {self.fine} topics are as they should be"

    def as_json(self) -> dict[str, Any]:
        return {
            "changes": [change.as_json() for change in self.changes],
            "by_hand": list(self.by_hand),
            "fine": self.fine,
        }


def needs(settings: Settings, found: Found) -> list[Need]:
    """What the settings need, of each topic that they name. Raises `ConfigError` where two settings contradict."""
    own = settings.topics
    replicas = own.replication_factor or min(_REPLICAS, max(1, found.brokers))
    spare = 0 if own.min_insync_replicas else 1
    in_sync = own.min_insync_replicas or max(1, replicas - spare)
    if in_sync > replicas:
        raise ConfigError(
            f"topics.min_insync_replicas = {in_sync}: more than the {replicas} replicas of a topic that is created, "
            f"which nobody could write to; lower it, or raise topics.replication_factor"
        )
    there = [found.topics[name] for name in found.inputs if name in found.topics]
    partitions = own.partitions or max((topic.partitions for topic in there), default=None)
    written = {IN_SYNC: in_sync}
    found_needs = [Need(name, Role.INPUT, _of_input(settings, name), replicas) for name in found.inputs]
    largest = _largest(there)
    # Nothing is known of brokers that do not tell it: a topic for headers alone would take no letter.
    kept = written if largest is None else {**written, MAX_BYTES: min(largest + _HEADERS_BYTES, _MOST_BYTES)}
    deleted = {CLEANUP: "delete"}
    for letters in settings.dead_letter_topics:
        # A letter keeps its record's time: what is as old as its topic keeps anything would be deleted at once, and
        # what is further ahead of the clock than the letters' topic allows would be refused for ever.
        at_least = {**kept, RETENTION: _later(own.retention_ms, _longest(there)), **_ahead(there)}
        found_needs.append(Need(letters, Role.LETTERS, partitions, replicas, at_least, deleted, spare))
    for name, retry in settings.retry_topics.items():
        at_least = {**kept, RETENTION: own.retention_ms + retry.delay_ms}
        found_needs.append(Need(name, Role.RETRIES, partitions, replicas, at_least, deleted, spare))
    named = {*settings.dead_letter_topics, *settings.retry_topics}
    # One of these that is an output, too, would be created twice, and brokers refuse that.
    for output in (name for name in settings.producing.output_topics if name not in named):
        found_needs.append(Need(output, Role.OUTPUT, partitions, replicas, written, spare=spare))
    return found_needs


def _of_input(settings: Settings, name: str) -> int | None:
    """Number of partitions of an input that is created: with those that [assign] names. None: it is not created."""
    if settings.topics.partitions is None:
        return None
    numbered = settings.assign.wanted.numbered
    return max([settings.topics.partitions, *(tp.partition + 1 for tp in numbered if tp.topic == name)])


def _largest(inputs: Sequence[Topic]) -> int | None:
    return max((told for each in inputs if (told := each.number(MAX_BYTES)) is not None), default=None)


def _ahead(inputs: Sequence[Topic]) -> dict[str, int]:
    """How far the timestamps of what is consumed may be ahead of the clock, where that is further than usual."""
    furthest = max((each.number(AHEAD) or 0 for each in inputs), default=0)
    return {AHEAD: furthest} if furthest > _USUALLY_AHEAD_MS else {}


def _longest(inputs: Sequence[Topic]) -> int:
    """Longest retention of what is consumed; `FOR_EVER` if one keeps everything, or is compacted."""
    times = [FOR_EVER if each.configs.get(CLEANUP) == "compact" else each.number(RETENTION) or 0 for each in inputs]
    return FOR_EVER if FOR_EVER in times else max(times, default=0)


def _later(retention: int, age: int) -> int:
    return FOR_EVER if age == FOR_EVER or retention + age > _LONGEST else retention + age


def plan(found: Found, wanted: Sequence[Need]) -> Plan:
    """What would have to change. Raises `ConfigError` for a topic that is missing and cannot be created."""
    changes: list[Change] = []
    by_hand: list[str] = []
    for need in wanted:
        topic = found.topics.get(need.name)
        if topic is None:
            changes.append(_created(need))
            continue
        by_hand += undurable(need, topic)
        if configs := _altered(need, topic):
            changes.append(Change(need.name, need.role, create=False, configs=configs))
    others = {change.name for change in changes} | {told.partition(":")[0] for told in by_hand}
    return Plan(changes, by_hand, sum(need.name not in others for need in wanted))


def _created(need: Need) -> Change:
    if need.partitions is None:
        why = "it does not exist" if need.role is Role.INPUT else "how many partitions it needs is not known"
        raise ConfigError(f"topic {need.name} ({need.role}): {why}; set topics.partitions to have it created")
    values = {**need.exactly, **{name: str(least) for name, least in need.at_least.items()}}
    configs: dict[str, tuple[str | None, str]] = {name: (None, value) for name, value in values.items()}
    return Change(need.name, need.role, True, need.partitions, need.replicas, configs)


def _altered(need: Need, topic: Topic) -> dict[str, tuple[str | None, str]]:
    configs: dict[str, tuple[str | None, str]] = {}
    for name, value in need.exactly.items():
        now = topic.configs.get(name)
        if now is not None and now != value:
            configs[name] = (now, value)
    for name, least in need.at_least.items():
        number = topic.number(name)
        # More in sync than there are replicas would refuse every record; as many, each one while a broker is down.
        enough = min(least, max(1, topic.replicas - need.spare)) if name == IN_SYNC else least
        if number is not None and not _enough(name, number, enough):
            configs[name] = (str(number), str(enough))
    return configs


def _enough(name: str, number: int, least: int) -> bool:
    if name == RETENTION and FOR_EVER in (number, least):
        return number == FOR_EVER
    return number >= least


def undurable(need: Need, topic: Topic) -> list[str]:
    """What may lose records of an existing topic, and only a person can change."""
    found = []
    if topic.replicas < need.replicas:
        found.append(
            f"{need.name}: {need.role} with {topic.replicas} of {need.replicas} replicas, so that the end of a broker "
            f"may lose records: add replicas with kafka-reassign-partitions.sh"
        )
    if topic.configs.get(UNCLEAN) == "true":
        found.append(
            f"{need.name}: {need.role} with {UNCLEAN} = true, so that a broker that lagged may become its leader and "
            f"drop records: set it to false"
        )
    return found
