"""`kunicorn pipeline` on a real Kafka and a real Spark, in one JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from kunicorn.clients.session import cluster_session
from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.handler.retry import End, RetryPolicy
from kunicorn.ipc import bitmap
from kunicorn.pipeline import transform
from kunicorn.pipeline.group_offsets import commit
from kunicorn.pipeline.spark import open_session
from kunicorn.positions import TopicPartition
from kunicorn.settings import load
from tests.system.members import Members
from tests.system.pipeline.desk import MASTER, TIME, Desk, lake_rows, send, tiles
from tests.system.producing import committed_offsets, consumed, end_offsets, headers_of, held, produce

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("one_context")]
"""The first job of a file starts a JVM, which takes its time on a busy machine."""

ROUND = {"max_offsets_per_trigger": 400}


def test_a_backfill_handles_each_record_once_in_order_and_what_fails_ends_as_live(desk_of: Callable[..., Desk]) -> None:
    rules = {"max_attempts": 2, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1, "on_failure": "dead_letter"}
    desk = desk_of(
        2, {"handler": {**rules, "handler_timeout_ms": 60_000}, "pipeline": {**ROUND, "max_offsets_per_trigger": 20}}
    )
    letters = desk.kafka.create_topic(f"{desk.topic}.dead-letters")
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * 5 + ["poison", "once", "skip"] + ["x"] * 5, 1: ["x"] * 30})
    said = desk.said("backfill", "--master", MASTER, "--run", "first")
    assert "handled       41 records in " in said
    whole = held(end_offsets(desk.kafka.bootstrap, desk.topic, 2))
    rows = desk.outcomes("first")
    assert tiles(rows, whole), rows
    assert [(r["offset"], r["status"], r["attempts"]) for r in rows if r["status"] != "done"] == [
        (5, "dead_letter", 2), (7, "skip", 1),
    ]  # fmt: skip
    report = desk.report(2)
    assert [place.offset for place in report.lost] == [5, 7], report
    assert (report.handled, report.handled_twice, report.out_of_order, report.overlaps) == (41, (), (), ())
    (letter,) = consumed(desk.kafka.bootstrap, letters, 1)
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"key", b"poison", TIME)
    told = dict(headers_of(letter))
    assert (told["trace"], told["kunicorn-offset"], told["kunicorn-error-type"]) == (b"1", b"5", b"ValueError")
    assert told["kunicorn-group"] == desk.topic.encode()
    nothing = {TopicPartition(desk.topic, number): -1001 for number in range(2)}
    assert committed_offsets(desk.kafka.bootstrap, desk.topic, desk.topic, 2) == nothing, "the live group is untouched"
    finished = json.loads(desk.said("backfill", "--resume", "first", "--json"))
    assert (finished["records"], finished["dead_letters"], finished["offsets_left"]) == (41, 1, 0)
    assert finished["notes"] == ["run first is finished: nothing is left"]
    assert "estimated time: " in (planned := desk.said("backfill", "--dry-run"))
    assert "2 partitions, 43 offsets" in planned
    assert json.loads(desk.said("backfill", "--dry-run", "--json"))["offsets"] == 43


SEVERAL = {"ordering": "none", "concurrency": 4}


@pytest.mark.parametrize("way", [{}, SEVERAL], ids=["one in hand", "several in hand"])
def test_letters_of_a_backfill_go_to_the_topics_that_those_of_the_live_service_go_to(
    desk_of: Callable[..., Desk], way: dict[str, object]
) -> None:
    desk = desk_of(1, {"workers": {"max_crashes": 1}})
    names = ("values", "said", "deadly", "refunds", "dead-letters")
    values, said, deadly, refunds, rest = (desk.kafka.create_topic(f"{desk.topic}.{name}", 1) for name in names)
    rules = {"max_attempts": 1, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1, "on_failure": "dead_letter"}
    rule = {"exceptions": ["builtins.ValueError"], "max_attempts": 2, "dead_letter_topic": values}
    desk.configure(
        {
            "handler": {**rules, **way, "failures": [rule], "dead_letter_topic": refunds},
            "dead_letters": {"topics": {"handler": said, "poison": deadly}},
        }
    )
    # Of several in hand it takes more deaths to find the one than Spark's local mode allows.
    last = "x" if way else "crash"
    send(desk.kafka.bootstrap, desk.topic, {0: ["x", "poison", "letter", "once", last]})
    said_of_it = desk.said("backfill", "--master", MASTER, "--run", "by-topic")
    assert f"handled       {2 if way else 1} records" in said_of_it
    for topic, offset, error in (
        (values, b"1", b"ValueError"),
        (said, b"2", b"kunicorn.DeadLetter"),
        (refunds, b"3", b"ConnectionError"),
        *(() if way else ((deadly, b"4", b"WorkerDied"),)),
    ):
        (letter,) = consumed(desk.kafka.bootstrap, topic, 1)
        told = dict(headers_of(letter))
        assert (told["kunicorn-offset"], told["kunicorn-error-type"]) == (offset, error)
    assert consumed(desk.kafka.bootstrap, rest, 0) == []


AROUND_CALLS = pytest.mark.parametrize(
    "way",
    [pytest.param({}, id="one in hand"), pytest.param(SEVERAL, marks=pytest.mark.long, id="several in hand")],
)
"""What is put around a handler's call is put there in one place, whichever way of calling asks for it."""


