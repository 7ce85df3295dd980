"""docs/commands.md names everything that `/status` answers: programs rely on it."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from kunicorn.observe import status
from tests.markdown import ROOT, cells

PAGE = (ROOT / "docs" / "commands.md").read_text()
SECTION = PAGE[PAGE.index("## What /status answers") : PAGE.index("## Exit codes")]
WORKER, PARTITION = SECTION[SECTION.index("| of a worker |") :].split("| of a partition |")
SHOWN: dict[Any, str] = {
    status.Status: SECTION,
    status.GroupStatus: SECTION,
    status.RebalanceStatus: SECTION,
    status.AssignStatus: SECTION,
    status.CommitStatus: SECTION,
    status.ReloadStatus: SECTION,
    status.RateStatus: SECTION,
    status.WorkerStatus: WORKER,
    status.PartitionStatus: PARTITION,
}
"""Where the names of each object stand."""


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: str(kind.__name__))
def test_the_page_has_every_name_of_what_the_service_says_of_itself(kind: Any) -> None:
    assert [each.name for each in fields(kind) if f"`{each.name}`" not in SHOWN[kind]] == []


def test_the_page_has_every_object() -> None:
    assert SHOWN.keys() == {each for name, each in vars(status).items() if name.endswith("Status")}


def test_the_page_has_no_name_of_a_worker_or_partition_that_is_not_told() -> None:
    for kind in (status.WorkerStatus, status.PartitionStatus):
        first = [cells(line)[0] for line in SHOWN[kind].splitlines() if line.startswith("| `")]
        assert set(re.findall(r"`(\w+)`", " ".join(first))) == {each.name for each in fields(kind)}
