"""The machine of every job over ranges: what it calls, in which order, and what ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kunicorn.clients.session import Passing, _checked, cluster_session
from kunicorn.errors import ConfigError, ServiceError
from kunicorn.group.protocol import EpochEnd
from kunicorn.kafka.errors import BrokersUnreachable, CoordinatorUnavailable
from kunicorn.kafka_errors import ErrorCode
from kunicorn.pipeline import range_job
from kunicorn.pipeline.range_job import RangeJob, StoppedAtOnce
from kunicorn.pipeline.report import Tasks
from kunicorn.pipeline.shares import Shares
from kunicorn.pipeline.spark import JobFailed
from kunicorn.pipeline.state import RunState, Tile
from kunicorn.pipeline.storage import Directory, Overtaken, StoreFailed
from kunicorn.pipeline.tasks.limits import TaskLimits
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import driver_id
from kunicorn.positions import OffsetRange, TopicPartition
from tests.fakes.complete_settings import settings_of
from tests.unit.pipeline.played_log import PlayedLog

NEW = RunState((OffsetRange("orders", 0, 0, 20),), topics={"orders": "id"})


class Scene:
    """A job with Spark and the cluster left out; what is called is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.called: list[str] = []
        self.at: dict[str, Callable[[], None]] = {}
        """What happens at a call."""
        self.slow: set[int] = set()
        """Partitions whose ranges end when nothing else is underway."""
        self.halting: dict[OffsetRange, int] = {}
        self.together = False
        self.pieces: int | None = None
        self.rate: int | None = None
        self.limits: list[TaskLimits] = []
        self.drivers: list[str] = []
        """For whom ranges are handled."""
        self._underway: list[OffsetRange] = []
        monkeypatch.setattr(range_job, "open_session", lambda settings, master, run: self)
        monkeypatch.setattr(range_job, "Job", lambda spark, file: self)
        monkeypatch.setattr(range_job, "check_logs", lambda settings, state, counted: self._note("topics"))
        monkeypatch.setattr(range_job, "write_tiles", self._write)
        monkeypatch.setattr(Directory, "delete", lambda _, name: self._note(f"discarded {name}"))
        self._directory = Directory(str(directory))

    def _note(self, name: str) -> None:
        self.called.append(name)
        self.at.get(name, lambda: None)()

    def _write(self, outcomes: Directory, tiles: Sequence[Tile], number: int) -> None:
        self._note(f"written {sum(each.records for each in tiles)}")

    def check_executors(self, directory: Directory, *, handler: bool) -> None:
        self._note("executors")

    def stop(self) -> None:
        self._note("spark stops")

    def tasks(self) -> Tasks:
        return Tasks()

    def cores(self) -> int:
        return 4

    def _task(self, again: bool, limits: TaskLimits) -> Any:
        self.limits.append(limits)
        self.drivers.append(driver_id())
        if again:
            self._note("again")

    def room(self, at_once: int) -> int:
        return 8

    def submit(self, ranges: Sequence[OffsetRange], task: Any, hands: Directory, *, at_once: int, done: Any) -> None:
        self._note(f"submit {', '.join(f'{each.partition}@{each.start}-{each.stop}' for each in ranges)}")
        self._underway += ranges

    def ended(self, seconds: float) -> list[Summary]:
        self._note("ended")
        quick = [each for each in self._underway if each.partition not in self.slow] or self._underway
        self._underway = [each for each in self._underway if each not in quick]
        return [self._summary(each) for each in quick]

    def _summary(self, each: OffsetRange) -> Summary:
        until = self.halting.get(each, each.stop)
        why = None if until == each.stop else "no"
        return Summary(*each, until, until - each.start, 0, 0, why, str(each.start) if why else "", 1.0)

    def start(self, state: RunState = NEW) -> RunState:
        file: Any = None
        pipeline = {
            "max_offsets_per_trigger": 10,
            "ordering": "none" if self.pieces else "partition",
            "min_partitions": self.pieces,
            "max_records_per_second": self.rate,
        }
        settings = settings_of(http={"enabled": False}, pipeline=pipeline)
        job = RangeJob(
            name="backfill",
            settings=settings,
            file=file,
            directory=self._directory,
            task=self._task,
            next=Shares(settings.pipeline),
            ready=lambda: self._note("ready"),
            begun=lambda state: self._note(f"begun {len(state.underway)}"),
            ended=lambda state, summaries: self._note(f"counted {state.done}"),
            together=self.together,
        )
        return job(state, "local[1]", "run", lambda line: None)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(monkeypatch, tmp_path)


