"""Rate limits of real members: the rate holds over workers and over members, and nothing is lost or out of order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from kunicorn.ipc import clock
from tests.system.members import MemberProcess
from tests.system.producing import producer
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]


def rates(member: MemberProcess) -> list[tuple[float, int]]:
    """What the member has of each rate, and by how many members that is divided."""
    found: list[dict[str, Any]] = member.status().get("rates", [])
    return [(each["per_second"], each["members"]) for each in found]


def has(member: MemberProcess, per_second: float, members: int) -> bool:
    return rates(member) == [(per_second, members)]


def waits(stage: Scene, member: MemberProcess) -> bool:
    return member.metric("kunicorn_partitions_waiting", group=stage.topic, waits_for="rate_limit") > 0


def limited(scene: SceneMaker, partitions: int, workers: int = 2, **limit: Any) -> Scene:
    handler = {"max_attempts": 1, "on_failure": "halt", "rate_limit": limit}
    stage: Scene = scene(partitions, workers=workers, settings={"handler": handler})
    return stage


def begun(stage: Scene, partitions: int, count: int) -> list[int]:
    """When each record was begun (nanoseconds), in order."""
    return sorted(at for p in range(partitions) for offset in range(count) for at in stage.begun(p, offset))


def test_workers_have_the_rate_together_and_the_busy_one_gets_it(scene: SceneMaker) -> None:
    # All records are in one partition, so of one of both workers: half of the rate would be its share by number.
    stage = limited(scene, 2, per_second=20, burst=1)
    member = stage.members.start()
    member.wait_running(2)
    member.wait(partial(has, member, 20.0, 1), "the group to be described")
    stage.send(0, *["x"] * 100)
    member.wait(lambda: waits(stage, member), "records to wait for the rate")
    stage.wait_handled(0, 99, member)
    times = begun(stage, 1, 100)
    assert (times[-1] - times[0]) / clock.NANOSECONDS > 99 / 20 * 0.8, "never faster than the rate"
    # Not their sum: a machine that stands still for a moment, or is about to deal, has some come late.
    waited = median(after - before for before, after in pairwise(times)) / clock.NANOSECONDS
    assert waited < 1.6 / 20, f"every {waited:.3f} s: it has not got what the other worker leaves"
    assert "kunicorn_rate_limit_per_second{" in member.get("/metrics")[1]
    assert member.stop() == 0
    assert stage.committed()[0] == 100
    report = stage.judge()
    assert report.holds, report


def test_members_divide_the_rate_and_a_stop_and_a_rebalance_wait_for_nothing(scene: SceneMaker) -> None:
    stage = limited(scene, 4, per_second=10, burst=1)
    first = stage.members.start()
    first.wait_running(4)
    first.wait(partial(has, first, 10.0, 1), "the group to be described")
    for partition in range(4):
        stage.send(partition, *["x"] * 25)
    first.wait(lambda: waits(stage, first), "records to wait for the rate")
    second = stage.members.start()
    for member in (first, second):
        member.wait(partial(has, member, 5.0, 2), "both to know of one another")
    assert first.stop() == 0
    second.wait(partial(has, second, 10.0, 1), "it to be alone again")
    stage.wait_all_committed()
    for partition in range(4):
        assert stage.handled(partition) == list(range(25)), "in order, each once"
    assert second.stop() == 0
    report = stage.judge()
    assert report.holds, report
    times = begun(stage, 4, 25)
    assert (times[-1] - times[0]) / clock.NANOSECONDS > 99 / 10 * 0.7, "but for a moment at each change of members"


def test_where_the_group_is_not_to_be_asked_the_rate_is_divided_by_the_number_that_is_set(scene: SceneMaker) -> None:
    stage = limited(scene, 1, per_second=40, burst=1, members=4)
    member = stage.members.start()
    member.wait(partial(has, member, 10.0, 4), "a quarter of the rate")
    stage.send(0, *["x"] * 15)
    stage.wait_handled(0, 14, member)
    times = begun(stage, 1, 15)
    assert (times[-1] - times[0]) / clock.NANOSECONDS > 14 / 10 * 0.8
    assert member.stop() == 0
    assert stage.committed() == {0: 15}


def test_a_key_waits_for_its_own_rate_alone(scene: SceneMaker) -> None:
    """Records without a key have one bucket together in a worker: they come one after the other, while one of each of
    ten keys is handled."""
    stage = limited(scene, 2, workers=1, per_second=2, burst=1, per="key")
    stage.send(0, *["x"] * 10)
    sender = producer(stage.kafka.bootstrap)
    for number in range(10):
        sender.produce(stage.topic, b"x", f"k{number}", partition=1)
    assert sender.flush(60) == 0
    member = stage.members.start()
    member.wait(lambda: waits(stage, member), "a record to wait for its key's rate")
    member.wait(lambda: any("is limited to 2 a sec" in (p["reason"] or "") for p in member.partitions()), "a reason")
    stage.wait_handled(0, 9, member)
    times = begun(stage, 1, 10)
    assert (times[-1] - times[0]) / clock.NANOSECONDS > 9 / 2 * 0.8
    assert stage.handled(1) == list(range(10))
    assert stage.ended(1)[-1].time_ns < times[-1], "with one rate for all of them both would have come in turns"
    assert member.stop() == 0
    assert stage.committed() == {0: 10, 1: 10}
    report = stage.judge()
    assert report.holds, report
