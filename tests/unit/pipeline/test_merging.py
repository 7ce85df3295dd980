"""A Delta table with a row for each key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline.lake.columns import Asked, Form, form_asked
from kunicorn.pipeline.lake.files import CHANGES, LakeFile, changes
from kunicorn.pipeline.lake.tables import MergedDelta, newest_of_keys
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import TopicPartition

ENDS = {TopicPartition("orders", 0): 7}
TEXTS = SCHEMA.set(SCHEMA.get_field_index("value"), pa.field("value", pa.string()))


def rows(*records: tuple[int, str, str | None], partition: int = 0, topic: str = "orders") -> pa.Table:
    """Records of one partition: offset, key, value; the time follows the offset."""
    found = [
        {
            "topic": topic, "partition": partition, "offset": offset, "key": key.encode(), "value": value,
            "timestamp": offset * 1000, "timestampType": 0,
        }
        for offset, key, value in records
    ]  # fmt: skip
    return pa.Table.from_pylist(found, schema=TEXTS)


class Table:
    """A table, and rounds that are merged into it."""

    def __init__(self, place: Path) -> None:
        self._place, self._number = place, 0

    def merge(self, *files: pa.Table, again: bool = False) -> dict[tuple[str, str], str]:
        """One round; the table by topic and key after that. `again`: the one that was merged last."""
        self._number += not again
        (self._place / CHANGES).mkdir(parents=True, exist_ok=True)
        written = []
        for number, table in enumerate(files):
            path = f"{CHANGES}/{self._number}-{number}.parquet"
            pq.write_table(table, self._place / path)
            written.append(LakeFile(path, 1, len(table)))
        lake = MergedDelta(Directory(str(self._place)), TEXTS)
        lake.open()
        lake.commit(self._number, written, ENDS)
        lake.clear()
        assert [*(self._place / CHANGES).iterdir()] == []
        return self.rows()

    def rows(self) -> dict[tuple[str, str], str]:
        found = deltalake.DeltaTable(str(self._place)).to_pyarrow_table().to_pylist()
        by_key = {(row["topic"], row["key"].decode()): row["value"] for row in found}
        assert len(by_key) == len(found), "one row for each key"
        return by_key


def test_the_newest_record_of_a_key_is_its_row_and_a_tombstone_deletes_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert table.merge(rows((0, "a", "1"), (1, "b", "1"), (2, "a", "2"))) == {
        ("orders", "a"): "2",
        ("orders", "b"): "1",
    }
    assert table.merge(rows((3, "a", None), (4, "c", "1"), (5, "x", None))) == {
        ("orders", "b"): "1", ("orders", "c"): "1",
    }  # fmt: skip
    assert table.merge(rows((6, "a", "3"), (7, "b", None), (8, "b", "4"))) == {
        ("orders", "a"): "3", ("orders", "b"): "4", ("orders", "c"): "1",
    }  # fmt: skip
    assert table.merge(rows((0, "c", "5"), topic="refunds")) == {
        ("orders", "a"): "3", ("orders", "b"): "4", ("orders", "c"): "1", ("refunds", "c"): "5",
    }, "another topic's key is another"  # fmt: skip


def test_a_round_that_is_merged_is_not_merged_again_whatever_came_behind_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.merge(rows((0, "a", "1")))
    table.merge(rows((1, "a", None)))
    assert table.merge(rows((1, "a", "wrong")), again=True) == {}
    assert table.merge() == {}, "a round without a record"


def test_a_topic_that_was_created_anew_goes_on_from_lower_offsets(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.merge(rows((100, "a", "old")))
    assert table.merge(rows((0, "a", "new"))) == {("orders", "a"): "new"}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["1", "2", None])), max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_rounds_come_to_what_the_records_come_to_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, str | None]]]
) -> None:
    table, wanted, offset = Table(tmp_path_factory.mktemp("table")), dict[tuple[str, str], str](), 0
    for some in rounds:
        records = []
        for key, value in some:
            records.append((offset, key, value))
            offset += 1
            wanted.pop(("orders", key), None)
            if value is not None:
                wanted["orders", key] = value
        # In two files, the later one first: the order of files is nobody's.
        assert table.merge(rows(*records[3:]), rows(*records[:3])) == wanted


def test_of_a_key_in_two_partitions_the_latest_time_counts() -> None:
    both = pa.concat_tables([rows((9, "a", "late"), partition=0), rows((3, "a", "early"), (2, "b", "1"), partition=1)])
    found: list[dict[str, Any]] = newest_of_keys(both).sort_by("key").to_pylist()
    assert [(row["key"], row["value"]) for row in found] == [(b"a", "late"), (b"b", "1")]


def test_of_a_key_in_two_topics_of_one_round_each_has_its_newest() -> None:
    both = pa.concat_tables([rows((9, "a", "1")), rows((3, "a", "2"), topic="refunds")])
    found: list[dict[str, Any]] = newest_of_keys(both).to_pylist()
    assert sorted((row["topic"], row["value"]) for row in found) == [("orders", "1"), ("refunds", "2")]


def test_a_record_without_a_key_is_named() -> None:
    table = rows((4, "a", "1"), (5, "b", "1"))
    table = table.set_column(table.schema.get_field_index("key"), "key", pa.array([b"a", None], pa.binary()))
    with pytest.raises(ConfigError, match="orders-0@5 has no key"):
        list(changes().split(table.to_batches()[0]))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked("delta", merge_by="id"), "rows are merged by key"),
        (Asked("parquet", merge_by="key"), "say --to delta"),
        (Asked("delta", merge_by="key", partition_by="hour"), "leave out --partition-by"),
    ],
)
def test_what_cannot_be_merged_is_refused(asked: Asked, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        form_asked(None, asked)  # type: ignore[arg-type]
    assert Form.of(Form(True, merge_by="key").as_json()).merge_by == "key"
    assert "merge_by" not in Form(True).as_json(), "a lake that was begun before goes on"
