"""How far a broker's files may grow until its disk is full."""

from __future__ import annotations

from pathlib import Path

from tests.soak.faults import largest_log


def test_the_largest_log_is_one_that_grows_and_not_one_of_a_topic_that_was_deleted(tmp_path: Path) -> None:
    for name, size in (("orders-0", 20), ("orders-1", 30), ("orders-0.4f2a-delete", 500)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").write_bytes(bytes(size))
    assert largest_log(tmp_path) == 30
