"""Jobs that are killed, joined by a live member, or restarted again and again: nothing is lost, repeats are bounded."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kunicorn.commands.demo.judge import Report
from tests.system.members import Members
from tests.system.pipeline.desk import Desk, send, tiles
from tests.system.pipeline.killing import START_SECONDS, finish, kill
from tests.system.procfs import running
from tests.system.producing import committed_offsets, end_offsets, held, produce
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROUND = 400
RESTARTS = 10
SLOWLY = {"KUNICORN_HANDLER_MS": "20"}


def committed(desk: Desk, group: str | None = None) -> int:
    """Offsets that the group has, over all partitions."""
    found = committed_offsets(desk.kafka.bootstrap, group or desk.topic, desk.topic, 2)
    return sum(max(0, offset) for offset in found.values())


def ends(desk: Desk) -> int:
    """Offsets that the topic has, over all partitions."""
    return sum(end_offsets(desk.kafka.bootstrap, desk.topic, 2).values())


def further(desk: Desk, process: subprocess.Popen[str], group: str, than: int) -> bool:
    """Whether the group has moved on; the process has to live."""
    assert process.poll() is None, process.stdout.read() if process.stdout else ""
    return committed(desk, group) > than


def somewhere(desk: Desk, group: str, entries: int) -> bool:
    """Whether handlers have come so far, or as far as there is anything."""
    return desk.audited() >= entries or committed(desk, group) == ends(desk)


def wait_committed(desk: Desk, process: subprocess.Popen[str], least: int) -> None:
    """Until the run is so far, and still runs."""

    def far_enough() -> bool:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        return committed(desk) >= least

    wait_until(far_enough, f"{least} committed offsets", START_SECONDS, every=0.1)


def repeats(report: Report) -> int:
    """Records that were handled again after they had been handled, or after a call that never ended."""
    return len(report.handled_twice) + len(report.repeated)


@pytest.fixture
def desk(desk_of: Callable[..., Desk]) -> Desk:
    """A backlog on two partitions."""
    made = desk_of(2, {"pipeline": {"max_offsets_per_trigger": ROUND}})
    produce(made.kafka.bootstrap, made.topic, 3_000)
    return made


def test_a_killed_driver_loses_nothing_and_the_next_run_repeats_one_round_at_most(desk: Desk) -> None:
    process = desk.start("catch-up", "--master", "local[2]", env=SLOWLY)
    wait_committed(desk, process, ROUND)
    kill(process)
    finish(desk, "catch-up")
    assert committed(desk) == 3_000
    report = desk.report(2)
    assert report.lost == ()
    assert repeats(report) <= ROUND, report
    rows = {(row["partition"], at) for row in desk.outcomes() for at in range(row["offset"], row["until"])}
    whole = held(end_offsets(desk.kafka.bootstrap, desk.topic, 2))
    assert rows == {(tp.partition, at) for tp, offsets in whole.items() for at in offsets}, "also of the killed run"


def test_a_killed_executor_is_replaced_and_its_range_handled_again(desk: Desk) -> None:
    process = desk.start("catch-up", "--master", "local-cluster[2,1,1024]", env=SLOWLY)
    wait_committed(desk, process, ROUND)
    kill_jvm_of(process.pid, "CoarseGrainedExecutorBackend")
    out, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, out
    assert committed(desk) == 3_000
    report = desk.report(2)
    assert report.lost == ()
    assert repeats(report) <= ROUND, report
    assert tiles(desk.outcomes(), held(end_offsets(desk.kafka.bootstrap, desk.topic, 2)))


def test_a_driver_whose_jvm_dies_says_so_and_the_run_goes_on(desk: Desk) -> None:
    process = desk.start("backfill", "--run", "cut", "--master", "local[2]", env=SLOWLY)
    run = desk.runs / "cut"
    wait_until(lambda: (Desk.told(run) or {"rounds": 0})["rounds"] >= 1, "a round", START_SECONDS, 0.1)
    kill_jvm_of(process.pid, "SparkSubmit")
    out, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 6, out
    # Before that, PySpark's server of accumulators has printed that its connection broke.
    assert out.splitlines()[-1].startswith("kunicorn: Spark's JVM does not answer any more"), out
    finish(desk, "backfill", "--resume", "cut")
    assert tiles(desk.outcomes("cut"), held(end_offsets(desk.kafka.bootstrap, desk.topic, 2)))


def kill_jvm_of(session: int, main: str) -> None:
    """A JVM in that session, by what it runs."""
    found = wait_until(lambda: running(main, "java", session), f"a JVM of {main}")
    os.kill(found[0].pid, signal.SIGKILL)


def test_a_live_member_that_joins_wins_and_the_run_says_so(
    desk: Desk, members_of: Callable[..., Members], audit: Path
) -> None:
    process = desk.start("catch-up", "--master", "local[2]", env={"KUNICORN_HANDLER_MS": "100"})
    wait_committed(desk, process, 1)
    member = members_of(desk.kafka.bootstrap, desk.topic, env={"KUNICORN_AUDIT_DIR": str(audit)}).start()
    out, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 4, out
    assert re.search(r"has members again and refuses|was committed by somebody else|has 1 member\(s\)", out), out
    assert "Traceback" not in out
    member.wait(lambda: member.lag() == 0, "the live service to handle the rest")
    assert member.stop() == 0
    report = desk.report(2)
    assert report.lost == ()
    assert repeats(report) <= ROUND, report


@pytest.mark.parametrize("slowly_ms", [40, 100])
def test_of_two_catch_ups_one_finishes_and_the_other_says_who_has_the_group(desk: Desk, slowly_ms: int) -> None:
    """Whether the first moves on, or not, while the second one's Spark starts."""
    slowly = {"KUNICORN_HANDLER_MS": str(slowly_ms)}
    processes = {"first": desk.start("catch-up", "--run", "first", "--master", "local[2]", env=slowly)}
    wait_committed(desk, processes["first"], 1)
    processes["second"] = desk.start("catch-up", "--run", "second", "--master", "local[2]")
    said = {name: process.communicate(timeout=START_SECONDS)[0] for name, process in processes.items()}
    codes = {name: process.returncode for name, process in processes.items()}
    assert sorted(codes.values()) == [0, 4], said
    (ended,) = (name for name, code in codes.items() if code == 4)
    (finished,) = codes.keys() - {ended}
    assert re.search(rf"was committed by somebody else meanwhile \(\d+, .*spark:{finished}", said[ended]), said
    reached = end_offsets(desk.kafka.bootstrap, desk.topic, 2)
    assert committed_offsets(desk.kafka.bootstrap, desk.topic, desk.topic, 2) == reached
    report = desk.report(2)
    assert report.lost == ()
    assert repeats(report) <= ROUND, report


