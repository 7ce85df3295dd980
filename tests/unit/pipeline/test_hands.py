"""What a killed process had in hand is found by the next try; real processes die here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kunicorn.errors import ConfigError
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import in_hand_file
from kunicorn.pipeline.tasks.in_hand_file import IDLE, IN_HAND, NEXT, ONE, STATE, STOP, InHand, died_in_hand, take_up
from kunicorn.pipeline.tasks.in_hand_notes import Hand
from kunicorn.positions import OffsetRange

WHOLE = OffsetRange("orders", 3, 10, 90)
DYING = """
import os, signal, sys
from confluent_kafka import Message
from kunicorn.handler.load import Handler
from kunicorn.handler.call import calls_of
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.pipeline.tasks.ranges import RangeHandler, Rules
from kunicorn.pipeline.tasks.in_hand_file import take_up
from kunicorn.positions import OffsetRange
from kunicorn.pipeline.storage import Directory

def die(records):
    if mode == "batch" or records.offset == 12:
        os.kill(os.getpid(), signal.SIGKILL)

url, mode = sys.argv[1:]
whole = OffsetRange("orders", 3, 10, 90)
messages = [Message(topic="orders", partition=3, offset=each, value=b"v") for each in (10, 12, 13, 17)]
calls = calls_of(Handler("x:y", die, False, None, None), mode)
policies = Policies(RetryPolicy(1, 1, 1, None, End.SKIP))
rules = Rules(policies, 3 if mode == "batch" else None)
list(RangeHandler(calls, rules, cells=take_up(whole, Directory(url)).cells).handle(whole, [messages]))
"""
FAILING = """
import os, sys, threading
from confluent_kafka import Message
from kunicorn.clients.range_reader import RangeUnreadable
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.load import handler_of
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.errors import ConfigError
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.concurrent import ConcurrentRanges, Part, calls_in_task
from kunicorn.pipeline.tasks.in_hand_file import Suspects, take_up
from kunicorn.positions import OffsetRange

called = threading.Event()

def handle(record):
    called.set()
    threading.Event().wait()

def fetched():
    yield [Message(topic="orders", partition=3, offset=each, value=b"v", key=b"k") for each in (10, 12)]
    called.wait()
    raise RangeUnreadable("no record for 60 s")

whole = OffsetRange("orders", 3, 10, 90)
calls = calls_in_task(handler_of("x:y", handle), HandlerConfig("x:y", "record", {}, 1, 2, 1, 1, concurrency=4))
try:
    with take_up(whole, Directory(sys.argv[1])) as hand:
        part = Part(whole, print, hand.cells, Suspects(hand.died_with))
        ConcurrentRanges(calls, Policies(RetryPolicy(1, 1, 1, None, End.SKIP))).handle([part], fetched())
except RangeUnreadable:
    os._exit(0)  # As PySpark ends a process whose task has failed.
"""
CRASH = [sys.executable, "-c", DYING]


def crash(place: Path, mode: str = "record") -> None:
    """A try of the range in a process of this one's, killed with a record in hand."""
    assert subprocess.run([*CRASH, str(place), mode], check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize(("mode", "hand"), [("record", Hand(11, 12)), ("batch", Hand(10, 14))])
def test_the_next_try_finds_what_a_killed_process_had_in_hand(tmp_path: Path, mode: str, hand: Hand) -> None:
    crash(tmp_path, mode)
    crash(tmp_path, mode)
    assert take_up(WHOLE, Directory(str(tmp_path))).died_with == [hand, hand]
    assert died_in_hand(Directory(str(tmp_path))) == [f"orders-3@{hand.start}"]
    assert take_up(WHOLE._replace(stop=80), Directory(str(tmp_path))).died_with == [], "another range"


def test_a_process_that_went_with_the_daemon_that_forked_it_blames_no_record(tmp_path: Path) -> None:
    daemon = f"import subprocess, sys; subprocess.run({[*CRASH, str(tmp_path), 'record']!r})"
    subprocess.run([sys.executable, "-c", daemon], check=True)
    assert take_up(WHOLE, Directory(str(tmp_path))).died_with == []


def test_a_try_that_fails_with_calls_underway_is_no_death(tmp_path: Path) -> None:
    place = Directory(str(tmp_path))
    crash(tmp_path)
    for _ in range(2):
        subprocess.run([sys.executable, "-c", FAILING, str(tmp_path)], check=True)
    assert died_in_hand(place) == ["orders-3@11"]
    assert take_up(WHOLE, place).died_with == [Hand(11, 12)], "what the try before it died with stays known"


def crash_and_look(place: Path, look: str) -> None:
    """A try dies, and that program looks, both while the daemon that began them lives; then that is gone, too."""
    command = [*CRASH, str(place), "record"]
    daemon = f"import subprocess, sys; subprocess.run({command!r}); subprocess.run([sys.executable, '-c', {look!r}])"
    subprocess.run([sys.executable, "-c", daemon], check=True)


def test_a_death_that_was_seen_is_remembered_when_the_daemon_is_gone(tmp_path: Path) -> None:
    look = (
        "from kunicorn.pipeline.tasks.in_hand_file import take_up; "
        "from kunicorn.positions import OffsetRange as Whole; "
        f"from kunicorn.pipeline.storage import Directory; take_up(Whole{tuple(WHOLE)}, Directory({str(tmp_path)!r}))"
    )
    crash_and_look(tmp_path, look)
    assert take_up(WHOLE, Directory(str(tmp_path))).died_with == [Hand(11, 12)]


def test_a_death_of_the_last_try_on_this_machine_is_remembered_when_the_daemon_is_gone(tmp_path: Path) -> None:
    """No try of the same job comes behind it: where a task has one try alone, no death would ever count."""
    look = (
        "from kunicorn.pipeline.tasks.in_hand_file import died_in_hand; "
        f"from kunicorn.pipeline.storage import Directory; died_in_hand(Directory({str(tmp_path)!r}), 1)"
    )
    crash_and_look(tmp_path, look)
    assert take_up(WHOLE, Directory(str(tmp_path))).died_with == [Hand(11, 12)]


def test_a_try_that_still_runs_is_no_death_and_a_range_that_is_through_leaves_nothing(tmp_path: Path) -> None:
    place = Directory(str(tmp_path))
    running = take_up(WHOLE, place)
    running.cells[STATE] = IN_HAND
    second = take_up(WHOLE, place)
    assert second.died_with == []
    running.cells[STATE] = IDLE
    second.over()
    assert list(tmp_path.glob("*/*/*")) == []


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., InHand]:
    """`on(machine, place, attempt)`: a try there, on a directory that machines share."""

    def begun(machine: int, place: Path, attempt: int) -> InHand:
        monkeypatch.setattr(in_hand_file, "_host", lambda: machine)
        return take_up(WHOLE, Directory(str(place)), attempt=attempt)

    return begun