@AROUND_CALLS
def test_middlewares_are_around_the_calls_of_a_backfill_too(
    desk_of: Callable[..., Desk], way: dict[str, object]
) -> None:
    desk = desk_of(1, {"handler": {**way, "middlewares": ["tests.system.pipeline.handlers:passes_over"]}})
    send(desk.kafka.bootstrap, desk.topic, {0: ["x", "old", "x"]})
    assert "handled       2 records" in desk.said("backfill", "--master", MASTER, "--run", "within")
    assert [(r["offset"], r["error_message"]) for r in desk.outcomes("within") if r["status"] == "skip"] == [(1, "old")]
    assert [place.offset for place in desk.report(1).lost] == [1]


@AROUND_CALLS
def test_a_backfill_counts_what_filters_pass_by(desk_of: Callable[..., Desk], way: dict[str, object]) -> None:
    desk = desk_of(2, {"handler": {**way, "filters": [{"on": "header:trace", "one_of": ["2"]}]}})
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * 3, 1: ["x"] * 4})
    finished = json.loads(desk.said("backfill", "--master", MASTER, "--run", "filtered", "--json"))
    assert (finished["records"], finished["filtered"], finished["offsets_left"]) == (7, 7, 0)
    assert desk.report(2).handled == 0


@pytest.mark.long
def test_a_partition_that_halts_holds_up_no_other_and_goes_on_where_it_halted(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(2)
    send(desk.kafka.bootstrap, desk.topic, {0: ["x", "halt", "x"], 1: ["x"] * 3})
    said = desk.said("backfill", "--master", MASTER, "--run", "stuck", code=6)
    assert f"halted        {desk.topic}-0 at 1: {desk.topic}-0@1: kunicorn.Halt: a person has to look" in said
    assert "--resume stuck" in said
    assert desk.manifest("stuck")["positions"] == {desk.topic: {"0": 1, "1": 3}}
    rows = [row for row in desk.outcomes("stuck") if row["partition"] == 0]
    assert [(row["offset"], row["until"], row["status"]) for row in rows] == [(0, 1, "done"), (1, 1, "halt")]
    desk.configure({"handler": {"options": {"forgive": True}}})
    assert "handled       6 records" in desk.said("backfill", "--master", MASTER, "--resume", "stuck")
    report = desk.report(2)
    assert report.holds, report


def test_one_command_begins_a_run_goes_on_with_it_and_leaves_a_finished_one_alone(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1)
    send(desk.kafka.bootstrap, desk.topic, {0: ["x", "halt", "x"]})
    command = ("backfill", "--master", MASTER, "--from", "2h", "--begin-or-resume", "nightly")
    assert f"halted        {desk.topic}-0 at 1" in desk.said(*command, code=6)
    desk.configure({"handler": {"options": {"forgive": True}}})
    assert "handled       3 records" in desk.said(*command)
    assert "run nightly is finished: nothing is left" in desk.said(*command)
    report = desk.report(1)
    assert report.holds, report
    assert not report.repeated


def test_a_backfill_reads_no_faster_than_it_may_and_says_whose_limit_does_not_hold(
    desk_of: Callable[..., Desk],
) -> None:
    breaker = {"exceptions": ["builtins.ConnectionError"]}
    desk = desk_of(2, {"handler": {"rate_limit": {"per_second": 1}, "circuit_breaker": breaker, "delay_ms": 60_000}})
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * 60, 1: ["x"] * 60})
    command = ("backfill", "--master", MASTER, "--json")
    warned = desk.told_by(*command)[1]
    for setting in ("pipeline.max_records_per_second limits a job", "handler.circuit_breaker", "handler.delay_ms"):
        assert setting in warned
    desk.configure({"pipeline": {"max_records_per_second": 40}})
    told, warned = desk.told_by(*command)
    assert "max_records_per_second" not in warned
    # Less a record of each of the two tasks: the last one needs not be waited for.
    assert (told["records"], told["seconds"] >= 118 / 40) == (120, True)


