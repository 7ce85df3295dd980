"""A handler of columns in the testing kit: what is done, tried again, passed over and sent is as for batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kunicorn import BatchError, DeadLetter, Halt, Retry, Send, Skip
from kunicorn.errors import ConfigError
from kunicorn.testing import HandlerTest, record

TEN = [record(b"%d" % number, partition=number % 2) for number in range(10)]


@dataclass
class Order:
    """Model, which columns are not decoded to."""

    number: int


def run(handle: Any, records: Any = TEN, settings: Any = None, **handler: Any) -> Any:
    """Result of the handler with these records."""
    return HandlerTest(handle, mode="arrow", settings=settings, **handler).run(*records)


class Calls:
    """Handler that keeps the offsets of its batches, and raises in the first call."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.offsets: list[list[int]] = []
        self._error = error

    def __call__(self, batch: pa.RecordBatch) -> None:
        self.offsets.append(batch.column("offset").to_pylist())
        if len(self.offsets) == 1 and self._error is not None:
            raise self._error


def because(error: BatchError, cause: BaseException) -> BatchError:
    """As `raise error from cause`."""
    error.__cause__ = cause
    return error


def test_a_handler_of_columns_gets_one_partitions_rows_in_order() -> None:
    seen: list[pa.RecordBatch] = []
    result = run(seen.append)
    assert result.outcomes == ["done"] * 10
    assert all(isinstance(batch, pa.RecordBatch) for batch in seen)
    assert all(len(set(batch.column("partition").to_pylist())) == 1 for batch in seen)
    values = [value for batch in seen for value in batch.column("value").to_pylist()]
    assert sorted(values) == [b"%d" % number for number in range(10)]
    assert set(result.committed.values()) == {5}


def test_a_batch_has_no_more_rows_than_the_settings_say() -> None:
    calls = Calls()
    run(calls, batch_max_records=2)
    sizes = list(map(len, calls.offsets))
    assert sum(sizes) == 10
    assert max(sizes) == 2


def test_a_batch_that_raises_is_tried_again_as_a_whole() -> None:
    calls = Calls(OSError("once"))
    result = run(calls, [record(b"x") for _ in range(4)])
    assert calls.offsets == [[0, 1, 2, 3]] * 2
    assert [each.attempts for each in result.records] == [2] * 4


def test_the_first_row_that_is_not_done_is_tried_again_alone() -> None:
    calls = Calls(because(BatchError(done=2), ValueError("the third")))
    run(calls, [record(b"x") for _ in range(5)])
    assert calls.offsets == [[0, 1, 2, 3, 4], [2], [3, 4]]


@pytest.mark.parametrize("made", [list, pa.array], ids=["list", "arrow"])
def test_a_mask_says_which_rows_are_done(made: Any) -> None:
    calls = Calls(because(BatchError(mask=made([True, False, True, False, True])), Skip("no use")))
    result = run(calls, [record(b"x") for _ in range(5)])
    assert calls.offsets == [[0, 1, 2, 3, 4], [3]]
    assert result.outcomes == ["done", "skipped", "done", "done", "done"]


def test_a_mask_of_another_length_fails_the_whole_batch() -> None:
    def handle(batch: pa.RecordBatch) -> None:
        raise BatchError(mask=[True])

    result = run(handle, [record(b"x") for _ in range(2)], max_attempts=1, on_failure="skip")
    assert result.outcomes == ["skipped"] * 2
    assert "mask" in str(result.records[0].errors[0])


