"""Dead letters where connections are secured: sent, listed and sent back, with the least rights there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from typer.testing import CliRunner

from kunicorn.cli import app
from kunicorn.errors import ConfigError
from tests.kafka.secured import PASSWORDS, SecuredCluster
from tests.system.security.test_mechanisms import of
from tests.system.workers.scene import Scene

SceneMaker = Callable[..., Scene]
HANDLER = {"entrypoint": "tests.system.handlers.marked:handle", "on_failure": "dead_letter", "max_attempts": 1}


def dlq(stage: Scene, *arguments: str) -> str:
    """`kunicorn dlq` with the settings of the group's member; what it printed."""
    (member,) = stage.members.started
    result = CliRunner().invoke(app, ["dlq", *arguments, "--config", str(member.config)])
    if result.exception is not None:
        raise result.exception
    assert not [secret for secret in PASSWORDS.values() if secret in result.output]
    return result.stdout


def grant(secured: SecuredCluster, rights: Iterable[tuple[ResourceType, str, AclOperation]]) -> None:
    secured.allow("alice", *rights)


def test_letters_are_sent_listed_and_sent_back_over_tls_by_a_user_with_a_password(
    secured: SecuredCluster, scene: SceneMaker
) -> None:
    stage = scene(of(secured, "SCRAM-SHA-256"), handler=HANDLER)
    letters = secured.create_topic(f"{stage.topic}.dead-letters", 1)
    grant(secured, [(ResourceType.TOPIC, letters, AclOperation.WRITE)])
    stage.send(0, "fine", "raise once", "fine")
    member = stage.members.start(env={"MARKS_DIRECTORY": str(stage.marks)})
    stage.wait_handled(0, 2, member)
    with pytest.raises(ConfigError, match=re.escape(f"'{letters}' cannot be read: ") + ".*TOPIC_AUTHORIZATION_FAILED"):
        dlq(stage, "list")
    grant(secured, [(ResourceType.TOPIC, letters, AclOperation.READ)])
    listed = dlq(stage, "list")
    assert f"{letters}: 1 dead letter" in listed
    assert f"NoSuchCustomer  {stage.topic}-0" in listed
    grant(
        secured,
        [
            (ResourceType.TOPIC, stage.topic, AclOperation.WRITE),
            (ResourceType.GROUP, f"{stage.topic}.dlq-replay", AclOperation.READ),
        ],
    )
    assert "sent back and acknowledged: 1" in dlq(stage, "replay", "--yes")
    stage.wait_handled(0, 3, member)
    assert "to send back: 0" in dlq(stage, "replay", "--yes")
    assert member.stop() == 0
    assert stage.handled(0) == [0, 2, 3]
    assert stage.committed()[0] == 4
