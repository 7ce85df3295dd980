"""Two tries of one range: of an executor that Spark has lost, and of the one that took its place. The first file that
is there counts, whoever comes later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from pyarrow.dataset import dataset

from kunicorn.handler.dead_letters import Cause
from kunicorn.handler.retry import End
from kunicorn.pipeline import storage
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.pipeline.tasks.outcomes import SCHEMA, Tiling
from kunicorn.pipeline.tasks.range_outcomes import RangeOutcomes, Summary, rows_file
from kunicorn.pipeline.tasks.ranges import HandleRanges, driver_id
from kunicorn.positions import OffsetRange
from tests.object_store import bucket_served
from tests.unit.pipeline.fetched import messages

WHOLE = OffsetRange("orders", 3, 0, 10)
WHY = Cause("ValueError", "no", "", 1)


def tried(place: Directory, end: End | None, driver: str = "one", *, again: bool = True, timestamp: int = 0) -> Summary:
    """A try of the range in which record 4, of that time, ended so; None: all are done."""
    tiling = Tiling(WHOLE)
    with RangeOutcomes(SettingsFile("", ""), place, WHOLE, driver, again=again) as found:
        tiling.handled(4)
        if end is not None:
            for row in tiling.failed(of_time(timestamp), end, WHY, 0):
                found.add(row)
        if end is not End.HALT:
            tiling.handled(5 if end else 6)
            for row in tiling.rest():
                found.add(row)
        return found.end()


def of_time(timestamp: int) -> Message:
    return Message(topic="orders", partition=3, offset=4, value=b"v", timestamp=(TIMESTAMP_CREATE_TIME, timestamp))


def statuses(place: Directory) -> list[str]:
    return [
        status
        for name in place.names(".parquet")
        for batch in place.batches(name)
        for status in batch["status"].to_pylist()
    ]


@pytest.fixture(params=["directory", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    if request.param == "directory":
        return Directory(str(tmp_path))
    served = request.getfixturevalue("served")
    return Directory(f"{served}/{tmp_path.name}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        pytest.MonkeyPatch.context() as environment,
        bucket_served(tmp_path_factory.mktemp("moto") / "log", "tries") as found,
    ):
        for name, value in found.items():
            environment.setenv(name, value)
        yield "s3://tries"


@pytest.mark.parametrize(("first", "late"), [(End.SKIP, End.HALT), (End.HALT, End.SKIP), (None, End.HALT)])
def test_what_the_driver_has_counted_stays_and_a_late_try_goes_by_it(
    place: Directory, first: End | None, late: End
) -> None:
    counted = tried(place, first)
    before = statuses(place)
    found = tried(place, late, again=False)
    assert statuses(place) == before
    assert (found.records, found.skipped, found.until, found.halted) == (
        counted.records, counted.skipped, counted.until, counted.halted,
    )  # fmt: skip
    assert (found.file, counted.file) == (rows_file(WHOLE),) * 2


@pytest.mark.parametrize("topic", ["_orders", ".orders"])
def test_readers_of_outcomes_find_those_of_every_topic(tmp_path: Path, topic: str) -> None:
    whole = WHOLE._replace(topic=topic)
    Directory(str(tmp_path)).write(rows_file(whole), b"")
    assert dataset(tmp_path, schema=SCHEMA).files == [str(tmp_path / rows_file(whole))]


def test_a_try_for_another_driver_replaces_what_was_not_counted(place: Directory) -> None:
    tried(place, End.HALT)
    found = tried(place, None, "two")
    assert (found.halted, found.until, statuses(place)) == (None, 10, ["done"])
    assert tried(place, End.HALT, "two").halted is None, "and it counts from then on"


@pytest.mark.parametrize("late", [End.HALT, None])
def test_a_late_try_for_a_driver_that_was_replaced_goes_by_what_its_successor_has_counted(
    place: Directory, late: End | None
) -> None:
    before, after = driver_id(), driver_id()
    tried(place, End.SKIP, after)
    found = tried(place, late, before)
    assert statuses(place) == ["done", "skip", "done"]
    assert (found.until, found.skipped, found.halted) == (10, 1, None)


@pytest.mark.parametrize("late", [End.SKIP, End.HALT])
def test_a_late_try_for_a_streams_driver_before_goes_by_its_first_micro_batch_though_nothing_failed_in_it(
    place: Directory, late: End
) -> None:
    before = driver_id()
    task = HandleRanges(SettingsFile("", ""), place, may_have_died=True)
    tiling = Tiling(WHOLE)
    with task._outcomes(WHOLE) as repeated:
        tiling.handled(10)
        for row in tiling.rest():
            repeated.add(row)
        repeated.end()
    found = tried(place, late, before, again=False)
    assert statuses(place) == ["done"], "of every offset once"
    assert (found.until, found.records, found.skipped, found.halted) == (10, 10, 0, None)


@pytest.mark.parametrize("end", [End.SKIP, End.HALT])
def test_a_late_try_goes_by_a_file_with_a_time_that_no_calendar_has(place: Directory, end: End) -> None:
    counted = tried(place, end, timestamp=1_769_860_800_000_000)
    found = tried(place, None)
    assert (found.until, found.skipped, found.halted) == (counted.until, counted.skipped, counted.halted)


def test_what_is_too_large_for_one_request_is_looked_for_and_then_put_in_parts(
    place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_ONE_REQUEST_BYTES", 10)
    tried(place, End.SKIP)
    assert tried(place, End.HALT).skipped == 1
    assert statuses(place) == ["done", "skip", "done"]


def test_a_try_that_ends_with_an_error_leaves_nothing(place: Directory) -> None:
    def fail() -> None:
        with RangeOutcomes(SettingsFile("", ""), place, WHOLE, "one", again=True) as found:
            for row in Tiling(WHOLE).failed(messages(4)[0], End.SKIP, WHY, 0):
                found.add(row)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert statuses(place) == []