@pytest.mark.long
def test_a_record_that_kills_its_process_becomes_a_dead_letter_and_the_others_go_on(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1, {"handler": {"on_failure": "dead_letter"}, "workers": {"max_crashes": 2}})
    letters = desk.kafka.create_topic(f"{desk.topic}.dead-letters")
    send(desk.kafka.bootstrap, desk.topic, {0: ["x", "x", "crash", "x"]})
    said = desk.said("backfill", "--master", MASTER, "--run", "deadly")
    assert "handled       3 records" in said
    assert [(r["offset"], r["status"], r["attempts"]) for r in desk.outcomes("deadly")] == [
        (0, "done", None), (2, "dead_letter", 2), (3, "done", None),
    ]  # fmt: skip
    (letter,) = consumed(desk.kafka.bootstrap, letters, 1)
    told = dict(headers_of(letter))
    assert (letter.value(), told["kunicorn-error-type"], told["kunicorn-attempts"]) == (b"crash", b"WorkerDied", b"2")
    assert list(desk.runs.rglob("*.cells")) == []


def test_a_catch_up_leaves_out_what_the_live_service_has_done_ahead_of_its_offset(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1)
    bootstrap, tp = desk.kafka.bootstrap, TopicPartition(desk.topic, 0)
    send(bootstrap, desk.topic, {0: ["x"] * 100})
    told = bitmap.with_partitions(1, bitmap.written(10, range(11, 91)))
    with cluster_session(load(desk.config, {})) as session:
        commit(session, {tp: 10}, told)
    assert "handled       10 records" in desk.said("catch-up", "--master", MASTER, "--run", "over")
    assert sum(row["records"] for row in desk.outcomes("over")) == 10
    with cluster_session(load(desk.config, {})) as session:
        found = session.committed([tp])[tp]
    assert (found.offset, bitmap.read(100, found.metadata), bitmap.partitions(found.metadata)) == (100, frozenset(), 1)


