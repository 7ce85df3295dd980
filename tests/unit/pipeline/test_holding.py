"""A group's offsets while a catch-up has them: how long the brokers keep them, and who has moved them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kunicorn.errors import ConfigError, FatalGroupError
from kunicorn.group.protocol import Committed
from kunicorn.pipeline import catch_up
from kunicorn.pipeline.catch_up import Holding, TakeOver, named_in, write_left
from kunicorn.pipeline.report import FinishedRun
from kunicorn.pipeline.state import Runs, RunState, Tile, write_tiles
from kunicorn.pipeline.storage import StoreFailed
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.positions import NO_EPOCH, NO_OFFSET, OffsetRange, Position, TopicPartition
from kunicorn.settings import PipelineSettings
from tests.fakes.complete_settings import settings_of

ORDERS = TopicPartition("orders", 0)
REFUNDS = TopicPartition("refunds", 3)


class PlayedGroup:
    """A group without members, and its coordinator."""

    def __init__(self, *, takes_retention: bool) -> None:
        self.stored: dict[TopicPartition, Committed] = {ORDERS: Committed(0, 7), REFUNDS: Committed(0, 4)}
        self.ids = {"orders": "1", "refunds": "2"}
        """Of the topics that there are."""
        self.kept: list[timedelta | None] = []
        self.group: Any = self
        self.group_id = "orders"
        self._takes_retention = takes_retention

    @contextmanager
    def session(self, *_: Any, **__: Any) -> Iterator[PlayedGroup]:
        """In place of `cluster_session`."""
        yield self

    def ask(self, question: Any) -> Any:
        return asyncio.run(question())

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        return {tp: self.stored[tp] for tp in partitions}

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def existing(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        return [tp for tp in partitions if tp.topic in self.ids]

    def delete(self, tp: TopicPartition) -> None:
        """Its topic, and the offset with it, as brokers do."""
        del self.ids[tp.topic]
        self.stored[tp] = Committed(0)

    async def takes_retention(self) -> bool:
        return self._takes_retention

    async def commit(
        self, offsets: Mapping[TopicPartition, Position], metadata: str, retention: timedelta | None = None
    ) -> Mapping[TopicPartition, int]:
        self.kept.append(retention)
        self.stored |= {tp: Committed(0, at.offset, at.leader_epoch, at.done or metadata) for tp, at in offsets.items()}
        return dict.fromkeys(offsets, 0)


def held(
    monkeypatch: pytest.MonkeyPatch, *, takes_retention: bool, uncommitted: Collection[TopicPartition] = ()
) -> tuple[PlayedGroup, Holding]:
    """The group, and what a run of the name one has of it. `uncommitted`: partitions without an offset."""
    group = PlayedGroup(takes_retention=takes_retention)
    group.stored |= dict.fromkeys(uncommitted, Committed(0))
    monkeypatch.setattr(catch_up, "cluster_session", group.session)
    settings: Any = None
    found = TakeOver(
        {ORDERS: Position(7), REFUNDS: Position(4)},
        [],
        dict(group.ids),
        dict(group.stored),
        {ORDERS: 3, REFUNDS: 3},
        [],
    )
    return group, Holding(settings, "one", found)


def test_each_commit_asks_the_brokers_to_keep_it_however_long_the_group_has_been_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, holding = held(monkeypatch, takes_retention=True)
    holding.take()
    holding.move({ORDERS: 50})
    assert group.stored[ORDERS].offset == 50
    assert group.kept == [timedelta(days=36_500)] * 2


def test_brokers_that_cannot_be_asked_get_commits_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    group, holding = held(monkeypatch, takes_retention=False)
    holding.take()
    holding.move({ORDERS: 50})
    assert group.stored[ORDERS].offset == 50
    assert group.kept == [None] * 2


def test_offsets_that_the_brokers_have_forgotten_are_told_with_the_place_to_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, holding = held(monkeypatch, takes_retention=False)
    holding.take()
    holding.move({ORDERS: 50})
    group.stored[ORDERS] = group.stored[REFUNDS] = Committed(0)
    with pytest.raises(FatalGroupError, match=r"2\. The brokers have forgotten it, .*offsets\.retention") as refused:
        holding.move({ORDERS: 60})
    assert str(refused.value).splitlines()[1:] == ["orders,0,50", "refunds,3,4"], "what --from-file takes"
    assert group.stored[ORDERS].offset == NO_OFFSET, "what is found changed is left to a person"


def test_offsets_that_somebody_else_has_committed_are_told_with_who(monkeypatch: pytest.MonkeyPatch) -> None:
    group, holding = held(monkeypatch, takes_retention=True)
    holding.take()
    group.stored[ORDERS] = Committed(0, 9, NO_EPOCH, "spark:two")
    with pytest.raises(FatalGroupError, match=r"orders-0 was committed by somebody else meanwhile .9, spark:two"):
        holding.move({ORDERS: 60})


def test_a_topic_that_is_deleted_with_its_offsets_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    group, holding = held(monkeypatch, takes_retention=True)
    holding.take()
    group.delete(REFUNDS)
    holding.move({ORDERS: 50})
    holding.move({ORDERS: 60, REFUNDS: 8})
    assert (group.stored[ORDERS].offset, group.stored[REFUNDS].offset) == (60, NO_OFFSET)


@pytest.mark.parametrize("taken", [False, True], ids=["before it is taken over", "since then"])
def test_a_topic_that_was_created_anew_gets_no_offset_of_the_former_one(
    monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    group, holding = held(monkeypatch, takes_retention=True)
    if taken:
        holding.take()
    group.delete(REFUNDS)
    group.ids["refunds"] = "another"
    with pytest.raises(ConfigError, match="refunds was created anew since the run began"):
        holding.move({REFUNDS: 9}) if taken else holding.take()
    assert group.stored[REFUNDS].offset == NO_OFFSET


def test_a_topic_that_is_done_and_was_created_anew_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    group, holding = held(monkeypatch, takes_retention=True)
    holding.take()
    holding.move({REFUNDS: 9})
    group.delete(REFUNDS)
    group.ids["refunds"] = "another"
    holding.move({ORDERS: 50, REFUNDS: 9})
    assert (group.stored[ORDERS].offset, group.stored[REFUNDS].offset) == (50, NO_OFFSET)


def test_a_topic_without_an_offset_that_was_created_anew_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    group, holding = held(monkeypatch, takes_retention=True, uncommitted={REFUNDS})
    group.ids["refunds"] = "another"
    with pytest.raises(ConfigError, match="refunds was created anew since the run began"):
        holding.take()


class Counted:
    """What a catch-up does when a range has ended, without Spark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
        self.did: list[str] = []
        self.state = RunState((OffsetRange(*ORDERS, 7, 20),), topics={"orders": "1"})
        group, _ = held(monkeypatch, takes_retention=True)
        settings: Any = SimpleNamespace(group=SimpleNamespace(id="shop"), pipeline=PipelineSettings())
        file: Any = SimpleNamespace(path="config.toml")
        monkeypatch.setattr(catch_up, "RangeJob", lambda **hooks: lambda *_: self._count(hooks))
        monkeypatch.setattr(catch_up, "told_of_differences", lambda *_: None)
        monkeypatch.setattr(catch_up, "at_once", lambda _: 1)
        monkeypatch.setattr(Holding, "move", lambda *_: self.did.append("committed"))
        starts = {ORDERS: Position(7), REFUNDS: Position(4)}
        found = TakeOver(starts, self.state.ranges, group.ids, dict(group.stored), {}, [])
        new = runs.start("catch-up", "x:y", "", self.state, "one", "shop")
        self.run: Callable[[], object] = partial(catch_up._run, settings, file, runs, new, found, "local", print)

    def _count(self, hooks: Any) -> RunState:
        summary = Summary(*ORDERS, 7, 20, 20, 13, 0, 0, None, "", 1.0)
        state = self.state.begin(self.state.ranges).end([summary], 1.0)
        hooks["ended"](state, [summary])
        return state


