"""The machine of every job over ranges: what it calls, in which order, and what ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kunicorn.errors import ConfigError, ServiceError
from kunicorn.pipeline import rounds
from kunicorn.pipeline.report import Tasks
from kunicorn.pipeline.rounds import RangeJob, StoppedAtOnce
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.task import Summary
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import GroupSettings, HandlerSettings, HttpSettings, KafkaSettings, Settings

NEW = RunState((OffsetRange("orders", 0, 0, 20),), topics={"orders": "id"})


class Scene:
    """A job with Spark and the cluster left out; what is called is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.called: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}
        """What happens at a call."""
        monkeypatch.setattr(rounds, "open_session", lambda settings, master, run: self)
        monkeypatch.setattr(rounds, "Job", lambda spark, file: self)
        monkeypatch.setattr(rounds, "check_topics", lambda settings, state: self._note("topics"))
        self._directory = Directory(str(directory))

    def _note(self, name: str) -> None:
        self.called.append(name)
        self.at.get(name, lambda: None)()

    def check_executors(self, directory: Directory, *, handler: bool) -> None:
        self._note("executors")

    def stop(self) -> None:
        self._note("spark stops")

    def tasks(self) -> Tasks:
        return Tasks()

    def handled(self, job: object, ranges: Sequence[OffsetRange]) -> list[Summary]:
        self._note("run")
        return [Summary(*each, each.stop, each.size, 0, 0, None, "f", 1.0) for each in ranges]

    def start(self, state: RunState = NEW) -> RunState:
        file: Any = None
        job = RangeJob(
            name="backfill",
            settings=Settings(
                kafka=KafkaSettings(bootstrap_servers=("kafka:9092",)),
                group=GroupSettings(id="shop", topics=("orders",)),
                handler=HandlerSettings(entrypoint="x:y"),
                http=HttpSettings(enabled=False),
            ),
            file=file,
            directory=self._directory,
            run=self.handled,
            ready=lambda: self._note("ready"),
            begun=lambda state: self._note(f"begun {len(state.underway)}"),
            ended=lambda state, summaries: self._note(f"ended {state.done}"),
            size=lambda state: 10,
        )
        return job(state, "local[1]", "run", lambda line: None)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(monkeypatch, tmp_path)


ROUND = ["run", "topics"]


def test_round_after_round_is_begun_run_and_counted_until_nothing_is_left(scene: Scene) -> None:
    state = scene.start()
    first, second = ["begun 1", *ROUND, "ended 10"], ["begun 1", *ROUND, "ended 20"]
    assert scene.called == ["executors", "ready", *first, *second, "spark stops"]
    assert (state.finished, state.rounds, state.positions) == (True, 2, {TopicPartition("orders", 0): 20})


def test_a_round_that_a_crash_has_cut_off_comes_first_under_its_ranges(scene: Scene) -> None:
    state = scene.start(NEW.begin(15))
    assert (state.rounds, scene.called.count("run")) == (2, 2)
    assert "ended 15" in scene.called


@pytest.mark.parametrize("where", ["executors", "ready", "begun 1", "run", "topics", "ended 10"])
def test_a_failure_anywhere_ends_the_job_and_its_spark_and_nothing_behind_it_is_called(
    scene: Scene, where: str
) -> None:
    def fail() -> None:
        raise ConfigError("no")

    scene.at[where] = fail
    with pytest.raises(ConfigError, match="no"):
        scene.start()
    assert scene.called[-2:] == [where, "spark stops"]


def test_a_signal_ends_the_job_behind_the_round_it_is_in_and_a_second_one_at_once(scene: Scene) -> None:
    scene.at["run"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    state = scene.start()
    assert (state.done, state.finished, scene.called[-2:]) == (10, False, ["ended 10", "spark stops"])
    scene.at["topics"] = scene.at["run"]
    with pytest.raises(ServiceError, match="the round underway does not count") as stopped:
        scene.start()
    assert isinstance(stopped.value, StoppedAtOnce)
    assert scene.called[-2:] == ["topics", "spark stops"]
