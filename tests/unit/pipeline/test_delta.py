"""A Delta table that an export writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline.lake_files import LakeFile, partitioning
from kunicorn.pipeline.lake_tables import DeltaLake, NotCommitted
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import TopicPartition

FILES = [LakeFile("date=2026-01-01/a.parquet", 100, 7)]
ENDS = {TopicPartition("orders", 0): 7}


def lake(place: Path) -> DeltaLake:
    made = DeltaLake(Directory(str(place)), SCHEMA, partitioning("day"))
    made.open()
    return made


def test_a_round_is_committed_once_whoever_repeats_it(tmp_path: Path) -> None:
    for _ in range(2):
        lake(tmp_path).commit(1, FILES, ENDS)
    assert lake(tmp_path).rounds() == 1
    assert len(list((tmp_path / "_delta_log").glob("*1.json"))) == 1


def test_a_round_that_another_export_commits_in_the_same_moment_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake(tmp_path), lake(tmp_path)
    first.commit(1, FILES, ENDS)
    # It has looked for the round before the first one committed it.
    monkeypatch.setattr(DeltaLake, "rounds", lambda self: 0)
    with pytest.raises(NotCommitted, match=r"does not take round 1: .*then export again: it goes on where it ended"):
        second.commit(1, FILES, ENDS)