@pytest.mark.parametrize("mode", ["arrow", "batch"])
def test_one_call_gives_rows_their_outcomes_by_masks_and_is_not_called_with_them_again(mode: str) -> None:
    offsets: list[list[int]] = []

    def handle(batch: Any) -> BatchError | None:
        offsets.append(batch.column("offset").to_pylist() if mode == "arrow" else batch.offsets())
        if len(offsets) > 1:
            return None
        rows = range(10)
        return BatchError(
            outcomes=[
                (Skip("a test"), [row % 2 == 0 for row in rows]),
                (DeadLetter("negative"), pa.array([row in (3, 4, 8) for row in rows])),
                (Retry("not yet"), [row == 5 for row in rows]),
            ]
        )

    records = [record(b"%d" % number) for number in range(10)]
    dead = {"dead_letters": {"topic": "dead"}}
    result = HandlerTest(handle, mode=mode, settings=dead, retry_backoff_ms=1).run(*records)
    assert offsets == [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [5]]
    done, skipped = "done", "skipped"
    expected = [skipped, done, skipped, "dead_letter", skipped, done, skipped, done, skipped, done]
    assert result.outcomes == expected
    assert [letter.value for letter in result.dead_letters] == [b"3"]
    assert list(result.committed.values()) == [10]


def test_a_row_may_have_any_exception_and_goes_by_its_rule() -> None:
    def handle(batch: pa.RecordBatch) -> None:
        raise BatchError(outcomes=[(KeyError("customer"), pc.equal(batch.column("value"), b"2"))])

    result = run(handle, [record(b"%d" % number) for number in range(4)], max_attempts=2, on_failure="skip")
    assert result.outcomes == ["done", "done", "skipped", "done"]
    assert [type(error) for error in result.errors] == [KeyError, KeyError]


def test_a_row_that_halts_its_partition_leaves_those_behind_to_the_next_owner() -> None:
    def handle(batch: pa.RecordBatch) -> None:
        rows = range(batch.num_rows)
        masks = [row == 1 for row in rows], [row == 2 for row in rows]
        raise BatchError(outcomes=[(Halt("look"), masks[0]), (Skip("a test"), masks[1])])

    result = run(handle, [record(b"%d" % number) for number in range(4)])
    assert result.outcomes[:2] == ["done", "halted"]
    assert list(result.committed.values()) == [1]


def test_a_mask_with_nulls_fails_the_batch_with_the_remedy() -> None:
    def handle(batch: pa.RecordBatch) -> None:
        raise BatchError(outcomes=[(Skip("empty"), pa.array([None, True]))])

    result = run(handle, [record(b"x") for _ in range(2)], max_attempts=1, on_failure="skip")
    assert "fill_null" in str(result.records[0].errors[0])


def test_a_row_becomes_a_letter_with_key_value_and_headers() -> None:
    calls = Calls(because(BatchError(done=1), DeadLetter("broken")))
    dead = {"dead_letters": {"topic": "dead"}}
    result = run(calls, [record(b"a"), record(b"b", key=b"k", headers={"h": b"1"})], dead)
    (letter,) = [sent for sent in result.sent if sent.is_letter]
    assert (letter.value, letter.key, letter.headers["h"]) == (b"b", b"k", b"1")


def test_what_a_handler_of_columns_returns_is_sent() -> None:
    def handle(batch: pa.RecordBatch) -> list[Send]:
        return [Send("out", value=value) for value in batch.column("value").to_pylist()]

    result = run(handle, settings={"producing": {"delivery": "at_least_once"}})
    assert sorted(sent.value for sent in result.sent) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("delivery", ["at_least_once", "transactions"])
