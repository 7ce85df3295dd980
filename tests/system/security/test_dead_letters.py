"""Dead letters where connections are secured: sent, listed and sent back, with the least rights there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.errors import ConfigError
from tests.kafka.secured import PASSWORDS, SecuredCluster
from tests.system.scene import Scene
from tests.system.security import ways
from tests.waiting import wait_until

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


@pytest.mark.long
def test_letters_are_sent_listed_and_sent_back_over_tls_by_a_user_with_a_password(
    secured: SecuredCluster, scene: SceneMaker
) -> None:
    stage = scene(ways.of(secured, "SCRAM-SHA-256"), handler=HANDLER)
    letters = secured.create_topic(f"{stage.topic}.dead-letters", 1)
    grant(secured, [(ResourceType.TOPIC, letters, AclOperation.WRITE)])
    stage.send(0, "fine", "raise", "fine")
    member = stage.members.start()
    stage.wait_handled(0, 2, member)
    with pytest.raises(ConfigError, match=re.escape(f"this user needs READ on the topic '{letters}'")):
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
    wait_until(lambda: f"{letters}: 2 dead letters" in dlq(stage, "list"), "the record to fail again", 120, 0.5)
    assert "1 replays before" in dlq(stage, "show", "0@1")
    assert member.stop() == 0
    assert stage.handled(0) == [0, 2]
    assert stage.committed()[0] == 4


@pytest.mark.long
def test_a_user_who_may_not_remember_what_was_sent_back_sends_nothing_and_is_told_the_right(
    secured: SecuredCluster, scene: SceneMaker
) -> None:
    stage = scene(ways.of(secured, "SCRAM-SHA-256"), handler=HANDLER)
    letters = secured.create_topic(f"{stage.topic}.dead-letters", 1)
    grant(secured, [(ResourceType.TOPIC, letters, right) for right in (AclOperation.READ, AclOperation.WRITE)])
    grant(secured, [(ResourceType.TOPIC, stage.topic, AclOperation.WRITE)])
    stage.send(0, "raise")
    member = stage.members.start()
    wait_until(lambda: f"{letters}: 1 dead letter" in dlq(stage, "list"), "a letter", 120, 0.5)
    needed = re.escape(f"this user needs READ on the group '{stage.topic}.dlq-replay'")
    with pytest.raises(ConfigError, match=needed):
        dlq(stage, "replay", "--yes")
    assert member.stop() == 0
    assert stage.committed()[0] == 1
