"""Filters: which records come to the handler at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.handler.filter import find_filter
from kunicorn.testing import HandlerTest, record
from tests.unit.handler import filters_under_test
from tests.unit.handler.filters_under_test import GOT

HERE = filters_under_test.__name__
WANTED = {"function": f"{HERE}:wanted"}


@pytest.fixture(autouse=True)
def _nothing_got() -> Iterator[None]:
    GOT.clear()
    yield
    GOT.clear()


def behind(*filters: dict[str, Any], handler: str = "handle", **settings: Any) -> HandlerTest:
    return HandlerTest(f"{HERE}:{handler}", filters=list(filters), **settings)


@pytest.mark.parametrize(
    ("condition", "come"),
    [
        ({"on": "key", "one_of": ["a", "b"]}, ["a"]),
        ({"on": "key", "none_of": ["a"]}, ["none", "ab"]),
        ({"on": "key", "prefix": "a"}, ["a", "ab"]),
        ({"on": "key", "exists": True}, ["a", "ab"]),
        ({"on": "key", "exists": False}, ["none"]),
    ],
)
def test_by_key(condition: dict[str, Any], come: list[str]) -> None:
    run = behind(condition).run(record("a", key="a"), record("none"), record("ab", key="ab"))
    assert [value.decode() for value in GOT] == come
    assert run.outcomes == ["done" if each in come else "filtered" for each in ("a", "none", "ab")]
    assert run.committed == {("test", 0): 3}, "what is filtered counts as done"


@pytest.mark.parametrize(
    ("condition", "come"),
    [
        ({"on": "header:type", "one_of": ["order"]}, ["order", "both"]),
        ({"on": "header:type", "none_of": ["order"]}, ["none", "null"]),
        ({"on": "header:type", "prefix": "ref"}, ["both"]),
        ({"on": "header:type", "exists": False}, ["none"]),
    ],
)
def test_by_header_of_which_one_value_will_do_unless_it_is_unwanted(condition: dict[str, Any], come: list[str]) -> None:
    behind(condition).run(
        record("order", headers={"type": "order"}),
        record("both", headers=[("type", "refund"), ("type", "order")]),
        record("none", headers={"Type": "order"}),
        record("null", headers={"type": None}),
    )
    assert [value.decode() for value in GOT] == come


@pytest.mark.parametrize(("handler", "mode"), [("handle", "record"), ("handle_async", "record")])
def test_what_comes_through_is_handled_in_order_and_the_rest_is_done(handler: str, mode: str) -> None:
    run = behind(WANTED, handler=handler, mode=mode).run(*map(record, ("a", "no", "b", "no")))
    assert GOT == [b"a", b"b"]
    assert run.outcomes == ["done", "filtered", "done", "filtered"]
    assert run.committed == {("test", 0): 4}


@pytest.mark.parametrize("handler", ["handle_batch", "handle_batch_async"])
def test_a_batch_has_what_comes_through_and_none_is_empty(handler: str) -> None:
    test = behind(WANTED, handler=handler, mode="batch", batch_max_records=4)
    run = test.run(*map(record, ("a", "no", "b", "no", "no", "no", "no", "no", "c")))
    assert GOT == [[b"a", b"b"], [b"c"]]
    assert run.committed == {("test", 0): 9}
    assert [str(each) for each in run.outcomes].count("filtered") == 6


def test_columns_have_what_comes_through() -> None:
    pytest.importorskip("pyarrow")
    run = behind(WANTED, handler="handle_columns", mode="arrow").run(*map(record, ("a", "no", "b", "no")))
    assert GOT == [[b"a", b"b"]]
    assert run.outcomes == ["done", "filtered", "done", "filtered"]


@pytest.mark.parametrize(
    ("values", "outcomes"),
    [
        ('{"n":0} no {"n":2} no {"n":4} {"n":5}', "done filtered done filtered done done"),
        ('{"n":0} {"n":1} {"n":2} raise {"n":4}', "done done done dead_letter done"),
        ('{"n":0} {"n":1} {"n":2} no spoilt {"n":5}', "done done done filtered dead_letter done"),
    ],
)
def test_columns_beyond_what_one_decoded_batch_may_hold_come_with_the_next_one(
    monkeypatch: pytest.MonkeyPatch, values: str, outcomes: str
) -> None:
    monkeypatch.setattr(pytest.importorskip("kunicorn.handler.arrow"), "_MOST_BYTES", 2 * len('{"n":0}'))
    decoded: Any = {"value": "json", "value_schema": f"{HERE}:NUMBERED", "on_undecodable": "dead_letter"}
    test = behind(WANTED, handler="handle_columns", mode="arrow", batch_max_records=10, **decoded)
    run = test.run(*map(record, values.split()))
    assert run.outcomes == outcomes.split()
    done = [value.encode() for value, how in zip(values.split(), run.outcomes, strict=True) if how == "done"]
    assert [value for batch in GOT for value in batch] == done
    assert len(GOT) > 1
    assert run.committed == {("test", 0): len(values.split())}


def test_columns_beyond_what_one_batch_may_hold_come_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("kunicorn.handler.arrow"), "_MOST_BYTES", 2)
    test = behind(WANTED, handler="handle_columns", mode="arrow", batch_max_records=10)
    run = test.run(*map(record, ("a", "no", "b", "no", "c", "long", "d")))
    assert GOT == [[b"a", b"b"], [b"c"], [b"long"], [b"d"]]
    assert run.outcomes == ["done", "filtered", "done", "filtered", "done", "done", "done"]


@pytest.mark.parametrize(
    "handler",
    [
        "first_done",
        "others_done",
        "bad_skipped",
        "first_done_returned",
        "bad_skipped_returned",
        "bad_skipped_returned_async",
    ],
)
def test_a_batch_error_counts_what_the_handler_got(handler: str) -> None:
    test = behind(WANTED, handler=handler, mode="batch", on_failure="skip", max_attempts=1)
    run = test.run(*map(record, ("no", "a", "no", "bad", "no", "b")))
    assert run.outcomes == ["filtered", "done", "filtered", "skipped", "filtered", "done"]
    assert GOT[0] == [b"a", b"bad", b"b"]
    assert run.committed == {("test", 0): 6}


@pytest.mark.parametrize("handler", ["failing", "failing_async", "letters_returned", "strangers_named"])
def test_of_a_batch_that_fails_as_a_whole_what_is_filtered_is_done(handler: str) -> None:
    test = behind(WANTED, handler=handler, mode="batch", on_failure="dead_letter", max_attempts=2, retry_backoff_ms=1)
    run = test.run(*map(record, ("no", "a", "no", "b", "no")))
    assert run.outcomes == ["filtered", "dead_letter", "filtered", "dead_letter", "filtered"]
    assert [letter.value for letter in run.dead_letters] == [b"a", b"b"]
    tries = 1 if handler == "letters_returned" else 2
    together = [[b"a", b"b"]] * tries
    assert together == GOT
    assert run.committed == {("test", 0): 5}


HANGING = ["hanging", "hanging_async", "hanging_in_disguise", "hanging_in_the_first"]


@pytest.mark.parametrize("handler", ["leaving", "cancelled", *HANGING])
def test_of_a_batch_whose_call_is_ended_what_is_filtered_is_done(handler: str) -> None:
    timeout = 2000 if handler in HANGING else None
    settings = {"on_failure": "dead_letter", "max_attempts": 1, "handler_timeout_ms": timeout}
    run = behind(WANTED, handler=handler, mode="batch", **settings).run(*map(record, ("no", "a", "no", "b", "no")))
    assert run.outcomes == ["filtered", "dead_letter", "filtered", "dead_letter", "filtered"]
    assert [letter.value for letter in run.dead_letters] == [b"a", b"b"]
    assert GOT == [[b"a", b"b"]]
    assert run.committed == {("test", 0): 5}


@pytest.mark.parametrize("handler", HANGING)
def test_a_batch_that_is_taken_back_at_a_drain_deadline_has_not_failed(handler: str) -> None:
    test = behind(WANTED, handler=handler, mode="batch", on_failure="skip", max_attempts=1)
    run = test.run(*map(record, ("a", "no", "b")), revoke_at=0, drain_timeout_ms=20)
    assert (run.committed, run.errors) == ({("test", 0): 0}, [])
    assert [run.outcomes[at] for at in (0, 2)] == ["unhandled"] * 2


def test_a_batch_error_that_the_handler_keeps_is_as_good_for_the_next_batch() -> None:
    test = behind(WANTED, handler="nothing_done", mode="batch", batch_max_records=3, on_failure="skip", max_attempts=1)
    run = test.run(*map(record, ("no", "bad", "bad", "no", "b")))
    assert run.outcomes == ["filtered", "skipped", "skipped", "filtered", "done"]


@pytest.mark.parametrize("value", ["raise", "none"])
@pytest.mark.parametrize(
    ("handler", "mode"), [("handle", "record"), ("handle_async", "record"), ("handle_batch", "batch")]
)
def test_a_filter_that_fails_has_failed_the_record_as_a_decoder_does(value: str, handler: str, mode: str) -> None:
    test = behind(WANTED, handler=handler, mode=mode, on_undecodable="dead_letter", value="text")
    run = test.run(*map(record, ("no", "a", value, "b")))
    assert run.outcomes == ["filtered", "done", "dead_letter", "done"]
    (letter,) = run.dead_letters
    assert letter.error_type == "kunicorn.handler.filter.FilterFailed"
    assert f"'{HERE}:wanted' failed" in letter.error
    assert "secret" not in letter.error


def test_the_handlers_own_failure_stays_its_own() -> None:
    run = behind(WANTED, on_failure="skip", max_attempts=2, retry_backoff_ms=1).run(*map(record, ("no", "bad", "a")))
    assert run.outcomes == ["filtered", "skipped", "done"]
    assert [type(error) for error in run.errors] == [ValueError, ValueError]


def test_nothing_is_decoded_of_what_is_filtered() -> None:
    run = behind({"on": "key", "exists": True}, value="json").run(record("no JSON"), record("1", key="k"))
    assert run.outcomes == ["filtered", "done"]


NOW = int(time.time() * 1000)


def test_old_records_are_passed_by_and_those_without_a_time_or_ahead_of_ours_are_not() -> None:
    run = behind(max_age_ms=3_600_000).run(
        record("old", timestamp=NOW - 4_000_000),
        record("young", timestamp=NOW),
        record("ahead", timestamp=NOW + 10**12),
        record("timeless"),
    )
    assert run.outcomes == ["filtered", "done", "done", "done"]


def test_an_age_may_be_longer_than_the_milliseconds_of_an_int32() -> None:
    days = 86_400_000
    now = int(time.time() * 1000)
    run = behind(max_age_ms=40 * days).run(
        record("a", headers={"type": "order"}, timestamp=now - 41 * days),
        record("a", headers={"type": "order"}, timestamp=now - 39 * days),
    )
    assert run.outcomes == ["filtered", "done"]


def test_old_records_become_dead_letters_where_that_is_said() -> None:
    test = behind(max_age_ms=3_600_000, on_expired="dead_letter")
    run = test.run(record("old", timestamp=NOW - 4_000_000), record("young", timestamp=NOW))
    assert run.outcomes == ["dead_letter", "done"]
    assert "older than handler.max_age_ms = 3600000" in run.dead_letters[0].error


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"filters": [{"on": "value", "one_of": ["a"]}]}, "neither the key nor a header"),
        ({"filters": [{"one_of": ["a"]}]}, "one of the two is needed"),
        ({"filters": [{"on": "key"}]}, "needs one condition"),
        ({"filters": [{"on": "key", "one_of": ["a"], "prefix": "b"}]}, "needs one condition"),
        ({"filters": [{"function": "a.b:c", "prefix": "b"}]}, "decides by itself"),
        ({"delay_ms": 5, "max_age_ms": 5}, "every record would be too old"),
        ({"on_expired": "dead_letter"}, "nothing expires without max_age_ms"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        HandlerTest(f"{HERE}:handle", **settings).run(record("a"))


@pytest.mark.parametrize(
    ("name", "told"),
    [("asynchronous", "is no plain function"), ("of_two", "is called with one argument"), ("wnted", "did you mean")],
)
def test_what_is_no_filter_is_refused_at_the_start(name: str, told: str) -> None:
    with pytest.raises(HandlerLoadError, match=told):
        find_filter(f"{HERE}:{name}")
