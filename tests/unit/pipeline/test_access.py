"""What a task's client is made with."""

from __future__ import annotations

import pytest

from kunicorn.clients.access import fetch_tuning

MB = 1024 * 1024


@pytest.mark.parametrize(("answer", "of_one"), [(50 * MB, 4 * MB), (MB // 2, MB // 2)])
def test_one_partition_has_most_of_an_answer_to_itself_as_far_as_memory_allows(answer: int, of_one: int) -> None:
    assert fetch_tuning({"fetch.max.bytes": answer})["max.partition.fetch.bytes"] == of_one
