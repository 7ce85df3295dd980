"""Topics that are deleted and created anew: no job loses records in silence, or takes one record for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kunicorn.errors import ConfigError
from kunicorn.pipeline.spark import Job
from kunicorn.pipeline.tasks.range_outcomes import Summary
from tests.system.pipeline.desk import MASTER, Desk, lake_rows, reader
from tests.system.pipeline.recreating import recreate
from tests.system.producing import committed_offsets, produce
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("one_context")]

ANEW = "was created anew"
NOTHING = -1001
"""As librdkafka says it, where a group has no offset."""


def test_an_export_refuses_a_topic_that_was_created_anew_or_goes_on_with_it_as_asked(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1)
    produce(desk.kafka.bootstrap, desk.topic, 100, value=b"old")
    lake = desk.directory / "lake"
    command = ("export", str(lake), "--master", MASTER)
    desk.said(*command)
    # First less than was exported, then as much: the range of the new one has the name of the former's.
    recreate(desk.kafka, desk.topic, 60)
    for more in (40, 0):
        with pytest.raises(ConfigError, match=f"{desk.topic}-0 {ANEW}: .* from offset 100 on is gone; .*= false"):
            desk.said(*command)
        with pytest.raises(ConfigError, match=ANEW):
            desk.said(*command, "--dry-run")
        produce(desk.kafka.bootstrap, desk.topic, more, value=b"new")
    desk.configure({"pipeline": {"fail_on_data_loss": False}})
    assert f"warning: {desk.topic}-0 {ANEW}" in desk.said(*command)
    desk.configure({"pipeline": {"fail_on_data_loss": True}})
    produce(desk.kafka.bootstrap, desk.topic, 20, value=b"new")
    desk.said(*command)
    expected = [(offset, b"old") for offset in range(100)] + [(offset, b"new") for offset in range(120)]
    assert sorted(lake_rows(lake, "offset", "value")) == sorted(expected)


@pytest.mark.parametrize("job", [pytest.param("export", marks=pytest.mark.long), "catch-up"])
def test_what_is_underway_while_the_topic_is_created_anew_does_not_count(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    desk = desk_of(1)
    produce(desk.kafka.bootstrap, desk.topic, 100)
    ended = Job.ended

    def end_then_recreate(self: Job, seconds: float) -> list[Summary]:
        if found := ended(self, seconds):
            recreate(desk.kafka, desk.topic, 150)
        return found

    monkeypatch.setattr(Job, "ended", end_then_recreate)
    arguments = [str(desk.directory / "lake")] if job == "export" else []
    with pytest.raises(ConfigError, match=f"{desk.topic} {ANEW} since the run began"):
        desk.said(job, *arguments, "--master", MASTER)
    if job == "export":
        told = Desk.told(desk.directory / "lake" / "_kunicorn")
        assert told is not None
        assert told["positions"] == {}
    else:
        (at,) = committed_offsets(desk.kafka.bootstrap, desk.topic, desk.topic, 1).values()
        assert at != 100, "the live service would leave out 100 records of the new topic"


def test_a_catch_up_over_a_pattern_outlives_a_topic_that_is_deleted_when_it_is_done(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(1)
    kafka, second = desk.kafka, f"{desk.topic}-second"
    few = {"max_offsets_per_trigger": 20}
    desk.configure({"group": {"topics": [f"^{desk.topic}.*"]}, "pipeline": few})
    kafka.create_topic(second)
    produce(kafka.bootstrap, desk.topic, 100)
    produce(kafka.bootstrap, second, 1)
    ended, counted = Job.ended, list[Summary]()

    def end_or_delete(self: Job, seconds: float) -> list[Summary]:
        if any(each.range.topic == second for each in counted):
            counted.clear()
            kafka.admin().delete_topics([second])[second].result(60)
            wait_until(lambda: set(stored(second)) == {NOTHING}, "the brokers to forget the topic's offsets")
        found = ended(self, seconds)
        counted.extend(found)
        return found

    def stored(topic: str) -> list[int]:
        return list(committed_offsets(kafka.bootstrap, desk.topic, topic, 1).values())

    monkeypatch.setattr(Job, "ended", end_or_delete)
    desk.said("catch-up", "--master", MASTER)
    assert second not in kafka.admin().list_topics(timeout=60).topics
    assert stored(desk.topic) == [100]


def test_a_backfill_is_not_resumed_on_a_topic_that_was_created_anew(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(1)
    produce(desk.kafka.bootstrap, desk.topic, 100)

    def dies(self: Job, *arguments: Any, **more: Any) -> Any:
        raise InterruptedError

    monkeypatch.setattr(Job, "submit", dies)
    with pytest.raises(InterruptedError):
        desk.said("backfill", "--run", "former", "--master", MASTER)
    assert desk.manifest("former")["underway"] != []
    recreate(desk.kafka, desk.topic, 150)
    with pytest.raises(ConfigError, match=f"{desk.topic} {ANEW} since the run began"):
        desk.said("backfill", "--resume", "former", "--master", MASTER)
    desk.configure({"pipeline": {"fail_on_data_loss": False}})
    said = desk.said("backfill", "--resume", "former", "--master", MASTER)
    assert f"warning: {desk.topic}-0 {ANEW}: what the former one had from offset 0 on is gone" in said
    assert "run former is finished: what was left is gone" in said
    assert (desk.manifest("former")["records"], desk.outcomes("former")) == (0, [])


def test_an_export_over_a_pattern_tells_of_a_topic_that_was_deleted_and_goes_on_as_asked(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1)
    second = f"{desk.topic}-second"
    desk.configure({"group": {"topics": [f"^{desk.topic}.*"]}})
    desk.kafka.create_topic(second)
    for name in (desk.topic, second):
        produce(desk.kafka.bootstrap, name, 10, value=b"old")
    command = ("export", str(desk.directory / "lake"), "--master", MASTER)
    desk.said(*command)
    desk.kafka.admin().delete_topics([second])[second].result(60)
    wait_until(lambda: second not in desk.kafka.admin().list_topics(timeout=60).topics, "the topic to be gone")
    with pytest.raises(ConfigError, match=f"{second}-0 does not exist any more: .* from offset 10 on .*= false"):
        desk.said(*command)
    desk.configure({"pipeline": {"fail_on_data_loss": False}})
    assert f"warning: {second}-0 does not exist any more" in desk.said(*command)
    desk.configure({"pipeline": {"fail_on_data_loss": True}})
    produce(desk.kafka.bootstrap, desk.topic, 5, value=b"new")
    desk.said(*command)
    assert len(lake_rows(desk.directory / "lake", "offset")) == 25


def test_a_stream_ends_at_a_topic_that_was_created_anew_or_goes_on_with_it_as_asked(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1)
    produce(desk.kafka.bootstrap, desk.topic, 100)
    start, end, ranges = batch(desk, None)
    assert ranges == [(0, 100)]
    recreate(desk.kafka, desk.topic, 60)
    after = end
    for records in (60, 160):
        with pytest.raises(ConfigError, match=f"{desk.topic}-0 {ANEW}"):
            batch(desk, end)
        with pytest.raises(ConfigError, match=f"{desk.topic}-0 from 0 to 100"):
            # A micro-batch that was planned, and cut off before the topic went.
            reader(desk).partitions(start, end)
        assert reader(desk, failOnDataLoss="false").partitions(start, end) == []
        _, after, ranges = batch(desk, end, failOnDataLoss="false")
        assert ranges == [(0, records)]
        produce(desk.kafka.bootstrap, desk.topic, 100)
    _, _, ranges = batch(desk, after)
    assert ranges == [(160, 260)]


def test_a_stream_over_a_pattern_outlives_a_topic_that_is_deleted_where_that_is_accepted(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1)
    kafka, second = desk.kafka, f"{desk.topic}-second"
    kafka.create_topic(second)
    for name in (desk.topic, second):
        produce(kafka.bootstrap, name, 10)
    of_both = {"subscribePattern": f"{desk.topic}.*"}
    start, end, ranges = batch(desk, None, **of_both)
    assert ranges == [(0, 10), (0, 10)]
    kafka.admin().delete_topics([second])[second].result(60)
    wait_until(lambda: second not in kafka.admin().list_topics(timeout=60).topics, "the topic to be gone")
    with pytest.raises(ConfigError, match=f"the topic of {second}-0 was deleted.*failOnDataLoss = false"):
        batch(desk, end, **of_both)
    lenient = {**of_both, "failOnDataLoss": "false"}
    # What was planned and cut off before the topic went, and what comes then.
    assert [part.value[0] for part in reader(desk, **lenient).partitions(start, end)] == [desk.topic]
    produce(kafka.bootstrap, desk.topic, 5)
    _, after, ranges = batch(desk, end, **lenient)
    assert ranges == [(10, 15)]
    kafka.create_topic(second)
    produce(kafka.bootstrap, second, 7)
    _, _, ranges = batch(desk, after, **lenient)
    assert ranges == [(0, 7)]


def batch(desk: Desk, start: dict[str, Any] | None, **options: str) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """The next micro-batch as Spark asks for it: its start, its end, and the offsets that its tasks would read."""
    made = reader(desk, **options)
    begin = made.initialOffset() if start is None else start
    end = made.latestOffset(begin, ReadAllAvailable())
    return begin, end, [(part.value[2], part.value[3]) for part in made.partitions(begin, end)]
