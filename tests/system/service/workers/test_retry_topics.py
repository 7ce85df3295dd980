"""Retry topics with a real service and real brokers: what fails waits elsewhere, and its partition goes on."""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kunicorn.handler.config import delay_in_words
from kunicorn.handler.dead_letters import read
from kunicorn.handler.record import Record
from tests.system.commands.desk import Desk
from tests.system.outputs import committed_records
from tests.system.producing import committed_offsets, consumed, end_offsets, headers_of
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
DELAYS = (2000, 2500)


class Try(NamedTuple):
    """One call of the handler."""

    key: str
    number: int
    at: float
    topic: str


def tries(stage: Scene) -> list[Try]:
    """Every call of the handler, in order."""
    path = stage.marks / "tries"
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.split() for line in lines)
    return [Try(key, int(number), float(at), topic) for key, number, at, topic in parts]


def retry_topics(stage: Scene) -> list[str]:
    """By delay."""
    return [f"{stage.topic}.retry.{delay_in_words(delay)}" for delay in DELAYS]


def made(scene: SceneMaker, handler: str = "stumbling:handle", **more: Any) -> Scene:
    """Two partitions, and two retry topics, of one partition and of two; each try is in a topic of its own."""
    own = {"max_attempts": 1, "on_failure": "dead_letter", "retry_topic_delays_ms": list(DELAYS)}
    settings = {"handler": own, "workers": {"max_crashes": 1000}, **more.pop("settings", {})}
    stage = scene(2, workers=more.pop("workers", 1), handler=handler, settings=settings, **more)
    for partitions, name in enumerate(retry_topics(stage), 1):
        stage.kafka.create_topic(name, partitions)
    stage.kafka.create_topic(f"{stage.topic}.dead-letters", 1)
    return stage


def left(stage: Scene) -> int:
    """Records that the group has still to handle, in all of its topics."""
    behind = 0
    for name, partitions in [(stage.topic, 2), (retry_topics(stage)[0], 1), (retry_topics(stage)[1], 2)]:
        ends = end_offsets(stage.kafka.bootstrap, name, partitions)
        committed = committed_offsets(stage.kafka.bootstrap, stage.topic, name, partitions)
        behind += sum(end - max(0, committed[tp]) for tp, end in ends.items())
    return behind


@pytest.mark.parametrize(
    "handler", ["stumbling:handle", pytest.param("stumbling:handle_async", marks=pytest.mark.long)]
)
def test_a_record_that_fails_twice_succeeds_at_the_third_try_while_its_partition_goes_on(
    scene: SceneMaker, handler: str
) -> None:
    stage = made(scene, handler)
    stage.send(0, "2", "0", "9", "0")
    member = stage.members.start({"group": {"commit_interval_ms": 200}})
    member.wait_running(5)
    member.wait(lambda: len(tries(stage)) == 8, "all tries")
    member.wait(lambda: left(stage) == 0, "everything to be committed")
    failing, fine, hopeless = (f"{stage.topic}-0-{offset}" for offset in (0, 1, 2))
    by_key: dict[str, list[Try]] = defaultdict(list)
    for each in tries(stage):
        by_key[each.key].append(each)
    topics = [stage.topic, *retry_topics(stage)]
    for key in (failing, hopeless):
        assert [each.topic for each in by_key[key]] == topics
        assert [each.number for each in by_key[key]] == [0, 1, 2]
        first, second, third = (each.at for each in by_key[key])
        assert second - first >= DELAYS[0] / 1000, "not before its time"
        assert third - second >= DELAYS[1] / 1000
    assert by_key[fine][0].at < by_key[failing][1].at, "the partition went on meanwhile"
    (letter,) = consumed(stage.kafka.bootstrap, f"{stage.topic}.dead-letters", 1)
    told = read(headers_of(letter))
    assert (told.topic, told.partition, told.offset, told.cause.attempts) == (stage.topic, 0, 2, 3)
    of = {"delay": "2s", "group": stage.topic, "topic": stage.topic}
    member.wait(lambda: member.metric("kunicorn_retry_topic_records_total", **of) == 2, "both to be counted")
    assert member.stop() == 0


def test_a_retry_topic_that_does_not_exist_ends_the_start(scene: SceneMaker) -> None:
    stage = scene(1, settings={"handler": {"retry_topic_delays_ms": [60_000]}})
    member = stage.members.start()
    assert member.exit_code() == 2
    said = f"retry topic '{stage.topic}.retry.1m' does not exist on this cluster: create it, or correct handler.retry"
    assert said in member.output()


