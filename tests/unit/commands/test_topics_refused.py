"""What `kunicorn topics` says where the controller does not answer, and where somebody else has changed topics."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kunicorn.commands import topics
from kunicorn.commands.topics import cluster
from kunicorn.commands.topics.plan import RETENTION, Change, Plan, Role
from kunicorn.errors import ConfigError
from tests.unit.settings.files import LEAST, loaded


class SilentController:
    """Answers each request as librdkafka does when no broker has."""

    def __init__(self, properties: Any) -> None: ...

    def poll(self, seconds: float) -> None: ...

    def describe_configs(self, resources: Iterable[Any], **_: Any) -> dict[Any, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return dict.fromkeys(resources, answer)


def test_a_controller_that_does_not_answer_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "AdminClient", SilentController)
    admin = cluster.Admin(loaded(tmp_path, LEAST), None)
    with pytest.raises(ConfigError, match=r"the settings of topic orders: _TIMED_OUT") as refused:
        admin.configs(["orders"])
    assert "report this" not in str(refused.value)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (KafkaError.TOPIC_ALREADY_EXISTS, "look again: topic letters has been created meanwhile"),
        (KafkaError.INVALID_REPLICATION_FACTOR, "or lower topics.replication_factor, or the brokers' default"),
        (KafkaError.INVALID_PARTITIONS, "correct topics.partitions"),
        (KafkaError.REQUEST_TIMED_OUT, "may be done yet: see kunicorn topics plan"),
        (KafkaError._TIMED_OUT, "may be done yet: see kunicorn topics plan"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "needs CREATE on topic letters"),
    ],
)
def test_a_topic_that_is_not_made_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    class Refusing(SilentController):
        def create_topics(self, new: Iterable[Any], **_: Any) -> dict[str, Future[Any]]:
            answer: Future[Any] = Future()
            answer.set_exception(KafkaException(KafkaError(code)))
            return {each.topic: answer for each in new}

    monkeypatch.setattr(cluster, "AdminClient", Refusing)
    admin = cluster.Admin(loaded(tmp_path, LEAST), None)
    with pytest.raises(ConfigError, match=remedy) as refused:
        admin.carry_out(Change("letters", Role.LETTERS, create=True, partitions=1, replicas=3))
    assert "never asks for" not in str(refused.value)


def test_a_value_that_somebody_else_has_raised_behind_the_plan_is_not_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person may think for long at the prompt."""
    changes = [Change("letters", Role.LETTERS, create=False, configs={RETENTION: ("1", "5")})]
    plans = [Plan(changes, [], 0), Plan([], [], 1)]
    done: list[Change] = []
    monkeypatch.setattr(topics, "cluster_session", lambda _: nullcontext(SimpleNamespace(token=None)))
    monkeypatch.setattr(topics, "Admin", lambda *_: SimpleNamespace(carry_out=done.append))
    monkeypatch.setattr(topics, "_plan", lambda *_: plans.pop(0))
    with pytest.raises(ConfigError, match="nothing was changed: the topics are not what they were"):
        topics.apply(loaded(tmp_path, LEAST), print, lambda: True, as_json=False)
    assert done == []
    plans[:] = [Plan(list(changes), [], 0), Plan(list(changes), [], 0)]
    topics.apply(loaded(tmp_path, LEAST), print, lambda: True, as_json=False)
    assert done == changes