def test_a_batch_of_columns_that_is_returned_is_sent_a_record_a_row(delivery: str) -> None:
    def handle(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        headers = pa.array([[{"name": "h", "value": b"1"}], None] * (rows // 2), batch.schema.field("headers").type)
        columns = {"key": batch.column("value"), "value": pa.array(["x", None] * (rows // 2)), "headers": headers}
        return pa.RecordBatch.from_pydict({**columns, "topic": pa.array(["out"] * rows)})

    result = run(
        handle, [record(b"%d" % number) for number in range(4)], settings={"producing": {"delivery": delivery}}
    )
    sent = [(each.topic, each.key, each.value, dict(each.headers)) for each in result.sent]
    assert sent == [
        ("out", b"0", b"x", {"h": b"1"}), ("out", b"1", None, {}),
        ("out", b"2", b"x", {"h": b"1"}), ("out", b"3", None, {}),
    ]  # fmt: skip
    assert list(result.committed.values()) == [4]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"value": ["x"], "offset": [1]}, "'offset' among them"),
        ({"key": ["x"]}, "without a column 'value'"),
        ({"value": [1]}, "'value' of the type int64"),
        ({"value": ["x"], "headers": ["h"]}, "list<struct<name"),
        ({"value": ["x"], "partition": ["0"]}, "a whole number"),
        ({"value": ["x"]}, "without a topic"),
    ],
)
def test_columns_that_are_no_records_fail_the_batch_with_what_would_be(columns: dict[str, Any], why: str) -> None:
    producing = {"producing": {"delivery": "at_least_once"}}
    result = run(
        lambda batch: pa.RecordBatch.from_pydict(columns), [record(b"x")], producing, max_attempts=1, on_failure="skip"
    )
    assert result.outcomes == ["skipped"]
    assert why in str(result.errors[0])


def test_columns_that_are_returned_and_nobody_sends_fail_the_batch() -> None:
    result = run(lambda batch: batch, [record(b"x")], max_attempts=1, on_failure="skip")
    assert "set [producing] delivery" in str(result.errors[0])


SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False)])


@pytest.mark.parametrize("schema", ["SCHEMA", "Order"])
def test_json_values_come_as_a_column_and_a_misfit_fails_its_record_alone(schema: str) -> None:
    seen: list[Any] = []

    def handle(batch: pa.RecordBatch) -> None:
        seen.append([None if row is None else row["number"] for row in batch.column("data").to_pylist()])
        assert batch.column("value").to_pylist()[0] == b'{"number": 0}' or len(seen) > 1

    values = [b'{"number": 0}', None, b"nonsense", b'{"number": "secret"}', b'{"number": 4}']
    named = {"value": "json", "value_schema": f"tests.unit.testing.test_harness_columns:{schema}"}
    dead = {"dead_letters": {"topic": "dead"}}
    result = run(handle, list(map(record, values)), dead, on_undecodable="dead_letter", **named)
    assert result.outcomes == ["done", "done", "dead_letter", "dead_letter", "done"]
    assert seen == [[0, None], [4]]
    assert [letter.value for letter in result.dead_letters] == [b"nonsense", b'{"number": "secret"}']
    assert {letter.error_type for letter in result.dead_letters} == {"kunicorn.Undecodable"}
    assert "number is of the kind string, and number is wanted" in result.dead_letters[1].error
    assert "secret" not in result.dead_letters[1].error


