"""What retention has deleted between the plan of a DataFrame and the turn of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.clients.access import Access
from kunicorn.clients.column_reader import ColumnReader
from kunicorn.clients.range_reader import RangeUnreadable
from kunicorn.fetch.queue import Fetched
from kunicorn.fetch.table import Fault, News
from kunicorn.handler.arrow import rows_of
from kunicorn.handler.rows import Rows
from kunicorn.ipc.messages import FailureKind
from kunicorn.pipeline.plan import Bounds, Everywhere
from kunicorn.pipeline.source import KunicornReader, RangePartition, SourceOptions
from kunicorn.positions import EARLIEST, LATEST, OffsetRange, TopicPartition
from tests.unit.clients.played_fetcher import reader_of
from tests.unit.settings.files import LEAST

CONFIG = f"{LEAST}[pipeline]\nfail_on_data_loss = {{strict}}\n"
TP = TopicPartition("orders", 0)


GONE = Fetched(News(TP, 1, 0, 0, 10, 0, Fault(FailureKind.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE")), None, 1)
"""What is fetched of a log whose records up to 12 are gone; then the rest from there on."""


def columns(access: Access, *, timestamp_types: bool = False, **reading: Any) -> ColumnReader:
    """In place of `Access.columns`."""
    rest = Rows(rows_of([Message(topic="orders", partition=0, offset=12, value=b"v")]))
    return reader_of(GONE, Fetched(News(TP, 2, 0, 1, 13, 0), rest, 1), first=12, **reading)


def read(tmp_path: Path, option: bool | None, setting: bool) -> list[int]:
    """Offsets that a task reads of 10 to 13."""
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(strict=str(setting).lower()))
    options = {} if option is None else {"failOnDataLoss": str(option).lower()}
    task = KunicornReader(
        SourceOptions.of({"config": str(path), **options}), Bounds(Everywhere(EARLIEST), Everywhere(LATEST))
    )
    return [at for batch in task.read(RangePartition(OffsetRange(*TP, 10, 13))) for at in batch["offset"].to_pylist()]


@pytest.mark.parametrize(("option", "setting"), [(False, True), (False, False), (None, False)])
def test_a_task_goes_on_behind_what_is_deleted_where_the_option_accepts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: bool | None, setting: bool
) -> None:
    monkeypatch.setattr(Access, "columns", columns)
    assert read(tmp_path, option, setting) == [12]


@pytest.mark.parametrize(("option", "setting"), [(True, False), (True, True), (None, True)])
def test_a_task_ends_at_what_is_deleted_unless_the_option_accepts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: bool | None, setting: bool
) -> None:
    monkeypatch.setattr(Access, "columns", columns)
    with pytest.raises(RangeUnreadable, match=r"fail_on_data_loss = false .a DataFrame's option failOnDataLoss"):
        read(tmp_path, option, setting)


def test_two_frames_in_a_process_go_each_by_its_own_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Access, "columns", columns)
    assert read(tmp_path, False, True) == [12]
    with pytest.raises(RangeUnreadable):
        read(tmp_path, True, True)
