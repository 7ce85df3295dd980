"""Whatever a handler does, its record ends as the settings say and its worker lives: in every form in which a handler
can be called, with the real worker in this process.

Each topic's handler does one thing, to the record in the middle of that topic's partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kunicorn.handler.config import HandlerConfig
from kunicorn.testing import record
from tests.unit.worker import hostile_handlers
from tests.unit.worker.hostile_handlers import DEEDS, HOSTILE, LEAVING, begun, counts, kept, met
from tests.unit.worker.whole import Worker, order_of
from tests.waiting import wait_until

TRIES = 3
RECORDS = 5
BAD = 2
"""The offset of the hostile one."""
RETRIED = {
    "surrogate": "ValueError",
    "huge": "ValueError",
    "unspeakable": "tests.unit.worker.hostile_handlers.Unspeakable",
    "deadly": "tests.unit.worker.hostile_handlers.Deadly",
    "odd-text": "tests.unit.worker.hostile_handlers.Odd",
    "named-oddly": "None.oddly named\n",
    "group": "ExceptionGroup",
    "cancelled": "asyncio.exceptions.CancelledError",
    "recursion": "RecursionError",
    "memory": "MemoryError",
    "number-of-seconds": "TypeError",
    "coroutine": "TypeError",
    "generator": "TypeError",
    "async-generator": "TypeError",
    "lazy": "TypeError",
    "returns-error": "ValueError",
}
"""What is worth another try, and the error type that its dead letter names."""
AT_ONCE = {
    "base-group": "BaseExceptionGroup",
    "leave": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "generator-exit": "GeneratorExit",
    "worse": "tests.unit.worker.hostile_handlers.Worse",
    "gives-up": "kunicorn.DeadLetter",
}
LETTERS = RETRIED | AT_ONCE
NOT_SENT = "kunicorn.NotToBeSent"


@dataclass(frozen=True)
class Form:
    """How a handler is called."""

    handler: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sends: bool = False

    @property
    def in_batches(self) -> bool:
        """What fails one record fails all of its partition."""
        return self.settings.get("mode") == "batch"

    def worker(self, on_failure: str) -> Worker:
        """With as many tries as `TRIES`."""
        return Worker(order(self.handler, on_failure=on_failure, **self.settings), sends=self.sends)


FORMS = {
    "one record": Form("obey"),
    "a batch": Form("obey_batch", {"mode": "batch"}),
    "async": Form("obey_async"),
    "async batch": Form("obey_batch_async", {"mode": "batch"}),
    "threads": Form("obey", {"ordering": "key", "concurrency": 4}),
    "tasks": Form("obey_async", {"ordering": "key", "concurrency": 4}),
    "sending": Form("obey_and_send", sends=True),
    "async sending": Form("obey_and_send_async", sends=True),
    "yielding": Form("obey_and_yield", sends=True),
    "threads sending": Form("obey_and_send", {"ordering": "key", "concurrency": 4}, sends=True),
    "tasks sending": Form("obey_and_send_async", {"ordering": "key", "concurrency": 4}, sends=True),
}


def order(handler: str, **settings: Any) -> HandlerConfig:
    return order_of(f"{hostile_handlers.__name__}:{handler}", **{"max_attempts": TRIES, **settings})


@pytest.fixture(autouse=True)
def notes() -> None:
    for noted in (begun, counts, kept, met):
        noted.clear()


def records_of(*topics: str) -> list[Any]:
    values = [HOSTILE if offset == BAD else b"v" for offset in range(RECORDS)]
    return [record(value, key=f"k{at}", topic=topic) for topic in topics for at, value in enumerate(values)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_failure_ends_as_a_dead_letter_and_nothing_else_is_touched(form: Form) -> None:
    worker = form.worker("dead_letter")
    worker.handle(records_of(*DEEDS))
    drained = form.sends and form.handler != "obey_and_yield"
    expected = LETTERS | ({"generator": NOT_SENT, "lazy": NOT_SENT} if drained else {})
    assert {letter_of(each)[0]: each.error_type for each in worker.sent if each.is_letter} == expected
    tries = {topic: TRIES if topic in RETRIED else 1 for topic in DEEDS}
    assert {topic: begun[topic, BAD] for topic in DEEDS} == tries
    failed = {letter_of(each) for each in worker.sent if each.is_letter}
    if form.in_batches:
        assert failed == {(topic, offset) for topic in LETTERS for offset in range(RECORDS)}
        return
    assert failed == {(topic, BAD) for topic in LETTERS}
    assert {begun[topic, offset] for topic in DEEDS for offset in range(RECORDS) if offset != BAD} == {1}
    if form.sends:
        sent = sorted((each.value or b"").decode() for each in worker.sent if not each.is_letter)
        assert sent == sorted(f"{topic}@{offset}" for topic in DEEDS for offset in range(RECORDS) if offset != BAD)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_failure_halts_its_partition_and_the_supervisor_can_be_told_why(form: Form) -> None:
    worker = form.worker("halt")
    worker.handle(records_of(*DEEDS))
    topics = list(DEEDS)
    # A batch fails as a whole.
    at = 0 if form.in_batches else BAD
    halts = set(LETTERS) - {"gives-up"}
    assert {(topics[each.grant - 1], each.offset) for each in worker.halted} == {(topic, at) for topic in halts}
    assert all(0 < len(each.error) < 100_000 for each in worker.halted)


@pytest.mark.parametrize("settings", [{}, {"ordering": "none", "concurrency": 4}], ids=["one", "threads"])
def test_of_a_batch_one_record_fails_alone_also_by_an_exception_that_cannot_be_told(settings: dict[str, Any]) -> None:
    worker = Worker(order("fail_one", mode="batch", on_failure="dead_letter", **settings))
    worker.handle(records_of("t"))
    assert [(letter_of(each), each.error_type) for each in worker.sent] == [(("t", BAD), RETRIED["unspeakable"])]
    assert {offset for _, offset in begun} == set(range(RECORDS))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_handler_that_returns_a_mere_value_is_warned_of_once(form: Form, caplog: pytest.LogCaptureFixture) -> None:
    worker = form.worker("halt")
    worker.handle([record(HOSTILE, key=f"k{number}", topic="says-odd") for number in range(20)])
    said = [each.getMessage() for each in caplog.records if "returned a value" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"{hostile_handlers.__name__}:{form.handler} returned a value of type dict")


def test_handlers_that_return_nothing_or_an_outcome_or_outputs_are_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for form in FORMS.values():
        form.worker("halt").handle(records_of("skips"))
    assert "returned a value" not in caplog.text


def letter_of(sent: Any) -> tuple[str, int]:
    """The place of a dead letter's record."""
    return sent.headers["kunicorn-topic"].decode(), int(sent.headers["kunicorn-offset"])


