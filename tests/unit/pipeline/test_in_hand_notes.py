"""What a task on another machine had in hand is found by its notes; real processes die here, each with a temporary
directory of its own, as machines have.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from kunicorn.errors import ConfigError
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import in_hand_file
from kunicorn.pipeline.tasks.in_hand_file import InHand, take_up
from kunicorn.pipeline.tasks.in_hand_notes import Hand, InHandNotes, begin_notes, noted_deaths, noted_until
from kunicorn.positions import OffsetRange

WHOLE = OffsetRange("orders", 3, 0, 1000)
DEADLY = 612
TRY = """
import os, signal, sys
from pathlib import Path
from confluent_kafka import Message
from kunicorn.handler.call import calls_of
from kunicorn.handler.load import Handler
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.pipeline.tasks import in_hand_file
from kunicorn.pipeline.tasks.in_hand_file import Suspects, take_up
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.ranges import RangeHandler, Rules
from kunicorn.positions import OffsetRange

url, mode, attempt = sys.argv[1:]
# The outcomes are where all machines see them, and no file system has mapped files there.
in_hand_file._place = lambda outcomes: Path(os.environ["TMPDIR"])
Directory.is_local = property(lambda self: False)
Directory._opened = lambda self: (__import__("pyarrow").fs.LocalFileSystem(), self.url)

def die(records):
    if 612 in ([records.offset] if mode == "record" else [each.offset for each in records]):
        os.kill(os.getpid(), signal.SIGKILL)

whole = OffsetRange("orders", 3, 0, 1000)
messages = [Message(topic="orders", partition=3, offset=each, value=b"v") for each in range(1000)]
calls = calls_of(Handler("x:y", die, False, None, None), mode)
policies = Policies(RetryPolicy(1, 1, 1, None, End.DEAD_LETTER))
rules = Rules(policies, 50 if mode == "batch" else None)
with take_up(whole, Directory(url), attempt=int(attempt), again=attempt == "0") as hand:
    handler = RangeHandler(calls, rules, cells=hand.cells, suspects=Suspects(hand.died_with, 2))
    for row in handler.handle(whole, hand.noted(iter([messages[:700], messages[700:]]))):
        if row["status"] == "dead_letter":
            print(row["offset"], row["error_type"])