def slow_with(offset: int, hand: InHand) -> None:
    """The handler has that record; nothing more is heard of its machine."""
    hand.cells[NEXT], hand.cells[STOP], hand.cells[STATE] = offset, ONE, IN_HAND


def test_a_machine_that_went_with_its_driver_blames_no_record(tmp_path: Path, on: Callable[..., InHand]) -> None:
    for machine in range(3):
        hand = on(machine, tmp_path, 0)
        assert hand.died_with == []
        slow_with(10, hand)
    assert len(list(tmp_path.glob("*/*/*"))) == 1, "those before it are forgotten"


def test_a_try_that_spark_has_tried_again_on_another_machine_died_with_what_it_had(
    tmp_path: Path, on: Callable[..., InHand]
) -> None:
    slow_with(10, on(1, tmp_path, 0))
    assert on(2, tmp_path, 1).died_with == [Hand(10, 11)]
    assert on(3, tmp_path, 0).died_with == [Hand(10, 11)], "and the next run knows it"


def test_the_last_try_on_another_machine_is_named_and_the_next_run_knows_it(
    tmp_path: Path, on: Callable[..., InHand], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(str(tmp_path))
    slow_with(10, on(1, tmp_path, 0))
    monkeypatch.setattr(in_hand_file, "_host", lambda: 2)
    assert died_in_hand(place) == [], "it has not been tried again"
    slow_with(12, on(3, tmp_path, 3))
    monkeypatch.setattr(in_hand_file, "_host", lambda: 2)
    assert died_in_hand(place) == ["orders-3@10", "orders-3@12"]
    assert sorted(on(2, tmp_path, 0).died_with) == [Hand(10, 11), Hand(12, 13)]


def test_a_try_that_still_runs_on_another_machine_is_not_blamed_for_the_task_that_spark_has_given_up(
    tmp_path: Path, on: Callable[..., InHand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a task has one try, which all that run have then."""
    place, other = Directory(str(tmp_path)), WHOLE._replace(partition=4)
    slow_with(10, on(1, tmp_path, 0))
    monkeypatch.setattr(in_hand_file, "_host", lambda: 2)
    assert died_in_hand(place, 1, {other}) == []
    assert died_in_hand(place, 1, {other, WHOLE}) == ["orders-3@10"]


def test_outcomes_in_an_object_store_have_their_hands_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hand = take_up(WHOLE, Directory("s3://bucket/run/outcomes"))
    assert len(list(tmp_path.glob(f"kunicorn-pipeline-{os.getuid()}/*/orders/3/_hand-*.cells"))) == 1
    hand.over()


def test_hands_are_not_looked_for_in_a_place_that_somebody_else_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of many users: what lies there could have records kept from the handler."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planted = tmp_path / "planted"
    planted.mkdir()
    place = tmp_path / f"kunicorn-pipeline-{os.getuid()}"
    place.symlink_to(planted)
    for look in (partial(take_up, WHOLE), died_in_hand):
        with pytest.raises(ConfigError, match=rf"{place} is another user's"):
            look(Directory("s3://bucket/run/outcomes"))
