"""Rolling upgrades under load: of the brokers from Kafka 3.9 to 4.4, and of members from an earlier commit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kunicorn import __version__
from tests.chaos.faults import Hurt, replace_member, restart_broker
from tests.chaos.group import Group, now
from tests.kafka import KafkaCluster
from tests.kafka.cluster import VERSION
from tests.system import earlier

OLD = "3.9.1"
"""The last of Kafka 3, from which Kafka 4 is upgraded to; groups there speak the classic protocol."""
_TOOL = "org.apache.kafka.tools.FeatureCommand"
_FEATURES = ("metadata.version", "group.version", "transaction.version", "eligible.leader.replicas.version")
"""What groups, transactions and elections go by. `kraft.version` has to stay: the brokers' quorum is a fixed one."""
_DESCRIBED = re.compile(
    r"Feature: (\S+)\s+SupportedMinVersion: .*?SupportedMaxVersion: (?:UNKNOWN )?(\S+)\s+"
    r"FinalizedVersionLevel: (?:UNKNOWN )?(\S+)"
)
THEN = {
    "record": "tests.system.handlers.lethal:handle",
    "batch": "kunicorn.demo.handlers:handle_batch",
    "tasks": "kunicorn.demo.handlers:handle_async",
}
"""Handlers of the earlier commit, by ways of calling; its audit knows nothing of threads."""


class Feature(NamedTuple):
    """What brokers can do, and what they were told to do. As the tool gives it: a number, or a release it knows."""

    most: str
    finalized: str


def upgrade_brokers(group: Group) -> Hurt:
    """One after the other, then the features: as https://kafka.apache.org/documentation/#upgrade says."""
    hurt = Hurt(now())
    for broker in group.kafka.brokers:
        group.kafka.upgrade(broker, VERSION)
        restart_broker(group, broker)
    finalize(group.kafka)
    group.kafka.wait_until_whole()
    return hurt


def broker_complaints(group: Group, hurt: Hurt) -> Iterator[str]:
    """Of the group that is whole again."""
    if old := [broker.id for broker in group.kafka.brokers if broker.version != VERSION]:
        yield f"brokers {old} are not of {VERSION}"
    if behind := {name: each for name, each in features(group.kafka).items() if each.finalized != each.most}:
        yield f"features that were not upgraded: {behind}"


def features(kafka: KafkaCluster) -> dict[str, Feature]:
    """As the brokers say."""
    told = kafka.tool(_TOOL, "--bootstrap-server", kafka.bootstrap, "describe")
    every = {name: Feature(most, finalized) for name, most, finalized in _DESCRIBED.findall(told)}
    return {name: each for name, each in every.items() if name in _FEATURES}


def finalize(kafka: KafkaCluster) -> None:
    """Each to the most that the brokers can do."""
    wanted = {name: each.most for name, each in features(kafka).items() if each.finalized != each.most}
    named = [f"--metadata={most}" for most in wanted.values() if not most.isdigit()]
    numbered = [f"--feature={name}={most}" for name, most in wanted.items() if most.isdigit()]
    kafka.tool(_TOOL, "--bootstrap-server", kafka.bootstrap, "upgrade", *named, *numbered)


def then(way: str, place: Path) -> Mapping[str, Any]:
    """What makes a member one of the earlier commit, as arguments of `Members.start`; its files go to that place.
    Raises `NotInHistory`."""
    return {**earlier.of_then(place), "settings": {"handler": {"entrypoint": THEN[way]}}}


def upgrade_members(group: Group) -> Hurt:
    """All of an earlier commit are replaced by today's, then one of these by one of then, and that by one of today."""
    hurt = Hurt(now())
    _expect(group, earlier.VERSION)
    for member in list(group.alive):
        replace_member(group, member)
    _expect(group, __version__)
    back = replace_member(group, group.any_member(), group.terms.then)
    _expect(group, earlier.VERSION, __version__)
    replace_member(group, back)
    _expect(group, __version__)
    return hurt


def _expect(group: Group, *versions: str) -> None:
    told = {str(member.status()["version"]) for member in group.alive}
    assert told == set(versions), f"members are of {sorted(told)}, not of {versions}: this is no such upgrade"


def member_complaints(group: Group, hurt: Hurt) -> Iterator[str]:
    """Of the group that is whole again."""
    for member in group.members.started:
        if not any(group.members.audit.glob(f"*/{member.name}.*")):
            yield f"{member.name} has handled nothing: it was no member"
