"""Who did worse: what the differential bench's exit code goes by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conformance.side_by_side import Row, medians, merged, read, section, worse, write

OURS = Row("kunicorn, cooperative-sticky", "classic", "a fault", pause=2.0, rebalances=1, moved=0, repeated=0)
THEIRS = replace(OURS, client="confluent-kafka, cooperative-sticky, its defaults")


def test_medians_are_taken_of_all_runs_of_a_client_and_fault() -> None:
    runs = [replace(OURS, pause=pause) for pause in (9.0, 1.0, 2.0)]
    assert medians([*runs, THEIRS]) == [OURS, THEIRS]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"pause": 3.5}, "paused for 3.5"), ({"rebalances": 2}, "rebalanced 2"), ({"repeated": 300}, "repeated 300")],
)
def test_a_longer_pause_a_rebalance_more_or_more_repeated_is_worse(change: dict[str, Any], said: str) -> None:
    (complaint,) = worse([replace(OURS, **change), THEIRS])
    assert said in complaint


def test_what_chance_explains_is_not_worse_and_neither_is_another_protocols_result() -> None:
    assert worse([replace(OURS, pause=2.9, repeated=150), THEIRS]) == []
    assert worse([replace(OURS, rebalances=5), replace(THEIRS, protocol="consumer")]) == []


def test_of_a_fault_that_is_done_again_alone_only_the_new_figures_count() -> None:
    other, gone = replace(OURS, fault="another"), replace(OURS, fault="not done any more")
    again = [replace(OURS, pause=9.0)]
    assert merged([[OURS, other, gone], [OURS, other]], [again], ["another", "a fault"]) == [[other, *again], [other]]


def test_a_fault_that_a_member_may_not_survive_is_shown_and_not_judged(tmp_path: Path) -> None:
    rows = [replace(OURS, rebalances=5, ends=True), replace(THEIRS, ends=True)]
    assert worse(rows) == []
    write([rows], tmp_path / "runs.json")
    assert "Not judged: a fault." in section(tmp_path / "runs.json")


def test_the_page_says_where_ours_was_worse(tmp_path: Path) -> None:
    kept = tmp_path / "runs.json"
    assert section(kept) == ""
    write([[OURS, THEIRS]], kept)
    assert read(kept) == [[OURS, THEIRS]]
    assert "Ours is never worse" in section(kept)
    write([[replace(OURS, rebalances=2), THEIRS]], kept)
    assert "Ours was worse here:\n\n- a fault: kunicorn, cooperative-sticky rebalanced 2" in section(kept)