# -- handlers one of whose tasks leaves --------------------------------------------------------------------------------

IN_TASKS = {
    "one record": ("exit_below_and_beside", {"concurrency": 1}),
    "batches of one": ("exit_below_and_beside_batch", {"mode": "batch", "batch_max_records": 1}),
    "tasks": ("exit_below_and_beside", {"ordering": "key", "concurrency": 4}),
}


@pytest.mark.parametrize("on_failure", ["dead_letter", "halt"])
@pytest.mark.parametrize(("handler", "settings"), IN_TASKS.values(), ids=IN_TASKS)
def test_an_exit_in_another_task_fails_the_record_whose_handler_waits_for_it_and_no_other(
    handler: str, settings: dict[str, Any], on_failure: str
) -> None:
    values = {"bad": HOSTILE, "good": b"v", "beside": LEAVING}
    records = [
        record(values[topic] if at == BAD else b"v", key=f"k{at}", topic=topic) for at in range(5) for topic in values
    ]
    worker = Worker(order(handler, on_failure=on_failure, **settings))
    worker.handle(records)
    if on_failure == "dead_letter":
        assert [(letter_of(each), each.error_type) for each in worker.sent] == [(("bad", BAD), "SystemExit")]
    else:
        assert [(each.grant, each.offset) for each in worker.halted] == [(1, BAD)]
    assert {begun[topic, at] for topic in ("good", "beside") for at in range(5)} == {1}


# -- handlers that are not what they look like -------------------------------------------------------------------------

UNRUN = ["wrapped", "wrapped_generator", "wrapped_async_generator", "forwarding", "in_a_lambda", "partially_wrapped"]


@pytest.mark.parametrize("settings", [{}, {"ordering": "key", "concurrency": 4}], ids=["one", "threads"])
@pytest.mark.parametrize("handler", UNRUN)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_handler_whose_body_never_ran_has_not_handled_its_record(handler: str, settings: dict[str, Any]) -> None:
    worker = Worker(order(handler, max_attempts=1, on_failure="halt", **settings))
    worker.handle(records_of("t"))
    (halted,) = worker.halted
    assert (halted.offset, sum(begun.values())) == (0, 0)
    assert "nobody awaits" in halted.error or "of which nothing has run" in halted.error
    assert "async def" in halted.error or "[producing]" in halted.error


