"""The demo on a cluster of one's own: what it leaves behind, and what it says where brokers are gone."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from kunicorn.commands.demo import scenario
from kunicorn.commands.demo.scenario import DemoFailed, _cluster, _refused, run_demo


class Unanswered(Future[None]):
    """Nobody answers, however long it is waited for."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        raise TimeoutError


class GoneBroker:
    """Makes the topic, and answers nothing from then on."""

    def __init__(self, properties: dict[str, Any]) -> None:
        pass

    def create_topics(self, topics: list[NewTopic], **_: Any) -> dict[str, Future[None]]:
        made = Future[None]()
        made.set_result(None)
        return {topic.topic: made for topic in topics}

    def delete_topics(self, names: list[str], **_: Any) -> dict[str, Future[None]]:
        return {name: Unanswered() for name in names}

    delete_consumer_groups = delete_topics


def test_where_brokers_are_gone_at_the_end_it_is_said_what_the_demo_failed_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out of removing the topic took its place, as a traceback."""
    monkeypatch.setattr(scenario, "AdminClient", GoneBroker)
    with pytest.raises(DemoFailed, match="it took more than 60 s"), _cluster("127.0.0.1:9092", "topic"):
        raise DemoFailed("waiting for everything to be committed, it took more than 60 s")


class LivingBroker(GoneBroker):
    """Makes the topic, and removes it."""

    removed: ClassVar[list[str]] = []

    def delete_topics(self, names: list[str], **_: Any) -> dict[str, Future[None]]:
        self.removed.extend(names)
        return self.create_topics([NewTopic(name) for name in names])

    delete_consumer_groups = delete_topics


def test_sigterm_leaves_nothing_behind_on_ones_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(*_: Any) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(scenario, "AdminClient", LivingBroker)
    monkeypatch.setattr(scenario, "_Demo", play)
    assert run_demo("127.0.0.1:9092", as_json=True) == 128 + signal.SIGINT
    assert len(LivingBroker.removed) == 2
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_brokers_that_are_too_few_for_their_own_replicas_are_told() -> None:
    refused = KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR))
    assert "default.replication.factor" in str(_refused("127.0.0.1:9092", "topic", refused))