def test_a_topic_that_is_not_read_any_more_may_be_another_one_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    log = PlayedLog({"orders": 1, "audit": 1})
    settings: Any = None
    monkeypatch.setattr(range_job, "cluster_session", log.session)
    state = replace(NEW, topics={"orders": "id of orders", "audit": "another"})
    range_job.check_logs(settings, state, {})
    other, counted = replace(NEW, topics={"orders": "another"}), TopicPartition("orders", 0)
    done = replace(other, positions={counted: 20})
    for state, at in ((other, {}), (done, {counted: 20})):
        with pytest.raises(ConfigError, match="orders was created anew since the run began"):
            range_job.check_logs(settings, state, at)
    range_job.check_logs(settings, done, {})


def round_of(ranges: str, counted: int) -> list[str]:
    return ["begun 1", f"submit {ranges}", "ended", "topics", f"counted {counted}"]


def test_range_after_range_is_begun_and_counted_until_nothing_is_left(scene: Scene) -> None:
    state = scene.start()
    first, second = round_of("0@0-10", 10), round_of("0@10-20", 20)
    assert scene.called == ["executors", "ready", *first, *second, "written 20", "spark stops"]
    assert (state.finished, state.rounds, state.positions) == (True, 2, {TopicPartition("orders", 0): 20})


THREE = RunState(tuple(OffsetRange("orders", number, 0, 10) for number in range(3)), topics={"orders": "id"})


def test_a_slow_range_holds_up_its_own_partition_alone(scene: Scene) -> None:
    scene.slow = {1}
    state = scene.start(THREE)
    assert state.finished
    begun = [each.removeprefix("submit ") for each in scene.called if each.startswith("submit")]
    assert begun[0] == "0@0-3, 1@0-3, 2@0-3"
    others = [each for each in begun[1:] if "1@" not in each]
    assert others, "the others go on"
    behind = next(at for at, each in enumerate(begun) if "1@3" in each)
    assert begun[1:behind] == others, "and are through before its next range is begun"
    assert "0@" not in "".join(begun[behind:])


def test_what_is_committed_as_a_whole_waits_for_all_of_it(scene: Scene) -> None:
    scene.slow, scene.together = {1}, True
    scene.start(THREE)
    counted = [each for each in scene.called if each.startswith("counted")]
    assert counted[0] == "counted 9"


def test_ranges_that_a_crash_has_cut_off_come_first_under_their_names(scene: Scene) -> None:
    state = scene.start(NEW.begin([OffsetRange("orders", 0, 0, 15)]))
    assert scene.called[2:6] == ["again", "begun 1", "submit 0@0-15", "ended"]
    assert (state.rounds, scene.called.count("again")) == (2, 1)
    assert "counted 15" in scene.called


def test_of_a_partition_that_was_cut_nothing_counts_before_all_pieces_have_ended(scene: Scene) -> None:
    scene.pieces = 2
    cut = [OffsetRange("orders", 0, 0, 5), OffsetRange("orders", 0, 5, 10)]
    scene.halting = {cut[0]: 2}
    state = scene.start(replace(NEW, ranges=(OffsetRange("orders", 0, 0, 10),)))
    assert (state.positions, state.counts.records, state.underway) == ({TopicPartition("orders", 0): 2}, 2, ())
    assert "discarded 5" not in scene.called, "it has no file"


def test_a_driver_that_stands_still_behind_its_save_is_an_earlier_one_than_whoever_takes_its_place(
    scene: Scene,
) -> None:
    """Else its tasks would replace the files that its successor has counted."""
    successors: list[str] = []
    scene.at["begun 1"] = lambda: successors.append(driver_id())
    scene.start()
    assert sorted([*scene.drivers, *successors]) == [scene.drivers[0], successors[0], scene.drivers[1], successors[1]]


def test_a_driver_that_was_overtaken_deletes_nothing_that_its_successor_may_count(scene: Scene) -> None:
    scene.pieces = 2
    cut = [OffsetRange("orders", 0, 0, 5), OffsetRange("orders", 0, 5, 10)]
    scene.halting = {cut[0]: 2, cut[1]: 7}

    def overtaken() -> None:
        if "ended" in scene.called:
            raise Overtaken("another process goes on")

    scene.at["begun 2"] = overtaken
    with pytest.raises(Overtaken):
        scene.start(replace(NEW, ranges=(OffsetRange("orders", 0, 0, 10),)))
    assert "discarded 5" not in scene.called
    scene.at.clear()
    scene.called.clear()
    scene.start(replace(NEW, ranges=(OffsetRange("orders", 0, 0, 10),)))
    assert "discarded 5" in scene.called