def test_the_relay_loses_nothing_and_repeats_nothing(
    desk_of: Callable[..., Desk], members_of: Callable[..., Members], audit: Path
) -> None:
    """A live service stops with a backlog, a catch-up brings the group to its end, the live service goes on."""
    desk = desk_of(2, {"pipeline": ROUND})
    bootstrap, topic = desk.kafka.bootstrap, desk.topic
    produce(bootstrap, topic, 2_000)
    members = members_of(bootstrap, topic, env={"KUNICORN_HANDLER_MS": "200", "KUNICORN_AUDIT_DIR": str(audit)})
    first = members.start()
    first.wait(lambda: any(worker["handled"] > 20 for worker in first.workers()), "some of it to be handled")
    assert first.stop() == 0
    assert "takes group" in (said := desk.said("catch-up", "--master", MASTER, "--run", "over"))
    assert "is handed back" in said
    ends = end_offsets(bootstrap, topic, 2)
    assert committed_offsets(bootstrap, topic, topic, 2) == ends
    produce(bootstrap, topic, 200)
    second = members.start(env={"KUNICORN_HANDLER_MS": "0"})
    second.wait(lambda: second.lag() == 0, "the group to be at its end")
    with pytest.raises(Exception, match=r"has 1 member\(s\).*Stop the live service first"):
        desk.said("catch-up", "--master", MASTER)
    assert second.stop() == 0
    report = desk.report(2)
    assert report.holds, report
    assert report.repeated == ()
    assert set(report.handled_by) == {first.name, "spark", second.name}
    assert "at its end already" in desk.said("catch-up", "--master", MASTER)


