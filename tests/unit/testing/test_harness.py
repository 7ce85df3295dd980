"""Handlers under the testing kit: what a worker would do with their records."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kunicorn import (
    Batch,
    BatchError,
    DeadLetter,
    DrainDeadline,
    Halt,
    NotDecodableYet,
    Record,
    Retry,
    Skip,
    TopicPartition,
    Wait,
)
from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.ipc import clock
from kunicorn.ipc.messages import Configure, decode, encode
from kunicorn.supervisor.workers.config import configure
from kunicorn.testing import HandlerTest, record
from kunicorn.testing.harness import settings_for

P0 = TopicPartition("test", 0)
SAYS: dict[bytes | None, Callable[[], BaseException]] = {
    b"skip": lambda: Skip("not ours"),
    b"letter": lambda: DeadLetter("a negative total"),
    b"halt": lambda: Halt("ask somebody"),
    b"raise": lambda: ValueError("no"),
    b"leave": lambda: SystemExit(3),
}


def moody(record: Record) -> Any:
    if record.value in SAYS:
        raise SAYS[record.value]()
    if record.value == b"slow":
        time.sleep(30)


async def moody_async(record: Record) -> Any:
    if record.value == b"slow":
        await asyncio.sleep(30)
    return moody(record)


def moody_batch(batch: Batch) -> None:
    for each in batch:
        moody(each)


@pytest.fixture(params=[moody, moody_async], ids=["plain", "async"])
def handler(request: pytest.FixtureRequest) -> Callable[..., Any]:
    found: Callable[..., Any] = request.param
    return found


def test_each_record_has_an_outcome_and_its_partition_an_offset(handler: Callable[..., Any]) -> None:
    test = HandlerTest(handler, settings={"dead_letters": {"topic": "dead-letters"}})
    run = test.run(*map(record, ["a", "skip", "letter", "b", "halt", "c"]))
    assert run.outcomes == ["done", "skipped", "dead_letter", "done", "halted", "unhandled"]
    assert run.committed == {P0: 4}
    assert "ask somebody" in run.halted[P0]
    assert [each.value for each in run.left] == [b"halt", b"c"]
    (letter,) = run.dead_letters
    assert (letter.topic, letter.value, letter.error) == ("dead-letters", b"letter", "a negative total")
    assert letter.headers["kunicorn-offset"] == b"2"


def test_partitions_end_apart_from_one_another(handler: Callable[..., Any]) -> None:
    run = HandlerTest(handler).run(record("halt"), record("a", partition=1), record("b", topic="other", offset=7))
    assert run.outcomes == ["halted", "done", "done"]
    assert run.committed == {P0: 0, TopicPartition("test", 1): 1, TopicPartition("other", 0): 8}


def test_waits_between_tries_take_no_time() -> None:
    seen: list[int] = []

    def late(record: Record) -> None:
        seen.append(clock.now_ns())
        if len(seen) < 3:
            raise Retry("the shop is closed", after=timedelta(hours=9))

    began = time.monotonic()
    run = HandlerTest(late).run(record("a"))
    assert time.monotonic() - began < 60
    assert (run.outcomes, run.records[0].attempts) == (["done"], 3)
    waited = [(after - before) / clock.NANOSECONDS for before, after in pairwise(seen)]
    assert waited == pytest.approx([9 * 3600] * 2, rel=0.02)


def test_a_wait_takes_no_time_and_counts_no_try() -> None:
    seen: list[int] = []

    def busy(record: Record) -> Any:
        seen.append(clock.now_ns())
        return Wait(9 * 3600, "closed") if len(seen) < 5 else None

    run = HandlerTest(busy, max_attempts=1, on_failure="halt").run(record("a"), record("b"))
    assert run.outcomes == ["done", "done"]
    assert [(each.attempts, each.waited) for each in run.records] == [(5, 4 * 9 * 3600), (1, 0)]
    waited = [(after - before) / clock.NANOSECONDS for before, after in pairwise(seen[:5])]
    assert waited == pytest.approx([9 * 3600] * 4, rel=0.02)


@pytest.mark.parametrize(
    ("after", "refusal"),
    [
        (-1, "give 0 to 86400 seconds, which is a day"),
        (float("nan"), "give 0 to 86400 seconds"),
        (float("inf"), "give 0 to 86400 seconds"),
        (timedelta(days=2), "give 0 to 86400 seconds"),
        ("5", "give seconds, or a datetime.timedelta"),
        (True, "give seconds, or a datetime.timedelta"),
    ],
)
def test_a_wait_that_is_no_time_fails_its_record_and_says_what_is(after: Any, refusal: str) -> None:
    run = HandlerTest(lambda record: Wait(after), max_attempts=1).run(record("a"))
    assert run.outcomes == ["halted"]
    assert refusal in str(run.errors[0])


def test_a_handler_that_has_its_record_wait_for_ever_ends_the_test_and_not_the_developer() -> None:
    with pytest.raises(TimeoutError, match="offset 0 waits for ever: 1000 times in all"):
        HandlerTest(lambda record: Wait(1)).run(record("a"))


def test_a_decoder_whose_service_is_away_for_ever_ends_the_test_likewise() -> None:
    test = HandlerTest(lambda record: None, value=f"{__name__}:away")
    with pytest.raises(TimeoutError, match="offset 0 waits for ever: 1000 times in all, for NotDecodableYet"):
        test.run(record("a"))


def away(value: bytes) -> Any:
    """A decoder."""
    raise NotDecodableYet("no registry")


def test_one_record_of_a_batch_waits_and_the_others_come_again_in_a_batch() -> None:
    called: list[list[bytes | None]] = []

    def batches(batch: Batch) -> None:
        called.append([each.value for each in batch])
        if len(called) == 1:
            raise BatchError(done=1) from Wait(5)

    run = HandlerTest(batches, mode="batch", max_attempts=1).run(*map(record, "abcd"))
    assert called == [[b"a", b"b", b"c", b"d"], [b"b", b"c", b"d"]]
    assert run.outcomes == ["done"] * 4


def test_rows_of_a_batch_wait_by_their_mask_and_come_again() -> None:
    called: list[list[bytes | None]] = []

    def batches(batch: Batch) -> Any:
        called.append([each.value for each in batch])
        return BatchError(outcomes=[(Wait(5), [False, True, False, True])]) if len(called) == 1 else None

    run = HandlerTest(batches, mode="batch", max_attempts=1).run(*map(record, "abcd"))
    assert called == [[b"a", b"b", b"c", b"d"], [b"b", b"d"]]
    assert [(each.outcome, each.waited) for each in run.records] == [("done", 0), ("done", 5), ("done", 0), ("done", 5)]


def test_the_last_of_its_tries_ends_as_on_failure_says(handler: Callable[..., Any]) -> None:
    run = HandlerTest(handler, max_attempts=2, on_failure="dead_letter").run(record("raise", key="k"), record("a"))
    assert run.outcomes == ["dead_letter", "done"]
    assert run.records[0].attempts == 2
    assert [str(error) for error in run.errors] == ["no", "no"]
    assert (run.dead_letters[0].key, run.dead_letters[0].error_type) == (b"k", "ValueError")


def test_a_handler_that_wants_to_leave_fails_its_record_and_not_the_test(handler: Callable[..., Any]) -> None:
    run = HandlerTest(handler).run(record("leave"))
    assert run.outcomes == ["halted"]
    assert isinstance(run.errors[0], SystemExit)


def interrupted(given: Record) -> None:
    CALLED.append(given.value)
    os.kill(os.getpid(), signal.SIGINT)


async def interrupted_async(given: Record) -> None:
    asyncio.get_running_loop().call_soon(interrupted, given)
    await asyncio.sleep(30)


CALLED: list[bytes | None] = []


@pytest.mark.parametrize("handler", [interrupted, interrupted_async])
def test_ctrl_c_ends_the_run_and_not_only_its_record(handler: Callable[..., Any]) -> None:
    CALLED.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            HandlerTest(handler, on_failure="skip").run(*map(record, "ab"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert CALLED == [b"a"]


def test_a_batch_is_cut_as_the_settings_say_and_fails_as_a_whole() -> None:
    sizes: list[int] = []

    def batches(batch: Batch) -> None:
        sizes.append(len(batch))
        moody_batch(batch)

    test = HandlerTest(batches, mode="batch", batch_max_records=2, max_attempts=1, on_failure="skip")
    run = test.run(*map(record, ["a", "b", "c", "raise", "d"]))
    assert sizes == [2, 2, 1]
    assert run.outcomes == ["done", "done", "skipped", "skipped", "done"]


def test_a_revoke_lets_the_record_in_hand_finish_and_commits_it(handler: Callable[..., Any]) -> None:
    run = HandlerTest(handler).run(*map(record, "abcd"), record("z", partition=1), revoke_at=1)
    assert run.outcomes == ["done", "done", "unhandled", "unhandled", "done"]
    assert run.committed == {P0: 2, TopicPartition("test", 1): 1}
    assert run.handled_again == []


def test_a_revoke_in_a_batch_waits_for_the_whole_of_it() -> None:
    run = HandlerTest(moody_batch, mode="batch", batch_max_records=3).run(*map(record, "abcde"), revoke_at=1)
    assert run.committed == {P0: 3}


def test_a_handler_that_clings_to_a_revoked_record_is_interrupted(handler: Callable[..., Any]) -> None:
    run = HandlerTest(handler).run(record("a"), record("slow"), record("b"), revoke_at=1, drain_timeout_ms=20)
    assert run.outcomes == ["done", "unhandled", "unhandled"]
    assert run.committed == {P0: 1}
    assert [each.value for each in run.handled_again] == [b"slow"]


def test_after_a_lost_session_nothing_is_committed_and_no_further_record_begun(handler: Callable[..., Any]) -> None:
    run = HandlerTest(handler).run(*map(record, "abc"), lose_session_at=1)
    assert run.outcomes == ["done", "done", "unhandled"]
    assert run.committed == {P0: 0}
    assert [each.value for each in run.handled_again] == [b"a", b"b"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_killed_worker_leaves_its_effects_and_the_next_one_repeats_the_record_in_hand(
    is_async: bool, tmp_path: Path
) -> None:
    database = tmp_path / "effects.db"
    with closing(sqlite3.connect(database)) as made:
        made.execute("CREATE TABLE effects (value BLOB)")

    def store(record: Record) -> None:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("INSERT INTO effects VALUES (?)", (record.value,))

    async def store_async(record: Record) -> None:
        store(record)

    test = HandlerTest(store_async if is_async else store)
    killed = test.run(*map(record, "abc"), kill_at=1)
    assert (killed.outcomes, killed.committed) == (["done", "unhandled", "unhandled"], {P0: 1})
    assert [each.value for each in killed.handled_again] == [b"b"]
    after = test.run(*killed.left)
    assert (after.outcomes, after.committed) == (["done", "done"], {P0: 3})
    with closing(sqlite3.connect(database)) as read:
        assert [value for (value,) in read.execute("SELECT value FROM effects")] == [b"a", b"b", b"b", b"c"]


def test_a_call_that_takes_too_long_is_interrupted_and_tried_again(handler: Callable[..., Any]) -> None:
    run = HandlerTest(handler, handler_timeout_ms=2000, max_attempts=2, on_failure="skip").run(
        record("a"), record("slow"), record("b")
    )
    assert run.outcomes == ["done", "skipped", "done"]
    assert [type(error) for error in run.errors] == [TimeoutError, TimeoutError]


def test_setup_gets_the_options_and_teardown_comes_last() -> None:
    said: list[Any] = []

    def handle(record: Record) -> None:
        said.append(record.value)

    handle.setup = said.append  # type: ignore[attr-defined]
    handle.teardown = lambda: said.append("over")  # type: ignore[attr-defined]
    HandlerTest(handle, options={"currency": "EUR"}).run(record("a"))
    assert said == [{"currency": "EUR"}, b"a", "over"]


def test_options_that_are_dates_or_times_are_texts_as_in_a_worker(tmp_path: Path) -> None:
    said: list[Any] = []

    def handle(record: Record) -> None: ...

    handle.setup = said.append  # type: ignore[attr-defined]
    config = tmp_path / "config.toml"
    config.write_text(
        '[group]\nid = "g"\ntopics = ["test"]\n[handler.options]\n'
        "since = 2026-01-31\nat = 06:30:00\nwindows = [{until = 2026-01-31T06:30:00Z}]\n"
    )
    HandlerTest(handle, config=config).run(record("a"))
    told = configure(settings_for(f"{__name__}:moody", config, {}, {}), 0, [], None, 1)
    arrived: Configure = decode(encode(told), Configure)
    sent = arrived.handlers[0].options
    assert said == [sent] == [{"since": "2026-01-31", "at": "06:30:00", "windows": [{"until": "2026-01-31T06:30:00Z"}]}]


def test_what_teardown_raises_fails_the_test() -> None:
    def handle(record: Record) -> None: ...

    def teardown() -> None:
        raise OSError("the disk is full")

    handle.teardown = teardown  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="full"):
        HandlerTest(handle).run(record("a"))


def test_the_services_own_settings_count_and_those_of_the_test_before_them(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[kafka]\nbootstrap_servers = ["nowhere:9092"]\nsecurity_protocol = "SSL"\n'
        '[group]\nid = "orders"\ntopics = ["^refunds-.*", "orders"]\n'
        f'[handler]\nentrypoint = "{__name__}:moody"\nmax_attempts = 4\non_failure = "dead_letter"\n'
    )
    run = HandlerTest(config=config).run(record("raise"))
    assert (run.records[0].attempts, run.dead_letters[0].topic) == (4, "orders.dead-letters")
    assert run.committed == {TopicPartition("orders", 0): 1}
    assert HandlerTest(config=config, max_attempts=1).run(record("raise")).records[0].attempts == 1


def test_logs_are_those_of_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kunicorn"):
        HandlerTest(moody).run(record("skip"))
    assert "test-0@0 is skipped: Skip: not ours" in caplog.text


def test_nothing_is_left_behind(handler: Callable[..., Any]) -> None:
    threads = {*threading.enumerate()}
    test = HandlerTest(handler, handler_timeout_ms=10_000)
    test.run(record("a"))
    for _ in range(20):
        test.run(*map(record, "abcdefghij"))
    assert {*threading.enumerate()} <= threads
    assert clock.now() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"revoke_at": 3}, "no record 3: 1 are given"),
        ({"revoke_at": 0, "kill_at": 0}, "one of revoke_at"),
        ({"drain_timeout_ms": 5}, "belongs to revoke_at"),
        ({"revoke_at": 0, "drain_timeout_ms": -5}, "no time is shorter than 0"),
    ],
)
def test_a_stage_that_means_nothing_is_refused(arguments: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        HandlerTest(moody).run(record("a"), **arguments)


@pytest.mark.parametrize("arguments", [{"kill_at": "0"}, {"revoke_at": 0, "drain_timeout_ms": "20"}])
def test_a_stage_by_what_is_no_number_is_no_failure_of_the_handler(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"(kill_at '0'|drain_timeout_ms '20'): it is a whole number"):
        HandlerTest(moody).run(record("a"), **arguments)


def test_a_setting_that_is_wrong_is_named() -> None:
    with pytest.raises(ConfigError, match=r"handler\.max_atempts"):
        HandlerTest(moody, max_atempts=3).run(record("a"))


def test_a_handler_that_cannot_be_loaded_or_set_up_is_told_as_the_service_would() -> None:
    def handle(record: Record) -> None: ...

    def setup(options: dict[str, Any]) -> None:
        raise RuntimeError("no database")

    handle.setup = setup  # type: ignore[attr-defined]
    with pytest.raises(HandlerLoadError, match="there is no module 'nowhere'"):
        HandlerTest("nowhere:handle").run(record("a"))
    with pytest.raises(HandlerLoadError, match="no database"):
        HandlerTest(handle).run(record("a"))
    with pytest.raises(TypeError, match="give a handler"):
        HandlerTest()


async def test_an_async_handler_inside_an_async_test_is_refused_with_the_remedy() -> None:
    with pytest.raises(RuntimeError, match="plain def test"):
        HandlerTest(moody_async).run(record("a"))


def test_nothing_waits_for_a_delay_of_the_service() -> None:
    now = int(time.time() * 1000)
    run = HandlerTest(lambda record: None, delay_ms=86_400_000).run(record("a", timestamp=now), record("b"))
    assert run.outcomes == ["done", "done"]


def test_an_interrupted_handlers_finally_blocks_run() -> None:
    said: list[str] = []

    def handle(record: Record) -> None:
        try:
            time.sleep(30)
        except DrainDeadline:
            said.append("deadline")
            raise
        finally:
            said.append("finally")

    HandlerTest(handle).run(record("a"), revoke_at=0, drain_timeout_ms=300)
    assert said == ["deadline", "finally"]
