"""Tables in plain text."""

from __future__ import annotations

import pytest

from kunicorn.text import duration, printable, table


def test_numbers_stand_to_the_right_and_what_is_not_known_is_a_dash() -> None:
    rows = [("orders-0", 1234, None), ("o", 7, "x")]
    assert list(table(("partition", "lag", "why"), rows)) == [
        "partition    lag  why",
        "orders-0   1,234  -",
        "o              7  x",
    ]


def test_a_table_without_rows_has_no_head() -> None:
    assert list(table(("a", "b"), [])) == []


def test_what_others_wrote_does_not_drive_the_terminal() -> None:
    assert printable("a\x1b[31mb\n") == "a\\x1b[31mb\\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, None), (0.04, "0.0s"), (9.94, "9.9s"), (59.4, "59s"), (60, "1m00s"), (3725, "1h02m"), (90_000, "1d01h")],
)
def test_durations_are_short(seconds: float | None, shown: str | None) -> None:
    assert duration(seconds) == shown
