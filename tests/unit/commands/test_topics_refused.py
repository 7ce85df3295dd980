"""What `kunicorn topics` says where the controller does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kunicorn.commands.topics import cluster
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
