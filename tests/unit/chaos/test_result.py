"""What a schedule came to, in a line."""

from __future__ import annotations

import pytest

from kunicorn.commands.demo.judge import RecordAt, Report
from tests.chaos.run import Result
from tests.chaos.schedule import schedule

BY_PARTITION = Report(produced=9, handled=9, out_of_order=(RecordAt("t", 0, 1), RecordAt("t", 0, 3)))
"""Several in hand: what began behind a later record of its partition need not be out of its order."""


@pytest.mark.parametrize(
    ("crowd", "said"),
    [
        ("one", "; 1 out of order by partition"),
        ("partition-tasks", "; 1 out of order by partition"),
        ("key-threads", "; 1 out of order by key"),
        ("none-threads", ""),
    ],
)
def test_order_is_counted_among_what_was_to_be_in_order(crowd: str, said: str) -> None:
    result = Result(schedule(0, crowd=crowd), BY_PARTITION, (), ["partition 0, key ff: offset 1 began after 3"])
    assert str(result) == f"9 produced, 9 handled, 0 repeated{said}"
