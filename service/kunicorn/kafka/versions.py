"""API versions: which of Kafka's APIs and versions we speak, what a broker gets, and kio's message classes for them.

A class is loaded when it is first asked for. One API's take ten milliseconds on the event loop, once; those of all APIs
together would take longer than a start has to wait for anything else.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from kio.index import load_request_schema, load_response_schema

from kunicorn.kafka.errors import UnsupportedByBroker


class Api(IntEnum):
    """The APIs we use, by Kafka's key (`ApiKeys.java`)."""

    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69

    @property
    def title(self) -> str:
        """Kafka's spelling, for messages: JoinGroup."""
        return re.sub(r"_?([A-Z])([A-Z]*)", lambda word: word[1] + word[2].lower(), self.name)


class VersionRange(NamedTuple):
    """An inclusive range of versions."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


OURS: Mapping[Api, VersionRange] = {
    Api.API_VERSIONS: VersionRange(0, 4),
    # 0 announces tokens without any framing (KIP-43), which no broker since 1.0 asks for.
    Api.SASL_HANDSHAKE: VersionRange(1, 1),
    # From 1 on, the answer tells how long the authentication is good for (KIP-368).
    Api.SASL_AUTHENTICATE: VersionRange(0, 2),
    # From 7 on, leader epochs come along (KIP-320); from 10 on, topic ids (KIP-516).
    Api.METADATA: VersionRange(7, 13),
    # 3 asks for one key, 4 and later for several (KIP-699).
    Api.FIND_COORDINATOR: VersionRange(3, 6),
    # From 5 on, static members (KIP-345). From 9 on, `skip_assignment` (KIP-814).
    Api.JOIN_GROUP: VersionRange(5, 9),
    Api.SYNC_GROUP: VersionRange(3, 5),
    Api.HEARTBEAT: VersionRange(3, 4),
    # 2 names one member, 3 and later several.
    Api.LEAVE_GROUP: VersionRange(2, 5),
    # 10 names topics by id only, so that an offset never counts for another topic of the same name (KIP-848).
    Api.OFFSET_COMMIT: VersionRange(7, 10),
    # 8 and later ask for several groups (KIP-709). Not 10: it names topics by id only, and offsets are stored by name.
    Api.OFFSET_FETCH: VersionRange(6, 9),
    Api.LIST_OFFSETS: VersionRange(4, 11),
    # 2 needs the right to do cluster actions, 3 and later only to read the topic (KIP-320); no broker that checks
    # rights stops at 2.
    Api.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
    # From 4 on, static members are told apart (KIP-345).
    Api.DESCRIBE_GROUPS: VersionRange(4, 6),
    Api.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
    # From 5 on, it tells of which type a group is (KIP-848).
    Api.LIST_GROUPS: VersionRange(5, 5),
    Api.DESCRIBE_CONFIGS: VersionRange(1, 4),
    # From 1 on, the client makes the member id and the broker matches patterns (KIP-848, 1082); brokers from 4.0 on.
    Api.CONSUMER_GROUP_HEARTBEAT: VersionRange(1, 1),
}


BY_HAND: Mapping[Api, VersionRange] = {
    # From 12 on, the broker finds truncated logs (KIP-595); from 13 on, topics are ids (KIP-516); from 16 on, an answer
    # has new leaders' addresses (KIP-951). Brokers from 2.7 on have 12.
    Api.FETCH: VersionRange(12, 18),
}
"""APIs whose requests and answers kio's classes neither write nor read: `kunicorn.fetch` does, and a decoder."""

BY_DEMAND: Mapping[Api, VersionRange] = {
    # The last one in which a commit says for how long the offset is kept (KIP-211 took that out of 5 and later).
    Api.OFFSET_COMMIT: VersionRange(4, 4),
}
"""Older versions that say what later ones cannot: spoken where `at_most` demands them, and never negotiated."""


class Negotiated:
    """Versions that one broker offered on one connection."""

    def __init__(self, offered: Mapping[int, VersionRange], broker: str) -> None:
        self._offered = offered
        self._broker = broker

    def version(self, api: Api, at_most: int | None = None) -> int:
        """The highest version that both sides speak, `at_most` where one can be too high; one of `BY_DEMAND` where that
        is below all others. Raises `UnsupportedByBroker`.

        Only at use: a broker that lacks an API that nobody asks for is a good broker.
        """
        ours = OURS.get(api) or BY_HAND[api]
        if at_most is not None and at_most < ours.low:
            ours = BY_DEMAND[api]
        offered = self._offered.get(api)
        if offered is None:
            raise UnsupportedByBroker(f"{self._broker} does not offer {api.title}: is it a Kafka broker?")
        version = min(ours.high, offered.high, ours.high if at_most is None else at_most)
        if version < max(ours.low, offered.low):
            raise UnsupportedByBroker(
                f"{self._broker} offers {api.title} in versions {offered}, this client speaks {ours}: "
                f"upgrade whichever of the two is the older"
            )
        return version


Schema: TypeAlias = Any
"""A kio dataclass (the class). Its fields differ from version to version: their types are known at run time only."""


class Schemas(Mapping[tuple[Api, int], Schema]):
    """kio's classes by API and version; its keys are what we speak."""

    def __init__(self, load: Callable[[Api, int], Schema]) -> None:
        self._load = load
        self._loaded: dict[tuple[Api, int], Schema | None] = {
            (api, version): None
            for spoken in (OURS, BY_DEMAND)
            for api, ours in spoken.items()
            for version in range(ours.low, ours.high + 1)
        }

    def __getitem__(self, key: tuple[Api, int]) -> Schema:
        schema = self._loaded[key]
        if schema is None:
            schema = self._loaded[key] = self._load(*key)
        return schema

    def __iter__(self) -> Iterator[tuple[Api, int]]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


REQUESTS = Schemas(load_request_schema)
RESPONSES = Schemas(load_response_schema)


def field_type(field: Field[Any]) -> tuple[Schema, bool]:
    """Type of the field without "or None" and without the array around it; and whether there is an array."""
    annotation: Any = field.type
    if isinstance(annotation, types.UnionType):
        (annotation,) = (each for each in typing.get_args(annotation) if each is not type(None))
    if typing.get_origin(annotation) is tuple:
        return typing.get_args(annotation)[0], True
    return annotation, False
