"""Lag of single partitions and of topics."""

from __future__ import annotations

import pytest

from kunicorn.commands.group_lag import Standing
from kunicorn.commands.lag import TopicLag, by_topic
from kunicorn.positions import TopicPartition


def standing(
    partition: int, committed: int | None, first: int | None, end: int | None, topic: str = "orders"
) -> Standing:
    return Standing(TopicPartition(topic, partition), committed, first, end)


@pytest.mark.parametrize(
    ("each", "lag"),
    [
        (standing(0, 40, 0, 100), 60),
        (standing(0, 40, 70, 100), 30),  # What retention has deleted waits for nobody.
        (standing(0, 120, 0, 100), 0),
        (standing(0, None, 0, 100), None),
        (standing(0, 40, 0, None), None),
    ],
)
def test_lag_counts_what_the_log_still_holds(each: Standing, lag: int | None) -> None:
    assert each.lag == lag


def test_topics_are_summed_and_the_worst_comes_first() -> None:
    rows = [
        standing(0, 0, 0, 5, "refunds"),
        standing(0, 40, 0, 100),
        standing(1, 99, 0, 100),
        standing(2, None, 0, 7),
    ]
    assert by_topic(rows, {rows[1].tp: 12.0, rows[2].tp: 3.0}) == [
        TopicLag("orders", 3, 61, 60, 12.0, 1),
        TopicLag("refunds", 1, 5, 5, None, 0),
    ]