@pytest.mark.long
def test_a_record_that_waits_is_shown_as_such_and_a_stop_leaves_it_to_the_next_member(scene: SceneMaker) -> None:
    # Ends of logs are asked for every ten seconds: the delay is longer.
    stage = scene(
        2, handler="stumbling:handle", settings={"handler": {"max_attempts": 1, "retry_topic_delays_ms": [20_000]}}
    )
    retry = f"{stage.topic}.retry.20s"
    stage.kafka.create_topic(retry, 1)
    stage.send(0, "1", "0")
    member = stage.members.start()

    def waiting() -> list[dict[str, Any]]:
        return [p for p in member.partitions("running") if "waits for its time" in (p["reason"] or "")]

    (shown,) = member.wait(waiting, "the retry topic's partition to wait")
    assert (shown["topic"], shown["position"]) == (retry, 0)
    member.wait(lambda: [p["lag"] for p in member.partitions() if p["topic"] == retry] == [1], "its lag")
    assert [p["lag_seconds"] for p in member.partitions() if p["topic"] == retry] in ([0.0], [None])
    of = {"group": stage.topic, "waits_for": "delay"}
    member.wait(lambda: member.metric("kunicorn_partitions_waiting", **of) == 1, "what waits to be counted")
    assert member.get("/livez")[0] == 200
    assert member.stop() == 0, "nothing is waited for"
    desk = Desk(member.config)
    assert f"records of {retry} wait 20s for their time" in desk.said("lag")
    plan = desk.said("offsets", "reset", "--to-latest")
    assert f"retry topics stay where they are unless --topic names them: {retry}" in plan
    assert f"retries after 20s: {retry} (1 partition)" in desk.said("check")
    successor = stage.members.start()
    successor.wait(lambda: len(tries(stage)) == 3, "the retry")
    assert tries(stage)[-1].at - tries(stage)[0].at >= 20.0
    assert successor.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("delivery", [None, "at_least_once", "transactions"])
@pytest.mark.parametrize("handler", ["stumbling:handle", "stumbling:handle_async"])
def test_nothing_is_lost_when_workers_are_killed_in_the_middle(
    scene: SceneMaker, handler: str, delivery: str | None
) -> None:
    committed = {"kafka": {"isolation_level": "read_committed"}}
    settings = {"producing": {"delivery": delivery}, **committed} if delivery else {}
    stage = made(scene, handler, workers=2, settings=settings, env={"KUNICORN_HANDLER_MS": "2"})
    for partition in (0, 1):
        stage.send(partition, *(str(number % 3) for number in range(600)))
    member = stage.members.start({"group": {"commit_interval_ms": 200}})
    for share in (100, 400, 800, 1500):
        member.wait(lambda: len(tries(stage)) >= share, f"{share} tries")  # noqa: B023
        for worker in member.workers():
            os.kill(worker["pid"], signal.SIGKILL)
    member.wait(lambda: left(stage) == 0, "everything to be committed")
    assert member.stop() == 0, member.output()[-3000:]
    last = {(each.key, each.number) for each in tries(stage)}
    wanted = {(f"{stage.topic}-{partition}-{number}", number % 3) for partition in (0, 1) for number in range(600)}
    assert wanted <= last, "each has had its last try"
    letters = end_offsets(stage.kafka.bootstrap, f"{stage.topic}.dead-letters", 1)
    assert sum(letters.values()) == 0


@pytest.mark.long
def test_transactions_put_a_record_into_its_retry_topic_once_whatever_is_killed(scene: SceneMaker) -> None:
    stage = made(
        scene, workers=2, settings={"producing": {"delivery": "transactions"}}, env={"KUNICORN_HANDLER_MS": "1"}
    )
    for partition in (0, 1):
        stage.send(partition, *("1" for _ in range(800)))
    member = stage.members.start({"group": {"commit_interval_ms": 200}, "kafka": {"isolation_level": "read_committed"}})
    for share in (200, 900):
        member.wait(lambda: len(tries(stage)) >= share, f"{share} tries")  # noqa: B023
        for worker in member.workers():
            os.kill(worker["pid"], signal.SIGKILL)
    member.wait(
        lambda: len({each.key for each in tries(stage) if each.number == 1}) == 1600, "every record's second try"
    )
    assert member.stop() == 0, member.output()[-3000:]
    held = Counter(
        Record.of(each).idempotency_key for each in committed_records(stage.kafka.bootstrap, retry_topics(stage)[0], 1)
    )
    assert {key: count for key, count in held.items() if count != 1} == {}
    assert len(held) == 1600
