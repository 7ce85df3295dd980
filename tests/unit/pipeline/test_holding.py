"""A group's offsets while a catch-up has them: how long the brokers keep them, and who has moved them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from kunicorn.errors import ConfigError, FatalGroupError
from kunicorn.group.protocol import Committed
from kunicorn.pipeline import catch_up
from kunicorn.pipeline.catch_up import Holding, TakeOver
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position, TopicPartition

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
    assert group.kept == [timedelta(days=90)] * 2


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
