"""One secured broker for each file, and what its tests have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.kafka.secured import SecuredCluster
from tests.system.members import Members
from tests.system.scene import Scene


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster


@pytest.fixture
def scene(
    secured: SecuredCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> Callable[..., Scene]:
    """A topic, with a group of the same name, that the users named may read and nothing else:
    `scene({"security_protocol": …}, may=["alice"])`."""

    def make(
        kafka: Mapping[str, Any],
        *,
        may: tuple[str, ...] = ("alice", "CN=client"),
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Scene:
        secured.create_topic(topic, 2)
        for who in may:
            secured.allow(
                who,
                (ResourceType.TOPIC, topic, AclOperation.READ),
                (ResourceType.GROUP, topic, AclOperation.READ),
            )
        members = members_of(
            secured.bootstrap,
            topic,
            entrypoint="tests.system.handlers.audited:handle",
            settings={"kafka": kafka, **more},
            env=env,
        )
        return Scene(secured, topic, 2, members, tmp_path)

    return make