"""


def tried(place: Path, mode: str, attempt: int) -> tuple[int, str]:
    """Exit code and output of a try on a machine of its own."""
    (machine := place / f"machine-{attempt}").mkdir(exist_ok=True)
    command = [sys.executable, "-c", TRY, str(place / "store"), mode, str(attempt)]
    env = {**os.environ, "TMPDIR": str(machine)}
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode, done.stdout


def store(place: Path) -> Directory:
    return Directory(str(place / "store"))


@pytest.mark.parametrize("mode", ["record", "batch"])
def test_a_record_that_kills_every_machine_it_comes_to_is_kept_from_the_handler_by_the_fourth_try(
    tmp_path: Path, mode: str
) -> None:
    codes = [tried(tmp_path, mode, attempt)[0] for attempt in (1, 2)]
    assert codes == [-signal.SIGKILL] * 2
    assert tried(tmp_path, mode, 3) == (0, f"{DEADLY} WorkerDied\n")
    assert store(tmp_path).names(".json") == [], "what is through leaves no note"


def test_after_the_last_try_the_record_is_named_and_the_next_run_knows(tmp_path: Path) -> None:
    for attempt in (2, 3):
        tried(tmp_path, "record", attempt)
    (earlier, last) = sorted(noted_deaths(store(tmp_path)), key=lambda death: death[2].start - death[2].stop)
    assert last == ("orders", 3, Hand(DEADLY, DEADLY + 1))
    assert earlier[2].start <= DEADLY < earlier[2].stop
    assert tried(tmp_path, "record", 0) == (0, f"{DEADLY} WorkerDied\n"), "begun again by another run"


@pytest.fixture
def taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], InHand]:
    """Begins the first try of a stream that was started again, on a machine of its own."""
    (machine := tmp_path / "of the first try").mkdir()
    monkeypatch.setattr(in_hand_file, "_place", lambda _: machine)
    monkeypatch.setattr(Directory, "is_local", property(lambda _: False))
    monkeypatch.setattr(Directory, "_opened", lambda self: (LocalFileSystem(), self.url))
    return lambda: take_up(WHOLE, store(tmp_path), may_have_died=True)


def test_a_stream_that_is_started_again_knows_what_its_tries_died_with_and_forgets_it_once_it_is_through(
    tmp_path: Path, taken_up: Callable[[], InHand]
) -> None:
    for attempt in (2, 3):
        tried(tmp_path, "record", attempt)
    died_with = [hand for _, _, hand in noted_deaths(store(tmp_path))]
    with taken_up() as hand:
        assert sorted(hand.died_with) == sorted(died_with)
        assert Hand(DEADLY, DEADLY + 1) in hand.died_with
    assert store(tmp_path).names(".json") == []


def test_a_stream_whose_tries_did_not_die_notes_nothing_when_it_is_started_again(
    tmp_path: Path, taken_up: Callable[[], InHand]
) -> None:
    tried(tmp_path, "record", 1)
    with taken_up() as hand:
        assert (hand.notes, hand.died_with) == (None, [])
    assert store(tmp_path).names(".json") == []


def test_a_driver_that_is_gone_took_its_tasks_along_and_no_record_is_to_blame(tmp_path: Path) -> None:
    tried(tmp_path, "record", 1)
    notes = begin_notes(store(tmp_path), WHOLE, "next.json", 0, {})
    assert notes.died_with == ()
    assert store(tmp_path).names(".json") == []


def test_what_a_machine_knows_itself_goes_before_the_note(tmp_path: Path) -> None:
    place = store(tmp_path)
    InHandNotes(_directory(place), "a.json", 1, WHOLE).before(100, 101)
    InHandNotes(_directory(place), "b.json", 1, WHOLE).before(100, 101)
    found = begin_notes(place, WHOLE, "c.json", 2, {"a.json": Hand(101, 102), "b.json": None}).died_with
    assert found == (Hand(101, 102),)
    assert [Path(name).name for name in place.names(".json")] == ["a.json"], "b has ended without a death"


def test_a_task_that_fails_without_dying_leaves_no_note(tmp_path: Path) -> None:
    notes = InHandNotes(_directory(store(tmp_path)), "a.json", 1, WHOLE)
    notes.before(100, 101)
    notes.withdraw()
    assert store(tmp_path).names(".json") == []


def test_a_store_that_does_not_answer_ends_nothing_and_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ConfigError("s3://bucket cannot be used: SlowDown")

    for method in ("write", "names", "delete"):
        monkeypatch.setattr(Directory, method, refused)
    notes = InHandNotes(_directory(store(tmp_path)), "a.json", 1, WHOLE)
    pieces = [*notes.cut([Message(topic="orders", partition=3, offset=each) for each in range(20)])]
    assert [message.offset() for piece in pieces for message in piece] == list(range(20))
    # A range that is through would be handled again.
    notes.over()
    assert len([line for line in caplog.messages if "SlowDown" in line]) == 1


@given(
    st.integers(0, 10**7),
    st.integers(1, 10**7),
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**5)), max_size=3),
    st.integers(0, 10**7),
)
def test_a_note_names_something_within_the_range_and_within_what_was_died_with(
    start: int, size: int, died: list[tuple[int, int]], behind: int
) -> None:
    whole = OffsetRange("orders", 3, start, start + size)
    hands = [Hand(first, first + count) for first, count in died]
    at = start + behind % size
    until = noted_until(at, whole, hands)
    assert at < until <= whole.stop
    assert until - at <= max(1, size // 256)
    for hand in hands:
        assert not at < hand.start < until
        assert not at < hand.stop < until
        if hand.start <= at < hand.stop:
            assert until - at <= max(1, (hand.stop - hand.start) // 256)


@given(st.sets(st.integers(0, 999), min_size=1), st.integers(0, 2))
def test_every_record_comes_once_and_in_its_order(offsets: set[int], hands: int) -> None:
    notes = InHandNotes(_Nowhere("nowhere"), "a.json", 1, WHOLE, [Hand(100, 600), Hand(300, 310)][:hands])
    run = [Message(topic="orders", partition=3, offset=each) for each in sorted(offsets)]
    pieces = [*notes.cut(run)]
    assert [message.offset() for piece in pieces for message in piece] == sorted(offsets)
    assert all(piece for piece in pieces)


class _Nowhere(Directory):
    def write(self, name: str, content: bytes) -> None:
        pass


def _directory(place: Directory) -> Directory:
    return place / f"_in_hand/orders/3/{WHOLE.start:020}-{WHOLE.stop:020}"