def test_a_batch_that_no_body_ran_for_is_not_handled() -> None:
    worker = Worker(order("wrapped_batch", mode="batch", max_attempts=1, on_failure="halt"))
    worker.handle(records_of("t"))
    assert [each.offset for each in worker.halted] == [0]


@pytest.mark.parametrize("handler", ["waiting", "partially"])
def test_objects_and_partial_calls_of_async_def_are_awaited(handler: str) -> None:
    Worker(order(handler)).handle(records_of("t"))
    assert list(begun.values()) == [1] * RECORDS


# -- handlers that are interrupted -------------------------------------------------------------------------------------

TASKS = {"ordering": "key", "concurrency": 2}
INTERRUPTED = {
    "one record": ("wrap", {}),
    "a batch": ("wrap_batch", {"mode": "batch"}),
    "threads": ("wrap", TASKS),
    "async": ("wrap_async", {}),
    "async batch": ("wrap_batch_async", {"mode": "batch"}),
    "tasks": ("wrap_async", TASKS),
    "in a group": ("group", {}),
    "in a group of a task": ("group", TASKS),
}


def begins(times: int) -> None:
    """Wait until the handler has the first record for the so-manieth time, and waits or computes."""
    wait_until(lambda: begun["t", 0] == times, f"call {times}", every=0.001)


@pytest.mark.parametrize(("handler", "settings"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_a_drain_deadline_that_comes_out_as_another_error_leaves_the_record_unfinished(
    handler: str, settings: dict[str, Any]
) -> None:
    worker = Worker(order(handler, max_attempts=1, on_failure="skip", **settings))

    def meanwhile() -> None:
        begins(1)
        worker.revoke(1)
        wait_until(lambda: worker.stopped, "its report")

    worker.handle([record(b"v", topic="t")], meanwhile=meanwhile)
    assert worker.stopped == {1: 0}, "whoever has the partition next begins with it"


@pytest.mark.parametrize(("handler", "settings"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_a_time_out_that_comes_out_as_another_error_is_a_failed_try(handler: str, settings: dict[str, Any]) -> None:
    worker = Worker(order(handler, max_attempts=2, on_failure="dead_letter", **settings))

    def meanwhile() -> None:
        for times in (1, 2):
            begins(times)
            worker.made.runner.time_out(1, 0)

    worker.handle([record(b"v", topic="t")], meanwhile=meanwhile)
    assert [(each.error_type, begun["t", 0]) for each in worker.sent] == [("TimeoutError", 2)]


@pytest.mark.parametrize(("handler", "settings"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_a_time_out_of_an_earlier_try_does_not_make_a_drain_deadline_the_records_failure(
    handler: str, settings: dict[str, Any]
) -> None:
    worker = Worker(order(handler, max_attempts=2, on_failure="skip", **settings))

    def meanwhile() -> None:
        begins(1)
        worker.made.runner.time_out(1, 0)
        begins(2)
        worker.revoke(1)
        wait_until(lambda: worker.stopped, "its report")

    worker.handle([record(b"v", topic="t")], meanwhile=meanwhile)
    assert begun["t", 0] == 2
    if handler in ("wrap", "wrap_batch"):
        assert met == ["HandlerTimeout", "DrainDeadline"]
    assert worker.stopped == {1: 0}, "skipped as a second failure, it would be past"


SURVIVORS = {
    "one record": ("survive", {}, "LookupError"),
    "threads": ("survive", TASKS, "LookupError"),
    "async": ("survive_async", {}, "ExceptionGroup"),
    "tasks": ("survive_async", TASKS, "ExceptionGroup"),
}


@pytest.mark.parametrize(("handler", "settings", "error"), SURVIVORS.values(), ids=SURVIVORS)
def test_an_interruption_that_a_record_survives_says_nothing_of_the_next_one(
    handler: str, settings: dict[str, Any], error: str
) -> None:
    worker = Worker(order(handler, max_attempts=1, on_failure="dead_letter", **settings))

    def meanwhile() -> None:
        begins(1)
        worker.made.runner.time_out(1, 0)

    worker.handle([record(b"v", key="one", topic="t") for _ in range(3)], meanwhile=meanwhile)
    assert [(each.error_type, letter_of(each)) for each in worker.sent] == [(error, ("t", 1))]
    assert not any(counts), "nothing is left of the cancellation"