@pytest.mark.long
def test_a_stream_handles_what_comes_and_mirrors_its_offsets_to_a_group(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(2, {"pipeline": ROUND})
    bootstrap, topic = desk.kafka.bootstrap, desk.topic
    produce(bootstrap, topic, 500)
    said = desk.said("stream", "--master", MASTER, "--available-now")
    assert said.count("micro-batch") == 2, "no more than max_offsets_per_trigger at once"
    produce(bootstrap, topic, 100)
    said = desk.said("stream", "--master", MASTER, "--available-now")
    assert "handled       100 records" in said, "it goes on from its checkpoint"
    ends = end_offsets(bootstrap, topic, 2)
    assert tiles(desk.outcomes("stream"), held(ends))
    assert committed_offsets(bootstrap, f"{topic}.stream", topic, 2) == ends
    report = desk.report(2)
    assert (report.holds, report.repeated) == (True, ()), report


def test_an_export_equals_the_topic_and_the_next_one_adds_what_has_come(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1)
    bootstrap, topic = desk.kafka.bootstrap, desk.topic
    send(bootstrap, topic, {0: [f"value {number}" for number in range(50)]})
    lake = desk.directory / "lake"
    assert "50 records" in desk.said("export", str(lake), "--master", MASTER)
    assert "has everything already" in desk.said("export", str(lake), "--master", MASTER)
    send(bootstrap, topic, {0: ["one more"]})
    desk.said("export", str(lake), "--master", MASTER)
    files = sorted(lake.glob("date=*/[!_]*.parquet"), key=lambda file: file.name)
    assert [file.stem.split("-")[-2:] for file in files] == [[f"{0:020}", f"{50:020}"], [f"{50:020}", f"{51:020}"]]
    assert [
        (offset, key, value, time.timestamp(), headers[0]["value"])
        for offset, key, value, time, headers in lake_rows(lake, "offset", "key", "value", "timestamp", "headers")
    ] == [
        (each.offset(), each.key(), each.value(), each.timestamp()[1] / 1000, b"1")
        for each in consumed(bootstrap, topic, 51)
    ]


@pytest.mark.long
def test_a_delta_table_equals_the_topic_and_a_round_that_is_committed_is_not_repeated(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(2)
    values = [f"value {number}" for number in range(50)]
    send(desk.kafka.bootstrap, desk.topic, {0: values, 1: values[:7]})
    lake = desk.directory / "table"
    command = ("export", str(lake), "--to", "delta", "--value", "text", "--master", MASTER)
    assert "57 records" in desk.said(*command)
    manifest = max((lake / "_kunicorn").glob("manifest-*.json"))
    after = json.loads(manifest.read_text())
    # As if it had been killed before it wrote that the round is through.
    ranges = [[desk.topic, 0, 0, 50], [desk.topic, 1, 0, 7]]
    manifest.write_text(json.dumps({**after, "positions": {}, "rounds": 0, "underway": ranges}))
    assert "has everything already" in desk.said(*command)
    rows = DeltaTable(str(lake)).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert rows["offset"].to_pylist() == [*range(50), *range(7)]
    assert rows["value"].to_pylist() == [*values, *values[:7]]
    with pytest.raises(
        ConfigError, match="was begun with delta of text values and bytes keys, by day, and this is delta of bytes"
    ):
        desk.said("export", str(lake), "--to", "delta")


@pytest.mark.long
def test_the_source_gives_records_as_columns_and_knows_sparks_options(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(2)
    send(desk.kafka.bootstrap, desk.topic, {0: ["a", "b", "c"], 1: ["d"]})
    spark = open_session(load(desk.config, {}), MASTER, "columns")
    try:
        source = spark.read.format("kunicorn").option("config", str(desk.config))
        start = json.dumps({desk.topic: {"0": 1, "1": -2}})
        rows = source.option("startingOffsets", start).load().orderBy("partition", "offset").collect()
        assert [(r.partition, r.offset, bytes(r.value), r.timestampType) for r in rows] == [
            (0, 1, b"b", 0), (0, 2, b"c", 0), (1, 0, b"d", 0),
        ]  # fmt: skip
        assert (bytes(rows[0].key), rows[0].headers[0].key, bytes(rows[0].headers[0].value)) == (b"key", "trace", b"1")
        for name, value, why in (
            ("startingOffsets", json.dumps({desk.topic: {"0": 1}}), f"leave out {desk.topic}-1"),
            ("kafka.sasl.password", "geheim", "security and all else about the cluster is in the settings' file"),
        ):
            with pytest.raises(Exception, match=why) as refused:
                spark.read.format("kunicorn").option("config", str(desk.config)).option(name, value).load().collect()
            assert "geheim" not in str(refused.value)
    finally:
        spark.stop()


def test_a_window_of_time_is_not_cut_by_one_record_whose_clock_is_ahead(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1, {"pipeline": {"max_offsets_per_trigger": 30}})
    times = [TIME - 60_000 - each for each in range(10)]
    # Ahead; and between older ones and younger ones than are asked for, as many that are.
    times += [TIME + 1_800_000, *(TIME + 60_000 * (each % 3 - 1) for each in range(60)), TIME - 1]
    sender = Producer({"bootstrap.servers": desk.kafka.bootstrap})
    for time_ms in times:
        sender.produce(desk.topic, "x", timestamp=time_ms)
    assert sender.flush(60) == 0
    since, until = TIME - 50_000, TIME + 50_000
    window = ("--from", iso(since), "--to", iso(until))
    wanted = {offset for offset, time_ms in enumerate(times) if since <= time_ms < until}
    assert len(wanted) == 21
    assert "to the log's end" in desk.said("backfill", *window, "--dry-run")
    assert "handled       21 records in" in desk.said("backfill", *window, "--run", "window", "--master", MASTER)
    assert {place.offset for place in desk.report(1).lost} == set(range(len(times))) - wanted
    assert tiles(desk.outcomes("window"), {TopicPartition(desk.topic, 0): range(10, len(times))})
    planned = json.loads(desk.said("backfill", *window, "--slack", "10m", "--dry-run", "--json"))
    assert planned["offsets"] == 0, "who says that no clock is ten minutes ahead is believed"
    assert json.loads(desk.said("backfill", *window, "--slack", "1h", "--dry-run", "--json"))["offsets"] == 62


def iso(time_ms: int) -> str:
    """As --from and --to take it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def test_a_frame_whose_rows_spark_has_moved_about_is_handled_once_each(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(2)
    values = ["poison" if number % 50 == 7 else "x" for number in range(300)]
    send(desk.kafka.bootstrap, desk.topic, {0: values, 1: values})
    spark = open_session(load(desk.config, {}), MASTER, "moved")
    try:
        source = spark.read.format("kunicorn").option("config", str(desk.config)).load()
        policy = RetryPolicy(1, 1, 1, None, End.DEAD_LETTER)
        handler = transform("tests.system.pipeline.handlers:obedient", policy)
        rows = source.orderBy("value").repartition(5).transform(handler).collect()
    finally:
        spark.stop()
    assert sorted((row.partition, row.offset, row.until, row.records, row.status) for row in rows) == [
        (partition, offset, offset + 1, 1, "dead_letter" if value == "poison" else "done")
        for partition in range(2)
        for offset, value in enumerate(values)
    ]
    report = desk.report(2)
    assert (report.handled, report.handled_twice) == (588, ()), report


def test_bad_input_is_told_in_one_message_before_anything_starts(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1)
    produce(desk.kafka.bootstrap, desk.topic, 10)
    cases: dict[tuple[str, ...], str] = {
        ("--offsets", '{"nowhere": {"0": [0, 5]}}'): r"topic 'nowhere': UNKNOWN_TOPIC_OR_PARTITION .*correct --offsets",
        ("--offsets", f'{{"{desk.topic}": {{"7": [0, 5]}}}}'): f"there is no partition {desk.topic}-7",
        ("--offsets", f'{{"{desk.topic}": {{"0": [5, 2]}}}}'): "ends before it begins",
        ("--offsets", f'{{"{desk.topic}": {{"0": [0, 50]}}}}'): "beyond the log's end",
        ("--offsets", "{"): "--offsets is not JSON",
        ("--from", "yesterday"): "--from 'yesterday' is neither a time with its zone",
        ("--from", "1h", "--to", "2h"): "--from is not before --to",
        ("--resume", "never"): "there is no run 'never'",
        ("--begin-or-resume", "a", "--run", "b"): "leave out --run",
        ("--begin-or-resume", "a", "--resume", "b"): "leave out the rest",
    }
    for arguments, why in cases.items():
        with pytest.raises(Exception, match=why):
            desk.said("backfill", *arguments)
    desk.configure({"handler": {"entrypoint": "tests.system.pipeline.handlers:missing"}})
    with pytest.raises(Exception, match="has no 'missing'"):
        desk.said("backfill")


@pytest.mark.long
def test_a_handler_that_executors_cannot_import_ends_the_job_before_it_has_a_record(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1, {"handler": {"entrypoint": "tests.system.pipeline.drivers_only:handle"}})
    produce(desk.kafka.bootstrap, desk.topic, 10)
    why = r"on \S+, where Spark runs a task: .* raised ModuleNotFoundError: No module named 'pricing'"
    with pytest.raises(HandlerLoadError, match=why):
        desk.said("backfill", "--master", MASTER, "--run", "nowhere")
    assert desk.manifest("nowhere")["underway"] == []
    assert desk.outcomes("nowhere") == []


def test_offsets_that_are_gone_are_named_or_passed_over_as_asked(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1)
    produce(desk.kafka.bootstrap, desk.topic, 10)
    desk.kafka.delete_records(desk.topic, {0: 4})
    wanted = ("--offsets", f'{{"{desk.topic}": {{"0": [1, 10]}}}}')
    with pytest.raises(Exception, match=f"{desk.topic}-0 from 1 to 4, it begins at 4 now"):
        desk.said("backfill", *wanted)
    desk.configure({"pipeline": {"fail_on_data_loss": False}})
    assert "6 offsets" in desk.said("backfill", *wanted, "--dry-run")


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
    desk.kafka.delete_records(desk.topic, {0: 20})
    assert json.loads(desk.said(*command, "--json", code=6))["covered"] == 81, "from where the log begins now"
    with pytest.raises(ConfigError, match="has no Parquet files"):
        desk.said("reconcile", str(desk.runs / "nothing"))