class Across(Calls):
    """Likewise, with partitions."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__(error)
        self.places: list[list[tuple[int, int]]] = []

    def __call__(self, batch: pa.RecordBatch) -> None:
        partitions, offsets = (column.to_pylist() for column in batch.columns[1:3])
        self.places.append(list(zip(partitions, offsets, strict=True)))
        super().__call__(batch)


SIX = [record(b"%d" % number, partition=number % 3) for number in range(6)]
SIXTEEN = [record(b"%d" % number, partition=number % 4) for number in range(16)]
PLACES = [(partition, offset) for partition in range(3) for offset in range(2)]


def across(handle: Any, **more: Any) -> Any:
    return run(handle, SIX, batch_across_partitions=True, retry_backoff_ms=1, **more)


def test_across_partitions_one_call_has_the_rows_of_all_of_them_in_order() -> None:
    calls = Across()
    result = across(calls)
    assert sorted(calls.places[0]) == PLACES
    assert [offset for _, offset in calls.places[0]] == [0, 1] * 3
    assert set(result.committed.values()) == {2}
    assert result.outcomes == ["done"] * 6


def test_across_partitions_the_batch_has_no_more_rows_and_bytes_than_the_settings_say() -> None:
    calls = Across()
    across(calls, batch_max_records=3)
    assert [len(each) for each in calls.places] == [3, 3]
    calls = Across()
    result = across(calls, batch_max_bytes=4)
    assert max(map(len, calls.places)) <= 4
    assert result.outcomes == ["done"] * 6


def test_across_partitions_what_raised_is_tried_again_by_partition() -> None:
    calls = Across(OSError("once"))
    result = across(calls)
    assert len(calls.places[0]) == 6
    assert sorted(map(sorted, calls.places[1:])) == [PLACES[at : at + 2] for at in (0, 2, 4)]
    assert [each.attempts for each in result.records] == [2] * 6


@pytest.mark.parametrize(
    "rules",
    [
        {"max_attempts": 1, "on_failure": "skip"},
        {"failures": [{"exceptions": ["builtins.ValueError"], "max_attempts": 1, "on_failure": "skip"}]},
    ],
)
def test_across_partitions_a_bad_row_costs_no_other_partition_its_tries(rules: dict[str, Any]) -> None:
    def handle(batch: pa.RecordBatch) -> None:
        if b"2" in batch.column("value").to_pylist():
            raise ValueError("a bad row")

    result = across(handle, **rules)
    assert result.outcomes == ["done", "done", "skipped"] * 2
    assert set(result.committed.values()) == {2}


def test_across_partitions_a_call_that_failed_is_one_for_the_circuit_breaker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = Across(OSError("once"))
    breaker = {"exceptions": ["builtins.OSError"], "min_calls": 3, "failure_share": 0.3}
    assert across(calls, circuit_breaker=breaker).outcomes == ["done"] * 6
    assert "circuit breaker" not in caplog.text
    assert "failed on a batch of 3 partitions" in caplog.text


def test_across_partitions_batches_are_called_together_again_behind_one_that_failed() -> None:
    calls = Across(OSError("once"))
    run(calls, SIXTEEN, batch_across_partitions=True, batch_max_records=6)
    assert [len(each) for each in calls.places] == [6, 4, 4, 6, 2]


def test_across_partitions_the_row_that_failed_is_its_partitions() -> None:
    calls = Across(because(BatchError(done=3), ValueError("the fourth")))
    result = across(calls)
    failed, behind = calls.places[0][3], calls.places[0][4:]
    assert [failed] in calls.places[1:], "it is tried again alone"
    again = [place for call in calls.places[1:] for place in call]
    assert sorted(again) == sorted([failed, *behind])
    assert result.outcomes == ["done"] * 6
    assert set(result.committed.values()) == {2}


def test_across_partitions_rows_end_by_masks() -> None:
    def handle(batch: pa.RecordBatch) -> BatchError:
        value = batch.column("value")
        return BatchError(
            outcomes=[
                (Skip("a test"), pc.is_in(value, pa.array([b"0", b"4"]))),
                (DeadLetter("bad"), pc.is_in(value, pa.array([b"2", b"5"]))),
            ]
        )

    result = across(handle, settings={"dead_letters": {"topic": "dead"}})
    assert result.outcomes == ["skipped", "done", "dead_letter", "done", "skipped", "dead_letter"]
    assert sorted(letter.value for letter in result.dead_letters) == [b"2", b"5"]
    assert set(result.committed.values()) == {2}


def test_across_partitions_rows_that_are_decided_come_into_no_later_call() -> None:
    seen: list[bytes] = []

    def handle(batch: pa.RecordBatch) -> BatchError:
        seen.extend(values := batch.column("value").to_pylist())
        masks = [value < b"3" for value in values], [value >= b"3" for value in values]
        return BatchError(outcomes=[(Skip("a test"), masks[0]), (DeadLetter("bad"), masks[1])])

    result = across(handle, settings={"dead_letters": {"topic": "dead"}}, batch_max_records=4)
    assert sorted(seen) == [b"%d" % number for number in range(6)]
    assert result.outcomes == ["skipped"] * 3 + ["dead_letter"] * 3


def test_across_partitions_rows_that_a_mask_names_as_done_are_not_handled_again() -> None:
    mask = [True, False, True, False, False, True]
    calls = Across(because(BatchError(mask=mask), ValueError("the second")))
    result = across(calls)
    undone = [place for place, each in zip(calls.places[0], mask, strict=True) if not each]
    assert sorted(place for call in calls.places[1:] for place in call) == sorted(undone)
    assert result.outcomes == ["done"] * 6
    assert set(result.committed.values()) == {2}


def test_across_partitions_offsets_do_not_say_which_row_it_was() -> None:
    def handle(batch: pa.RecordBatch) -> None:
        raise BatchError(failed=1)

    result = across(handle, max_attempts=1, on_failure="skip")
    assert result.outcomes == ["skipped"] * 6
    assert any("several partitions" in str(error) for error in result.errors)


def test_across_partitions_what_cannot_be_decoded_fails_alone() -> None:
    values = [b'{"number": 0}', b"nonsense", b'{"number": 2}', b'{"number": 3}']
    named = {"value": "json", "value_schema": "tests.unit.testing.test_harness_columns:SCHEMA"}
    records = [record(value, partition=at) for at, value in enumerate(values)]
    result = run(lambda batch: None, records, on_undecodable="skip", batch_across_partitions=True, **named)
    assert result.outcomes == ["done", "skipped", "done", "done"]
    assert set(result.committed.values()) == {1}


def test_across_partitions_nobody_is_blamed_for_a_call_before_one_that_cannot_be_decoded() -> None:
    def handle(batch: pa.RecordBatch) -> None:
        if batch.num_rows > 1 or batch.column("partition")[0].as_py() == 0:
            raise ValueError("no")

    values = [b'{"number": 0}', b'{"number": 1}', b"nonsense", b'{"number": 3}']
    named = {"value": "json", "value_schema": "tests.unit.testing.test_harness_columns:SCHEMA"}
    records = [record(value, partition=at) for at, value in enumerate(values)]
    kept = {"on_undecodable": "skip", "on_failure": "skip", "max_attempts": 1, "batch_across_partitions": True}
    result = run(handle, records, **kept, **named)
    assert result.outcomes == ["skipped", "done", "skipped", "done"]
    assert [type(each.errors[0]).__name__ for each in result.records if each.errors] == ["ValueError", "Undecodable"]


@pytest.mark.parametrize("error", [Skip("a test"), ValueError("no")], ids=["outcome", "failure"])
def test_a_call_that_fails_as_a_whole_says_nothing_of_rows_behind_one_that_cannot_be_decoded(
    error: Exception,
) -> None:
    values = [b'{"number": 0}', b'{"number": 1}', b"nonsense", b'{"number": 3}']
    named = {"value": "json", "value_schema": "tests.unit.testing.test_harness_columns:SCHEMA"}
    result = run(Calls(error), map(record, values), on_undecodable="skip", on_failure="skip", max_attempts=1, **named)
    assert result.outcomes == ["skipped", "skipped", "skipped", "done"]
    assert [type(each.errors[0]).__name__ for each in result.records if each.errors] == [
        *[type(error).__name__] * 2,
        "Undecodable",
    ]


@pytest.mark.parametrize("more", [{"max_age_ms": 1000}, {"filters": [{"on": "key", "exists": True}]}])
def test_across_partitions_nothing_is_filtered_by_offsets_that_are_alike(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="batch_across_partitions"):
        across(lambda batch: None, **more)


def test_across_partitions_nothing_is_sent() -> None:
    with pytest.raises(ConfigError, match="batch_across_partitions"):
        across(lambda batch: None, settings={"producing": {"delivery": "at_least_once"}})


def test_a_killed_worker_leaves_the_batch_in_hand_to_its_successor() -> None:
    result = HandlerTest(lambda batch: None, mode="arrow", batch_max_records=3).run(*[record(b"x")] * 9, kill_at=4)
    assert list(result.committed.values()) == [3]


@pytest.mark.parametrize(
    "setting",
    [
        {"value": "json"},
        {"value": "avro", "value_schema": "shop:SCHEMA"},
        {"value_schema": "shop:SCHEMA"},
        {"key": "text"},
        {"ordering": "key"},
        {"concurrency": 2},
    ],
)
def test_settings_that_go_by_single_records_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="arrow"):
        run(lambda batch: None, **setting)


def test_a_model_as_parameter_is_refused_with_what_would_be_right() -> None:
    def handle(order: Order) -> None: ...

    with pytest.raises(Exception, match="RecordBatch"):
        run(handle)
