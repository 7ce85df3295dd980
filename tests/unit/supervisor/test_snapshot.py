"""What `/status`, the page and the metrics say of commits, of real partitions and a real committer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from kunicorn.group.protocol import CommitAnswer
from kunicorn.ipc import clock
from kunicorn.observe.metrics import Gauges, Metrics
from kunicorn.observe.status import Status
from kunicorn.positions import Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.snapshot import Snapshot
from tests.fakes.complete_settings import settings_of
from tests.fakes.played_workers import PlayedPool
from tests.fakes.stage import Stage, tps

KEEPER, OTHER = "shop.books:Book", "shop.mail:send"


def handled_by(*entrypoints: str) -> Settings:
    """Settings of a handler each for the topics orders, orders1, ..."""
    handlers = [
        {"entrypoint": entrypoint, "topics": [f"orders{number or ''}"]} for number, entrypoint in enumerate(entrypoints)
    ]
    return settings_of(handlers=handlers)


class ShownPool(PlayedPool):
    """Whose places no worker has, as far as is shown of them."""

    def processes(self) -> list[Any]:
        return []

    def cannot_start(self, *_: object) -> bool:
        return False


class Member:
    """A member whose broker takes every commit; its one worker handles orders-0 from offset 100 on."""

    def __init__(self, settings: Settings, keepers: frozenset[str] = frozenset(), *, workers_commit: bool = False):
        self.stage = Stage(pool=ShownPool({}))
        in_force = SettingsInForce(settings, lambda: settings)
        in_force.code_in_use(keepers)
        self.stage.in_force.keeps_offsets = in_force.keeps_offsets
        table = self.stage.assignment.table
        table.workers_commit = workers_commit
        self.changed, self.may_commit = Notifier(), True
        self.commits = OffsetCommitter(cast(Any, self), table.consumed, table.committed, Metrics())
        source: Any = mock.Mock(commits=self.commits)
        source.group.return_value = source.assign.return_value = None
        workforce: Any = SimpleNamespace(
            templates=SimpleNamespace(state="ready"),
            reloader=SimpleNamespace(status=lambda _: None),
            rates=SimpleNamespace(status=tuple),
        )
        self.snapshot = Snapshot(in_force, source, self.stage.assignment, workforce, {})

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        return CommitAnswer(dict.fromkeys(offsets, 0))

    def begin(self) -> None:
        """Commit the start that the policy chose, and handle from there."""
        (tp,) = tps(0)
        asyncio.run(self.commits.commit_starts({tp: Position(100)}, lambda _: True, clock.now() + 10))
        self.stage.give(0)
        self.stage.assignment.table.committed(tp, Position(100))

    def handle(self, upto: int) -> None:
        self.stage.workers[0].consume(self.stage.start_of(0), upto)

    def status(self) -> Status:
        reached: Any = SimpleNamespace(unreached=None, refusal=None, outage=None)
        return self.snapshot.take(reached, False, 0.0)


def series(status: Status) -> Mapping[str, float]:
    gauges = Gauges(status, 100)
    families = (*gauges.collect(), *gauges.partition_families())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_what_a_handler_keeps_itself_is_not_shown_as_behind_in_its_commits() -> None:
    member = Member(handled_by(KEEPER), frozenset({KEEPER}))
    member.begin()
    member.handle(5000)
    status = member.status()
    (partition,) = status.partitions
    assert (partition.position, partition.committed, status.commit) == (5000, None, None)
    shown = series(status)
    assert shown["kafka_consumer_position"] == 5000
    hidden = {"kafka_consumer_committed_offset", "kunicorn_last_commit_seconds", "kunicorn_uncommitted_partitions"}
    assert not hidden & set(shown)


@pytest.mark.parametrize(("entrypoints", "committed"), [((OTHER, KEEPER), 100), ((KEEPER, OTHER), None)])
def test_what_others_commit_is_shown_beside_a_handler_that_keeps_its_offsets(
    entrypoints: tuple[str, str], committed: int | None
) -> None:
    member = Member(handled_by(*entrypoints), frozenset({KEEPER}))
    member.begin()
    member.handle(150)
    status = member.status()
    assert status.partitions[0].committed == committed
    assert status.commit is not None
    assert status.commit.last_result == "ok"


def test_what_workers_commit_is_shown_as_committed_at_every_look_and_not_at_the_next_turn_of_a_timer() -> None:
    member = Member(handled_by(OTHER), workers_commit=True)
    member.begin()
    for upto in (150, 200):
        member.handle(upto)
        (partition,) = member.status().partitions
        assert (partition.position, partition.committed) == (upto, upto)
    assert member.status().commit is None
    assert "kunicorn_last_commit_seconds" not in series(member.status())


@pytest.mark.parametrize("keepers", [frozenset[str](), frozenset({"another:one"})])
def test_where_the_supervisor_commits_its_last_commit_and_what_it_committed_are_shown(keepers: frozenset[str]) -> None:
    member = Member(handled_by(OTHER), keepers)
    member.begin()
    member.handle(150)
    shown = series(member.status())
    assert shown["kafka_consumer_committed_offset"] == 100
    assert shown["kunicorn_last_commit_seconds"] >= 0
    assert shown["kunicorn_uncommitted_partitions"] == 1
