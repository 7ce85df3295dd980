"""How old the oldest unhandled record is: from the worker where it tells, from the log where it does not."""

from __future__ import annotations

from kunicorn.positions import NO_OFFSET, NO_TIMESTAMP
from kunicorn.supervisor.partitions.partition import Age

NOW = 1_800_000_000_000
SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000


def test_the_record_in_hand_tells_its_own_time() -> None:
    age = Age()
    age.taken(NOW - HOUR)
    assert age.oldest_ms(7, in_hand=True) == NOW - HOUR
    age.found(7, NOW - DAY)
    assert age.oldest_ms(7, in_hand=True) == NOW - HOUR


def test_the_log_dates_a_position_that_nobody_has_in_hand_and_no_other() -> None:
    age = Age()
    age.taken(NOW - DAY)
    age.found(7, NOW - HOUR)
    assert age.oldest_ms(7, in_hand=False) == NOW - HOUR
    assert age.oldest_ms(8, in_hand=False) == NOW - DAY
    assert age.known_at(7)
    assert not age.known_at(8)


def test_what_comes_after_a_quiet_day_is_not_a_day_old() -> None:
    """The record handled last is from yesterday, the one that waits was written since all was handled."""
    age = Age()
    age.taken(NOW - DAY)
    age.end_seen(position=7, end=7, at_ms=NOW - 10 * SECOND)
    age.end_seen(position=7, end=8, at_ms=NOW)
    assert age.oldest_ms(7, in_hand=False) == NOW - 10 * SECOND


def test_a_partition_that_is_set_back_has_older_records_to_handle_again() -> None:
    age = Age()
    age.end_seen(position=7, end=7, at_ms=NOW)
    age.end_seen(position=2, end=7, at_ms=NOW)
    age.found(2, NOW - DAY)
    assert age.oldest_ms(2, in_hand=False) == NOW - DAY


def test_nothing_known_is_no_age() -> None:
    age = Age()
    age.taken(NO_TIMESTAMP)
    assert age.oldest_ms(NO_OFFSET, in_hand=False) == NO_TIMESTAMP
