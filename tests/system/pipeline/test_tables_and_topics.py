"""A table against its topic on a real Kafka, by a job on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kunicorn.errors import ConfigError
from tests.system.group.outside_the_log import delete_records
from tests.system.pipeline.desk import MASTER, Desk, send


def test_a_runs_outcomes_are_whole_and_what_is_taken_out_doubled_or_beyond_is_named(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(3)
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * 30 + ["skip"] + ["x"] * 30, 1: ["x"] * 40})
    desk.said("backfill", "--master", MASTER, "--run", "all")
    table = desk.runs / "all" / "outcomes"
    command = ("reconcile", str(table), "--master", MASTER)
    assert desk.said(*command).splitlines()[:3] == [
        "covered   101 offsets", "missing   0 offsets in 0 ranges", "repeated  0 offsets in 0 ranges",
    ]  # fmt: skip
    more = {"topic": [desk.topic, desk.topic, "gone"], "partition": [1, 0, 0], "offset": [10, 100, 5]}
    pq.write_table(pa.table(more), table / "more.parquet")
    send(desk.kafka.bootstrap, desk.topic, {1: ["x"] * 2, 2: ["x"]})
    told = json.loads(desk.said(*command, "--json", code=6))

    def named(kind: str) -> list[tuple[object, ...]]:
        return [tuple(each.values()) for each in told[kind]]

    assert named("missing") == [(desk.topic, 1, 40, 42), (desk.topic, 2, 0, 1)]
    assert named("repeated") == [(desk.topic, 1, 10, 11)]
    assert sorted(named("beyond")) == sorted([(desk.topic, 0, 100, 101), ("gone", 0, 5, 6)])
    assert told["covered"] == 101
    delete_records(desk.kafka, desk.topic, 20)
    assert json.loads(desk.said(*command, "--json", code=6))["covered"] == 81, "from where the log begins now"
    with pytest.raises(ConfigError, match="has no Parquet files"):
        desk.said("reconcile", str(desk.runs / "nothing"))
