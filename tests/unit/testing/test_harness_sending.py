"""What handlers return to be sent, under the testing kit: each output once, whatever became of records in between."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn import DeadLetter, Record, Send, Skip
from kunicorn.testing import HandlerTest, record

DELIVERIES = ("at_least_once", "transactions")


class Moody:
    """Copies each record to another topic, unless its value says otherwise."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()

    def __call__(self, given: Record) -> Iterator[Send]:
        self.calls[given.offset] += 1
        yield Send("copies", given.value)
        match given.value:
            case b"at the second try" if self.calls[given.offset] < 2:
                raise ValueError("not yet")
            case b"never":
                raise ValueError("no")
            case b"skip":
                raise Skip("not ours")
            case b"letter":
                raise DeadLetter("a negative total")
            case _:
                pass


@given(
    fates=st.lists(st.sampled_from(["at once", "at the second try", "never", "skip", "letter"]), max_size=8),
    delivery=st.sampled_from(DELIVERIES),
)
def test_each_output_is_sent_once_and_in_order_through_retries_and_dead_letters(
    fates: list[str], delivery: str
) -> None:
    handler = Moody()
    settings = {"producing": {"delivery": delivery}, "dead_letters": {"topic": "dead-letters"}}
    test = HandlerTest(handler, max_attempts=2, on_failure="dead_letter", settings=settings)
    run = test.run(*[record(fate) for fate in fates])
    told = [(each.topic, (each.value or b"").decode()) for each in run.sent]
    kept = [fate for fate in fates if fate != "skip"]
    assert told == [("dead-letters" if fate in ("never", "letter") else "copies", fate) for fate in kept]
    tries = {"at the second try": 2, "never": 2}
    assert handler.calls == {offset: tries.get(fate, 1) for offset, fate in enumerate(fates)}
    assert not fates or run.committed == {("test", 0): len(fates)}


REFUSED = [
    (Send("all orders", b"1"), {}, "TOPIC_EXCEPTION.*no legal name of a topic"),
    (Send(".", b"1"), {}, "TOPIC_EXCEPTION.*no legal name of a topic"),
    (Send("copies", b"1" * 2000), {"librdkafka": {"message.max.bytes": 1000}}, "MSG_SIZE_TOO_LARGE"),
    (Send("copies", b"1" * (2**21 + 1)), {"buffer_memory": 2**20}, "raise producing.buffer_memory"),
    (Send("copies", 1), {}, "value is int"),
    (Send("copies" * 50, b"1"), {}, "249 are the most"),
]


@pytest.mark.parametrize(("output", "producing", "why"), REFUSED, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_what_no_worker_could_send_fails_its_record_and_no_other(
    output: Send, producing: dict[str, Any], why: str, delivery: str
) -> None:
    def handle(given: Record) -> Send:
        return output if given.value == b"bad" else Send("copies", given.value)

    settings = {"producing": {"delivery": delivery, **producing}}
    test = HandlerTest(handle, max_attempts=1, on_failure="skip", settings=settings)
    run = test.run(record("a"), record("bad"), record("c"))
    assert run.outcomes == ["done", "skipped", "done"]
    assert re.search(why, str(run.errors[0]))
    assert {each.value for each in run.sent} == {b"a", b"c"}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_of_a_record_in_hand_when_the_session_is_lost_nothing_is_sent(delivery: str) -> None:
    run = HandlerTest(Moody(), settings={"producing": {"delivery": delivery}}).run(
        record("a"), record("b"), lose_session_at=1
    )
    assert (run.sent, run.committed) == ([], {("test", 0): 0})


def test_a_run_that_sends_leaves_no_thread_behind() -> None:
    before = {*threading.enumerate()}
    HandlerTest(Moody(), settings={"producing": {"delivery": "transactions"}}).run(record("a"))
    assert {*threading.enumerate()} <= before


def test_a_letter_that_a_handler_passes_on_is_no_dead_letter_of_its_run() -> None:
    (letter,) = (
        HandlerTest(lambda given: DeadLetter("no"), settings={"dead_letters": {"topic": "bad"}})
        .run(record("a"))
        .dead_letters
    )

    def archive(given: Record) -> Send:
        return Send("archive", {"was": given.topic}, headers=given.headers)

    settings = {"producing": {"delivery": "at_least_once", "value": "json"}}
    passed = HandlerTest(archive, settings=settings).run(letter.given)
    assert (passed.outcomes, passed.dead_letters) == (["done"], [])
    assert passed.sent[0].data == {"was": "bad"}
