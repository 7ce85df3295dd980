"""Rights on a cluster that asks for them, given and taken away. Small, as it is the same for every such cluster."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.kafka.cluster import KafkaCluster
from tests.waiting import wait_until

_SECONDS = 60.0
Right = tuple[ResourceType, str, AclOperation]

ACCESS: Mapping[str, object] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings of brokers with which whoever logs in has the rights that were given, and who does not log in has all."""
EVERYTHING: tuple[Right, ...] = tuple(
    (kind, "*", AclOperation.ALL) for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
)


def allow(kafka: KafkaCluster, who: str, *rights: Right) -> None:
    """Grant `User:<who>` these rights, beside those it has."""
    for done in kafka.admin().create_acls([_binding(who, right, AclPermissionType.ALLOW) for right in rights]).values():
        done.result(_SECONDS)
    for right in rights:
        _wait_until(kafka, _filter(who, right, AclPermissionType.ALLOW), there=True)


def deny(kafka: KafkaCluster, who: str, right: Right) -> None:
    """Refuse it whatever else is granted, until `admit`."""
    for done in kafka.admin().create_acls([_binding(who, right, AclPermissionType.DENY)]).values():
        done.result(_SECONDS)
    _wait_until(kafka, _filter(who, right, AclPermissionType.DENY), there=True)


def admit(kafka: KafkaCluster, who: str, right: Right) -> None:
    """Refuse it no more."""
    wanted = _filter(who, right, AclPermissionType.DENY)
    for done in kafka.admin().delete_acls([wanted]).values():
        assert done.result(_SECONDS), f"{who} was not denied {right}"
    _wait_until(kafka, wanted, there=False)


def forbid(kafka: KafkaCluster, who: str) -> None:
    """Take all its rights away."""
    name, every = f"User:{who}", (AclOperation.ANY, AclPermissionType.ANY)
    wanted = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, name, None, *every)  # type: ignore[arg-type]
    for done in kafka.admin().delete_acls([wanted]).values():
        assert done.result(_SECONDS), f"{who} had no rights"
    _wait_until(kafka, wanted, there=False)


def _wait_until(kafka: KafkaCluster, wanted: AclBindingFilter, *, there: bool) -> None:
    """Until a broker goes by it: the controller answers a change before they know of it."""

    def known() -> bool:
        try:
            return bool(kafka.admin().describe_acls(wanted).result(_SECONDS)) is there
        except KafkaException:
            return False  # Of a broker that is just being hurt.

    wait_until(known, "a broker to go by the rights")


def _filter(who: str, right: Right, permission: AclPermissionType) -> AclBindingFilter:
    kind, name, operation = right
    what = (kind, name, ResourcePatternType.LITERAL, f"User:{who}", None, operation, permission)
    return AclBindingFilter(*what)  # type: ignore[arg-type]


def _binding(who: str, right: Right, permission: AclPermissionType) -> AclBinding:
    kind, name, operation = right
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{who}", "*", operation, permission)