def test_what_is_committed_has_its_rows_in_the_manifest_whenever_the_driver_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(str(tmp_path))
    counted = Counted(monkeypatch, runs)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Holding, "move", killed)
    with pytest.raises(KeyboardInterrupt):
        counted.run()
    assert Runs(str(tmp_path)).read("one").state.tiles == (Tile(*ORDERS, 7, 20, 13),)


def test_a_store_that_is_away_holds_up_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    counted = Counted(monkeypatch, runs)

    def away(*_: Any) -> None:
        raise StoreFailed("s3://runs cannot be used")

    monkeypatch.setattr(Runs, "save", away)
    with pytest.raises(StoreFailed):
        counted.run()
    assert counted.did == ["committed"]


def killed_runs(runs: Runs) -> Mapping[TopicPartition, Committed]:
    """Catch-ups of the groups shop and billing were killed with rows that no file has yet; what is committed since."""
    whole = OffsetRange(*ORDERS, 0, 20)
    ended = RunState((whole,), rounds=3, tiles=(Tile(*ORDERS, 10, 20, 9),))
    for run, group in (("killed", "shop"), ("anothers", "billing")):
        new = runs.start("catch-up", "x:y", "", RunState((whole,)), run, group)
        runs.save(replace(new, state=ended))
    write_tiles(runs.outcomes("killed"), [Tile(*ORDERS, 0, 10, 10)], 2)
    return {
        ORDERS: Committed(0, 20, NO_EPOCH, "p:3 spark:killed"),
        REFUNDS: Committed(0, 4, NO_EPOCH, "spark:anothers"),
        TopicPartition("orders", 1): Committed(0, 4, NO_EPOCH, "spark:of-another-directory"),
        TopicPartition("orders", 2): Committed(0),
    }


