"""Records as tests give them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kunicorn import Record
from kunicorn.testing import HandlerTest, record
from kunicorn.testing.memory import message_of, placed


def test_text_and_json_are_written_as_bytes() -> None:
    (made,) = placed([record(json={"total": 3}, key="k", headers={"a": "b", "n": None})], "orders")
    seen = Record.of(message_of(made))
    assert (seen.value, seen.key, seen.headers) == (b'{"total":3}', b"k", [("a", b"b"), ("n", None)])
    assert (seen.topic, seen.partition, seen.offset, seen.timestamp) == ("orders", 0, 0, None)


def test_json_null_is_a_value_and_no_value_is_a_tombstone() -> None:
    assert record(json=None).value == b"null"
    assert record(key="k").value is None


def test_offsets_follow_one_another_in_each_partition_with_gaps_where_they_are_given() -> None:
    made = placed([record("a"), record("b", partition=1), record("c", offset=9), record("d")], "orders")
    assert [str(each) for each in made] == ["orders-0@0", "orders-1@0", "orders-0@9", "orders-0@10"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "a", "json": 1}, "not both"),
        ({"partition": -1}, "counted from 0"),
        ({"partition": 2**31}, "are the last"),
        ({"offset": 2**63 - 1}, "are the last"),
        ({"timestamp": 2**63}, "in 64 bits"),
        ({"timestamp": 1.5}, "timestamp 1.5: it is a whole number"),
        ({"partition": "3"}, "partition '3': it is a whole number"),
        ({"topic": "all orders"}, "topic .all orders.: not a legal name"),
        ({"topic": b"orders"}, "topic b'orders': it is a text"),
        ({"value": {"a": 1}}, "say json="),
        ({"headers": {b"kind": "paid"}}, "header b'kind': its name is a text"),
        ({"headers": [("kind",)]}, "a dict, or a list of pairs"),
        ({"headers": "kind"}, "headers 'kind': they are a dict"),
        ({"headers": {"kind": 3}}, "3 is neither text nor bytes"),
    ],
)
def test_what_is_no_record_is_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        record(**arguments)


def test_the_last_record_that_a_log_can_hold_is_taken() -> None:
    run = HandlerTest(lambda record: None).run(record("a", partition=2**31 - 1, offset=2**63 - 2))
    assert run.committed == {("test", 2**31 - 1): 2**63 - 1}


def test_records_that_no_log_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="offsets only grow"):
        placed([record("a", offset=5), record("b", offset=5)], "orders")
    with pytest.raises(ValueError, match="topic="):
        placed([record("a")], None)
    with pytest.raises(ValueError, match="'all orders': not a legal name"):
        placed([replace(record("a"), topic="all orders")], "orders")
    with pytest.raises(TypeError, match="no record"):
        placed([b"a"], "orders")  # type: ignore[list-item]