@pytest.mark.parametrize("where", ["executors", "ready", "begun 1", "submit 0@0-10", "ended", "topics", "counted 10"])
def test_a_failure_anywhere_ends_the_job_and_its_spark_and_nothing_behind_it_is_called(
    scene: Scene, where: str
) -> None:
    def fail() -> None:
        raise ConfigError("no")

    scene.at[where] = fail
    with pytest.raises(ConfigError, match="no"):
        scene.start()
    assert scene.called[-2:] == [where, "spark stops"]


@pytest.mark.parametrize(
    ("where", "code"),
    [("executors", 2), ("ready", 2), ("begun 1", 6), ("topics", 6), ("counted 10", 6), ("written 20", 6)],
)
def test_a_store_that_goes_away_once_the_job_has_begun_leaves_something_and_before_that_a_setting_may_be_wrong(
    scene: Scene, where: str, code: int
) -> None:
    def fail() -> None:
        raise StoreFailed("s3://runs cannot be used")

    scene.at[where] = fail
    with pytest.raises(ServiceError, match="s3://runs cannot be used") as ended:
        scene.start()
    assert ended.value.exit_code == code
    assert ("start the job again, and it goes on" in str(ended.value)) == (code == 6)


def test_brokers_that_go_away_while_the_job_runs_leave_something(scene: Scene) -> None:
    def fail() -> None:
        raise ConfigError("no broker answers") from BrokersUnreachable("no broker answers")

    scene.at["topics"] = fail
    with pytest.raises(JobFailed, match=r"no broker answers\. What is underway does not count; start the job again"):
        scene.start()


def test_a_leader_that_does_not_come_back_while_the_job_runs_leaves_something(scene: Scene) -> None:
    def fail() -> None:
        _checked({TopicPartition("orders", 0): EpochEnd(ErrorCode.LEADER_NOT_AVAILABLE)})

    scene.at["topics"] = fail
    with pytest.raises(JobFailed, match=r"its leader does not tell an offset.*start the job again, and it goes on"):
        scene.start()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (CoordinatorUnavailable(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it loads"), 6),
        (Passing(ErrorCode.REQUEST_TIMED_OUT, "the commit is refused"), 6),
        (CoordinatorUnavailable(ErrorCode.GROUP_AUTHORIZATION_FAILED, "its offsets cannot be read"), 4),
    ],
)
def test_a_coordinator_that_does_not_come_back_leaves_something_and_one_that_refuses_ends_the_job_for_good(
    scene: Scene, answer: CoordinatorUnavailable, code: int
) -> None:
    def fail() -> None:
        with cluster_session(settings_of()):
            raise answer

    scene.at["counted 10"] = fail
    with pytest.raises(ServiceError, match=str(answer)) as ended:
        scene.start()
    assert ended.value.exit_code == code
    assert ("start the job again, and it goes on" in str(ended.value)) == (code == 6)


def test_a_signal_ends_the_job_behind_what_is_underway_and_a_second_one_at_once(scene: Scene) -> None:
    scene.at["submit 0@0-10"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    state = scene.start()
    assert (state.done, state.finished) == (10, False)
    assert scene.called[-3:] == ["counted 10", "written 10", "spark stops"]
    scene.at["topics"] = scene.at["submit 0@0-10"]
    with pytest.raises(ServiceError, match="what is underway does not count") as stopped:
        scene.start()
    assert isinstance(stopped.value, StoppedAtOnce)
    assert scene.called[-2:] == ["topics", "spark stops"]


def test_the_tables_file_is_written_once_a_minute_and_at_the_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_job, "_FILE_SECONDS", 0.0)
    scene.start()
    assert [each for each in scene.called if each.startswith("written")] == ["written 10", "written 10"]


def test_tasks_share_the_jobs_rate_by_how_many_of_them_can_run_at_once(scene: Scene) -> None:
    scene.rate, scene.slow = 1200, {0}
    scene.start(RunState(tuple(OffsetRange("orders", each, 0, 4) for each in range(6)), topics={"orders": "id"}))
    shares = [limits.records_per_second or 0 for limits in scene.limits]
    assert shares[0] == 300, "four cores, and six partitions left"
    assert shares == sorted(shares), "a share only grows, as partitions only become fewer"
    assert shares[-1] == 1200, "the last partition has it all"