def test_a_killed_backfill_goes_on_from_its_manifest_and_its_table_has_every_offset_once(desk: Desk) -> None:
    process = desk.start("backfill", "--run", "cut", "--master", "local[2]", env=SLOWLY)
    run = desk.runs / "cut"
    wait_until(lambda: (Desk.told(run) or {"rounds": 0})["rounds"] >= 2, "two rounds", START_SECONDS, 0.1)
    kill(process)
    finish(desk, "backfill", "--resume", "cut")
    report = desk.report(2)
    assert report.lost == ()
    assert repeats(report) <= ROUND, report
    assert tiles(desk.outcomes("cut"), held(end_offsets(desk.kafka.bootstrap, desk.topic, 2)))


def test_more_deadly_records_than_spark_has_tries_are_named_and_singled_out_by_the_next_run(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1, {"handler": {"on_failure": "skip"}, "workers": {"max_crashes": 2}})
    send(desk.kafka.bootstrap, desk.topic, {0: ["x", "crash", "x", "crash", "x"]})
    process = desk.start("backfill", "--run", "deadly", "--master", "local-cluster[2,1,1024]")
    out, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 6, out
    assert f"In hand at the end: {desk.topic}-0@1, {desk.topic}-0@3." in out
    finish(desk, "backfill", "--resume", "deadly", master="local-cluster[2,1,1024]")
    assert [(row["offset"], row["status"]) for row in desk.outcomes("deadly")] == [
        (0, "done"), (1, "skip"), (2, "done"), (3, "skip"), (4, "done"),
    ]  # fmt: skip


def test_a_stream_restarted_ten_times_has_every_offset_once_in_its_table_and_its_group(desk: Desk) -> None:
    chance = random.Random(7)
    bootstrap, group = desk.kafka.bootstrap, f"{desk.topic}.stream"
    for _ in range(RESTARTS):
        # There is always something to do, so that no signal hits a driver that is still starting its JVM.
        produce(bootstrap, desk.topic, ROUND)
        before = committed(desk, group)
        process = desk.start("stream", "--every", "0.2", "--master", "local[2]", env=SLOWLY)
        wait_until(partial(further, desk, process, group, before), "a micro-batch", START_SECONDS, every=0.1)
        moment = partial(somewhere, desk, group, desk.audited() + chance.randrange(ROUND))
        wait_until(moment, "a moment", START_SECONDS, every=0.05)
        process.send_signal(chance.choice((signal.SIGTERM, signal.SIGKILL)))
        if process.wait(START_SECONDS) < 0:
            kill_rest(process)
    finish(desk, "stream", "--available-now")
    reached = end_offsets(bootstrap, desk.topic, 2)
    assert tiles(desk.outcomes("stream"), held(reached))
    assert committed_offsets(bootstrap, group, desk.topic, 2) == reached
    assert desk.report(2).lost == ()


def kill_rest(process: subprocess.Popen[str]) -> None:
    """The JVM of a driver that is gone ends by itself; two must not have one checkpoint."""

    def alone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(alone, "the JVM to end with its driver", START_SECONDS)