def rows_of(runs: Runs, run: str) -> list[tuple[int, int, int]]:
    """Offset, end and records of each row of its outcome table."""
    place = runs.outcomes(run)
    batches = (batch for name in place.names(".parquet") for batch in place.batches(name))
    return [(row["offset"], row["until"], row["records"]) for batch in batches for row in batch.to_pylist()]


def test_the_next_catch_up_writes_the_rows_that_a_killed_one_has_left(tmp_path: Path) -> None:
    runs, said = Runs(str(tmp_path)), list[str]()
    committed = killed_runs(runs)
    for _ in range(2):
        write_left(Runs(str(tmp_path)), named_in(committed), "shop", said.append)
        assert rows_of(runs, "anothers") == []
        assert rows_of(runs, "killed") == [(0, 10, 10), (10, 20, 9)]
    assert said == []
    (tmp_path / "killed" / "manifest-00000002.json").write_text("{")
    write_left(Runs(str(tmp_path)), named_in(committed), "shop", said.append)
    assert len(said) == 1
    assert said[0].startswith("warning: the rows that run killed has not written stay in its manifest: ")


@pytest.fixture
def caught_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., FinishedRun]:
    """`caught_up(committed, *ranges, run=…)`: a catch-up of the group shop, up to where it would begin a range."""
    for name in ("check_installed", "check_handlers", "wait_until_empty", "told_of_differences"):
        monkeypatch.setattr(catch_up, name, lambda *_: None)
    monkeypatch.setattr(catch_up, "at_once", lambda _: 1)
    monkeypatch.setattr(Holding, "take", lambda _: None)
    settings, file = settings_of(group={"id": "shop"}, pipeline={"directory": str(tmp_path)}), SettingsFile("", "")

    def begun(hooks: Any, state: RunState) -> RunState:
        hooks["ready"]()
        hooks["begun"](state)
        return state

    def catch(
        committed: Mapping[TopicPartition, Committed], *ranges: OffsetRange, run: str | None = None
    ) -> FinishedRun:
        with monkeypatch.context() as now:
            now.setattr(catch_up, "_standing", lambda _: TakeOver({}, ranges, {}, committed, {}, []))
            now.setattr(catch_up, "RangeJob", lambda **hooks: lambda state, *_: begun(hooks, state))
            return catch_up.catch_up(settings, file, "local", run, 0.0, print)

    return catch


def test_a_catch_up_of_a_group_that_is_at_its_end_writes_the_rows_of_one_killed_behind_its_last_commit(
    caught_up: Callable[..., FinishedRun], tmp_path: Path
) -> None:
    runs = Runs(str(tmp_path))
    finished = caught_up(killed_runs(runs))
    assert (finished.code, finished.run) == (0, None)
    assert rows_of(runs, "killed") == [(0, 10, 10), (10, 20, 9)]


LEFT = OffsetRange(*ORDERS, 20, 30)
SECONDS = {ORDERS: Committed(0, 20, NO_EPOCH, "spark:second")}
"""What is committed once the second run has taken the group over."""


def test_rows_that_a_killed_run_has_left_are_written_though_the_next_one_is_killed_when_it_has_taken_the_group_over(
    caught_up: Callable[..., FinishedRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(str(tmp_path))
    committed = killed_runs(runs)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as moment:
        moment.setattr(catch_up, "write_left", killed)
        with pytest.raises(KeyboardInterrupt):
            caught_up(committed, LEFT, run="second")
    assert rows_of(runs, "killed") == [(0, 10, 10)]
    caught_up(SECONDS, LEFT, run="third")
    assert rows_of(runs, "killed") == [(0, 10, 10), (10, 20, 9)]
    assert Runs(str(tmp_path)).read("third").left == (), "nothing is looked for twice"


def test_rows_that_could_not_be_written_are_written_by_the_catch_up_behind_the_next_one(
    caught_up: Callable[..., FinishedRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(str(tmp_path))
    committed = killed_runs(runs)

    def away(*_: Any) -> None:
        raise StoreFailed("s3://runs cannot be used")

    with monkeypatch.context() as moment:
        moment.setattr(catch_up, "write_tiles", away)
        caught_up(committed, LEFT, run="second")
    caught_up(SECONDS)
    assert rows_of(runs, "killed") == [(0, 10, 10), (10, 20, 9)]
