"""Topics that the client is asked to know before their partitions are assigned."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.worker.fetching import client as module
from kunicorn.worker.fetching.client import KnownTopics


class Asked:
    def __init__(self) -> None:
        self.topics: list[str] = []

    def list_topics(self, topic: str, timeout: float) -> None:
        self.topics.append(topic)


def test_topics_that_come_and_go_are_asked_for_once_and_not_remembered_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_KNOWN", 3)
    asked: Any = Asked()
    known = KnownTopics(asked)
    known.learn(["day-1", "day-2", "day-1", "day-3"], 60)
    assert asked.topics == ["day-1", "day-2", "day-3"]
    known.learn(["day-4"], 60)
    assert known._known == {"day-4"}
