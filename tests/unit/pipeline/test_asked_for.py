"""Which topics and partitions a job reads: by the settings, by name, and by pattern."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kunicorn.errors import ConfigError
from kunicorn.group.protocol import Committed
from kunicorn.handler.columns import SCHEMA
from kunicorn.handler.config import takes
from kunicorn.pipeline import backfill, catch_up, export
from kunicorn.pipeline.backfill import Request
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.lake.files import file_name
from kunicorn.pipeline.plan import bounds_of
from kunicorn.pipeline.range_job import RangeJob
from kunicorn.pipeline.reconcile import asked_for
from kunicorn.pipeline.source import SourceOptions
from kunicorn.pipeline.state import Runs, RunState
from kunicorn.pipeline.storage import Directory, Overtaken
from kunicorn.pipeline.tasks.executor_process import settings_file
from kunicorn.pipeline.tasks.limits import NO_LIMITS
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import Edges, OffsetRange, TopicPartition
from kunicorn.settings import Settings, load
from tests.unit.pipeline.played_log import PlayedLog
from tests.unit.settings.files import LEAST

ASSIGNED = """
[kafka]
bootstrap_servers = ["127.0.0.1:9092"]
[handler]
entrypoint = "shop.handlers:handle_order"
[assign]
partitions = ["orders", "payments:1"]
start = "earliest"
"""
NAMED_RANGE = OffsetRange("orders", 1, 0, 40)
NAMED = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 1)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(ASSIGNED)
    return path


@pytest.fixture
def settings(config: Path) -> Settings:
    return load(config, {})


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> PlayedLog:
    played = PlayedLog({"orders": 2, "payments": 3, "refunds": 1})
    for job in (backfill, export):
        monkeypatch.setattr(job, "cluster_session", played.session)
    return played


@pytest.mark.usefixtures("log")
def test_a_backfill_handles_the_partitions_that_assign_names_and_no_others(settings: Settings) -> None:
    assert [each.tp for each in backfill.planned(settings, Request()).ranges] == NAMED
    of_one = backfill.planned(settings, Request(topics=("payments",)))
    assert [each.tp for each in of_one.ranges] == [TopicPartition("payments", 1)]
    named = backfill.planned(settings, Request(offsets='{"payments": {"0": [5, 9]}}'))
    assert [each.tp for each in named.ranges] == [TopicPartition("payments", 0)], "offsets say everything themselves"


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request(topics=("orders", "refunds")), "--topic: refunds is none of group.topics"),
        (Request(topics=("^.*s$",)), "--topic: refunds is none of group.topics"),
        (Request(offsets='{"refunds": {"0": [5, 9]}}'), "--offsets: refunds is none of group.topics"),
    ],
)
@pytest.mark.usefixtures("log")
def test_a_backfill_of_a_topic_that_is_not_the_handlers_is_refused(
    settings: Settings, request_: Request, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        backfill.planned(settings, request_)


@pytest.mark.usefixtures("log")
def test_an_export_has_the_partitions_that_assign_names_and_no_others(settings: Settings, tmp_path: Path) -> None:
    dry_run = export.dry_run(settings, Directory(str(tmp_path / "lake")), Form())
    assert [each.tp for each in dry_run.ranges] == NAMED


def test_a_range_underway_that_is_not_asked_for_any_more_does_not_hold_up_an_export(
    settings: Settings, tmp_path: Path, log: PlayedLog
) -> None:
    refunds, payments = OffsetRange("refunds", 0, 50, 80), OffsetRange("payments", 0, 0, 30)
    state = RunState((), {refunds.tp: 50}, underway=(NAMED_RANGE, refunds, payments), rounds=3)
    target = Directory(str(tmp_path / "lake"))
    export._Known(target, Form(), SCHEMA).save(state)
    del log.there["refunds"]
    assert export.dry_run(settings, target, Form()).notes == [
        f"{tp} was underway, and is not asked for any more: its files are removed; asked for again, it is exported "
        f"from there"
        for tp in ("refunds-0 from 50 to 80", "payments-0 from 0 to 30")
    ]
    now = export._continued(settings, state)
    assert now.state.underway == (NAMED_RANGE,), "it goes on under its name"
    assert now.state.positions[refunds.tp] == 50
    assert now.dropped == {file_name(refunds, None), file_name(payments, None)}


def test_an_export_takes_the_files_of_one_that_has_begun_beside_it_for_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, names = Directory(str(tmp_path / "lake")), Directory.names

    def behind_the_first_look(self: Directory, suffix: str, *, below: bool = True) -> list[str]:
        if suffix == ".parquet" and not (tmp_path / "lake").exists():
            export._Known(target, Form(), SCHEMA).save(RunState((NAMED_RANGE,), rounds=7))
            target.write("date=2026-01-01/a.parquet", b"")
        return names(self, suffix, below=below)

    monkeypatch.setattr(Directory, "names", behind_the_first_look)
    assert export._Known(target, Form(), SCHEMA).read().rounds == 7
    target.delete("_kunicorn/manifest-00000001.json")
    with pytest.raises(ConfigError, match="has Parquet files of another's"):
        export._Known(target, Form(), SCHEMA).read()


def of_a_pattern(tmp_path: Path, *, strict: bool = False) -> Settings:
    path = tmp_path / "pattern.toml"
    own = LEAST.replace('topics = ["orders"]', 'topics = ["^.*s$"]')
    path.write_text(f"{own}\n[pipeline]\nfail_on_data_loss = {str(strict).lower()}\n")
    return load(path, {})


def exported(settings: Settings, before: RunState) -> RunState:
    """The state behind an export of all that there is. By its manifest: it may be a process later."""
    told = RunState.from_json(json.loads(json.dumps(export._continued(settings, before).state.as_json())))
    return replace(told, positions={**told.positions, **{each.tp: each.stop for each in told.left}})


REFUNDS = TopicPartition("refunds", 0)


def test_an_export_goes_on_where_it_was_with_a_topic_that_was_out_of_sight_for_once(
    tmp_path: Path, log: PlayedLog
) -> None:
    settings = of_a_pattern(tmp_path)
    state = exported(settings, RunState(()))
    del log.there["refunds"]
    now = export._continued(settings, state)
    assert [str(each) for each in now.lost] == [
        "refunds-0 does not exist any more: what its topic had from offset 100 on is gone"
    ]
    state = exported(of_a_pattern(tmp_path, strict=True), exported(settings, state))
    log.there["refunds"] = 1
    log.log = Edges(0, 130, 1)
    now = export._continued(settings, state)
    assert OffsetRange(*REFUNDS, 100, 130) in now.state.left, "what is in the lake already does not come again"
    assert now.state.gone == {}


@pytest.mark.parametrize("strict", [True, False])
def test_what_one_broker_does_not_know_yet_and_another_does_is_not_taken_for_deleted(
    tmp_path: Path, log: PlayedLog, strict: bool
) -> None:
    settings = of_a_pattern(tmp_path, strict=strict)
    at_work = RunState((OffsetRange(*REFUNDS, 0, 100),), topics={"refunds": "id of refunds"})
    log.unknown.add("refunds")
    assert backfill._in_logs(settings, at_work) == (at_work, [], [])
    state = exported(settings, RunState(()))
    log.log = Edges(0, 130, 1)
    log.unknown.add("refunds")
    now = export._continued(settings, state)
    assert (now.warnings(), now.state.gone) == ([], {})
    assert OffsetRange(*REFUNDS, 100, 130) in now.state.left


def test_a_catch_up_takes_over_what_one_broker_does_not_list_yet_of_the_groups_topics(
    tmp_path: Path, log: PlayedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {REFUNDS: Committed(0, 40)}
    log.group = cast(Any, SimpleNamespace(committed=None))
    monkeypatch.setattr(log, "ask", lambda _: stored)
    monkeypatch.setattr(log, "committed", lambda asked: {tp: stored.get(tp, Committed(0)) for tp in asked})
    monkeypatch.setattr(log, "epoch_ends", lambda _: {})
    monkeypatch.setattr(catch_up, "cluster_session", log.session)
    log.unknown.add("refunds")
    assert OffsetRange(*REFUNDS, 40, 100) in catch_up._standing(of_a_pattern(tmp_path)).ranges


def test_a_topic_that_was_gone_and_comes_back_as_another_one_is_exported_from_its_beginning(
    tmp_path: Path, log: PlayedLog
) -> None:
    settings = of_a_pattern(tmp_path)
    state = exported(settings, RunState(()))
    del log.there["refunds"]
    state = exported(settings, state)
    log.there["refunds"], log.ids["refunds"] = 1, "another"
    now = export._continued(of_a_pattern(tmp_path, strict=True), state)
    assert now.state.left == [OffsetRange(*REFUNDS, 0, 100)], "that the former one is gone was accepted"
    assert now.state.gone == {}


def test_a_topic_that_this_user_may_not_see_any_more_is_told_as_that(tmp_path: Path, log: PlayedLog) -> None:
    settings = of_a_pattern(tmp_path)
    state = exported(settings, RunState(()))
    del log.there["refunds"]
    log.denied.add("refunds")
    with pytest.raises(ConfigError, match="topic 'refunds': TOPIC_AUTHORIZATION_FAILED"):
        export._continued(of_a_pattern(tmp_path, strict=True), state)
    now = export._continued(settings, state)
    (told,) = now.warnings()
    assert told.startswith("refunds-0 is asked for by a pattern, and the brokers do not show it to this user")
    log.denied.clear()
    log.there["refunds"], log.log = 1, Edges(0, 130, 1)
    assert OffsetRange(*REFUNDS, 100, 130) in export._continued(settings, now.state).state.left


def test_a_topic_that_one_export_does_not_ask_for_is_still_found_to_be_truncated_by_the_next(
    tmp_path: Path, log: PlayedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, payments = TopicPartition("orders", 0), TopicPartition("payments", 0)
    log.there, log.log = {"orders": 1, "payments": 1}, Edges(0, 150, 3)

    def continued(before: RunState, topics: str) -> RunState:
        (path := tmp_path / "config.toml").write_text(LEAST.replace('["orders"]', topics))
        return export._continued(load(path, {}), before).state

    state = continued(RunState(()), '["orders", "payments"]')
    state = replace(state, positions={orders: 150, payments: 150})
    state = continued(state, '["payments"]')
    log.log = Edges(0, 180, 5)
    monkeypatch.setattr(log, "ends_of_epochs", lambda epochs: {tp: 100 for tp, epoch in epochs.items() if epoch < 5})
    with pytest.raises(ConfigError, match="records are lost: orders-0 ends at 100 now, before 150"):
        continued(state, '["orders"]')


def test_a_backfill_of_which_everything_is_deleted_says_so(config: Path, log: PlayedLog, tmp_path: Path) -> None:
    log.log = Edges(500, 600)
    config.write_text(f'{ASSIGNED}[pipeline]\nfail_on_data_loss = false\ndirectory = "{tmp_path}"\n')
    settings = load(config, {})
    said: list[str] = []
    request = Request(offsets='{"orders": {"0": [100, 200]}}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfill, "check_installed", lambda: None)
        patch.setattr(backfill, "check_handlers", lambda _: None)
        finished = backfill.backfill(settings, settings_file(config, settings), request, "local", None, said.append)
    assert "nothing to handle" in " ".join(finished.lines())
    assert said == [
        "warning: records that were to be read are deleted already: orders-0 from 100 to 200, it begins at 500 now; "
        "they are passed over"
    ]


def test_the_plan_of_a_catch_up_is_refused_where_there_is_no_group(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="there is no group to catch up: these settings assign partitions by name"):
        catch_up.dry_run(settings)


@pytest.mark.usefixtures("log")
def test_a_backfill_handles_records_of_every_age_and_says_so_where_the_live_service_does_not(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = ASSIGNED.replace("[assign]", "max_age_ms = 3_600_000\n[assign]")
    config.write_text(f'{limited}[pipeline]\ndirectory = "{tmp_path / "runs"}"\n')
    settings, said, handled = load(config, {}), list[str](), list[bool]()

    def played(job: RangeJob, state: RunState, *_: object) -> RunState:
        task = job.task(False, NO_LIMITS)
        assert isinstance(task, HandleRanges)
        handled.extend([job.file.any_age, task.file.any_age])
        return state

    for name in ("check_installed", "check_handlers"):
        monkeypatch.setattr(backfill, name, lambda *_: None)
    monkeypatch.setattr(backfill, "at_once", lambda _: 1)
    monkeypatch.setattr(RangeJob, "__call__", played)
    backfill.backfill(settings, settings_file(config, settings), Request(), "local", "old", said.append)
    told = "handler.max_age_ms does not hold in a backfill"
    assert any(line.startswith(f"warning: {told}") for line in said)
    assert handled == [True, True]
    for planned in (backfill.dry_run(settings, Request()), backfill.dry_run_of_resumed(settings, "old")):
        assert any(note.startswith(told) for note in planned.notes)


def test_of_two_backfills_that_begin_a_run_at_once_the_second_ends_as_one_that_was_overtaken(
    config: Path, log: PlayedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(f'{ASSIGNED}[pipeline]\ndirectory = "{tmp_path / "runs"}"\n')
    settings, runs = load(config, {}), Runs(str(tmp_path / "runs"))

    def begun_meanwhile(topics: Iterable[str]) -> dict[str, str]:
        if "nightly" not in runs:
            runs.start("backfill", settings.handler.entrypoint, "[]", RunState(()), "nightly")
        return PlayedLog.topic_ids(log, topics)

    monkeypatch.setattr(log, "topic_ids", begun_meanwhile)
    monkeypatch.setattr(backfill, "check_installed", lambda: None)
    monkeypatch.setattr(backfill, "check_handlers", lambda _: None)
    file = settings_file(config, settings)
    with pytest.raises(Overtaken, match="run nightly was begun by another process meanwhile"):
        backfill.begin_or_resume(settings, file, Request(), "local", "nightly", print)


@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_that_is_handled_and_was_created_anew_does_not_hold_up_a_resumed_run(
    tmp_path: Path, log: PlayedLog, strict: bool
) -> None:
    settings, whole = of_a_pattern(tmp_path, strict=strict), OffsetRange("orders", 0, 0, 100)
    ids = {"orders": "id of orders", "refunds": "the former"}
    state = RunState((OffsetRange(*REFUNDS, 0, 100), whole), {REFUNDS: 100}, topics=ids)
    assert backfill._in_logs(settings, state) == (state, [], [])
    at_work = replace(state, positions={})
    if strict:
        with pytest.raises(ConfigError, match="refunds was created anew since the run began"):
            backfill._in_logs(settings, at_work)
    else:
        assert backfill._in_logs(settings, at_work)[0].left == [whole]


def test_a_partition_that_assign_names_and_that_does_not_exist_is_named(settings: Settings, log: PlayedLog) -> None:
    log.there["payments"] = 1
    with pytest.raises(
        ConfigError, match=r"assign.partitions: payments:1 do not exist: correct the numbers; payments has 0-0"
    ):
        backfill.planned(settings, Request())


def test_the_source_reads_what_assign_names_unless_its_options_name_topics(config: Path, log: PlayedLog) -> None:
    assert SourceOptions.of({"config": str(config)}).partitions(log) == NAMED
    every = [TopicPartition("payments", number) for number in range(3)]
    assert SourceOptions.of({"config": str(config), "subscribe": "payments"}).partitions(log) == every


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"subscribe": "payments", "subscribePattern": "pay.*"}, "both say what is read; leave one out"),
        ({"subscribe": " , "}, "subscribe = ' , ' names no topic; name some"),
    ],
)
def test_options_that_contradict_one_another_or_name_no_topic_are_refused(
    config: Path, options: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        SourceOptions.of({"config": str(config), **options})


def test_a_reconciliation_misses_no_partition_that_assign_does_not_name(settings: Settings) -> None:
    logs = {TopicPartition("payments", number): Edges(0, 10) for number in range(3)}
    assert list(asked_for(settings, logs)) == [TopicPartition("payments", 1)]


@pytest.mark.parametrize(
    ("option", "value"),
    [("endingOffsets", "latest"), ("endingTimestamp", "550"), ("endingOffsetsByTimestamp", '{"orders": {"0": 5}}')],
)
def test_a_stream_of_the_source_has_no_end(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: a stream has no end; leave it out"):
        bounds_of({option: value}, batch=False)


def test_a_pattern_of_the_source_matches_whole_names_as_sparks_own_does(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LEAST)

    def read(pattern: str) -> list[str]:
        topics = SourceOptions.of({"config": str(path), "subscribePattern": pattern}).topics
        return [topic for topic in ("orders", "orders-dlq", "old-orders", "eu.orders") if takes(topics, topic)]

    assert read("orders") == read("^orders$") == ["orders"]
    assert read("orders.*") == ["orders", "orders-dlq"]
    assert read("orders|.*-orders") == ["orders", "old-orders"]
    with pytest.raises(ConfigError, match="is no regular expression"):
        read("orders(")
