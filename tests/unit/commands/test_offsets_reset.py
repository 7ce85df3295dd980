"""What becomes of a reset that the brokers refuse in part: they take or refuse the offset of each partition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kunicorn.commands import offsets
from kunicorn.commands.group_lag import GroupStanding, Standing
from kunicorn.commands.offsets import NotAllReset, Options, reset
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.kafka.metadata import Metadata
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes.complete_settings import settings_of

TPS = [TopicPartition("orders", number) for number in range(2)]
SETTINGS = settings_of(group={"id": "shop"})


class PlayedSession:
    """The brokers' answer to a commit."""

    settings = SETTINGS
    group_id = "shop"
    cluster = SimpleNamespace(metadata=Metadata())

    def __init__(self, answers: dict[TopicPartition, int]) -> None:
        self._answers = answers

    def ask(self, _: Callable[[], Any]) -> dict[TopicPartition, int]:
        return self._answers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, int]:
    """Their answers, by partition."""
    answers = dict.fromkeys(TPS, 0)
    group = GroupStanding("shop", "Empty", (), tuple(Standing(tp, 50, 10, 100) for tp in TPS))
    monkeypatch.setattr(offsets, "cluster_session", lambda *_, **__: nullcontext(PlayedSession(answers)))
    monkeypatch.setattr(offsets, "look", lambda _: group)
    return answers


def test_a_program_is_told_which_offsets_were_refused(brokers: dict[TopicPartition, int]) -> None:
    brokers[TPS[1]] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    said: list[str] = []
    with pytest.raises(NotAllReset, match="1 of 2 offsets were refused, orders-1") as refused:
        reset(SETTINGS, Options(to_earliest=True), (), said.append, execute=True, as_json=True)
    assert refused.value.exit_code is ExitCode.NOT_ALL_COMMITTED
    (told,) = map(json.loads, said)
    assert told["executed"]
    first, second = told["partitions"]
    assert (first["then"], first["note"]) == (10, "")
    assert second["note"].startswith("refused: TOPIC_AUTHORIZATION_FAILED")


@pytest.mark.parametrize(("refused", "others"), [(1, "the others are set"), (2, "nothing was changed")])
def test_what_became_of_the_others_is_told_where_there_are_some(
    brokers: dict[TopicPartition, int], refused: int, others: str
) -> None:
    brokers |= dict.fromkeys(TPS[:refused], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(NotAllReset, match=f"{refused} of 2 offsets were refused, orders-0.*; {others}$"):
        reset(SETTINGS, Options(to_earliest=True), (), print, execute=True, as_json=False)


def test_a_reset_that_a_member_comes_amid_is_told_as_one_in_part(brokers: dict[TopicPartition, int]) -> None:
    """Thousands of offsets take several commits: the first may be taken before it comes, and the others are refused."""
    brokers[TPS[1]] = ErrorCode.UNKNOWN_MEMBER_ID
    said: list[str] = []
    with pytest.raises(NotAllReset, match=r"1 of 2 offsets .*: stop the group's members first; the others are set$"):
        reset(SETTINGS, Options(to_earliest=True), (), said.append, execute=True, as_json=True)
    assert json.loads(said[0])["executed"]
    brokers[TPS[0]] = ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(ConfigError, match="has got members meanwhile and refuses: stop the group's members first"):
        reset(SETTINGS, Options(to_earliest=True), (), print, execute=True, as_json=True)


def test_a_reset_of_which_no_offset_was_taken_is_not_told_as_executed(brokers: dict[TopicPartition, int]) -> None:
    brokers |= dict.fromkeys(TPS, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    said: list[str] = []
    with pytest.raises(NotAllReset, match="nothing was changed"):
        reset(SETTINGS, Options(to_earliest=True), (), said.append, execute=True, as_json=True)
    assert json.loads(said[0])["executed"] is False


def test_people_are_told_the_plan_and_what_was_refused(brokers: dict[TopicPartition, int]) -> None:
    brokers[TPS[0]] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    said: list[str] = []
    with pytest.raises(NotAllReset):
        reset(SETTINGS, Options(to_earliest=True), (), said.append, execute=True, as_json=False)
    assert not any(line.startswith("done") for line in said)
    brokers[TPS[0]] = 0
    reset(SETTINGS, Options(to_earliest=True), (), said.append, execute=True, as_json=False)
    assert said[-1] == "done: 2 offsets are committed; the group goes on there when it is started"


class PlayedGroup:
    """Takes commits, and notes for how long they are to be kept."""

    def __init__(self, can_be_asked: bool) -> None:
        self._can_be_asked = can_be_asked
        self.kept: list[timedelta | None] = []

    async def takes_retention(self) -> bool:
        return self._can_be_asked

    async def commit(
        self, found: Mapping[TopicPartition, Any], metadata: str, retention: timedelta | None = None
    ) -> dict[TopicPartition, int]:
        self.kept.append(retention)
        return dict.fromkeys(found, 0)


@pytest.mark.parametrize("can_be_asked", [True, False])
def test_brokers_that_can_be_asked_keep_a_reset_of_a_group_that_has_been_empty_for_a_week(
    brokers: dict[TopicPartition, int], monkeypatch: pytest.MonkeyPatch, can_be_asked: bool
) -> None:
    """Else they delete it with what was there before: the time counts from when the group became empty."""
    group = PlayedGroup(can_be_asked)
    session = PlayedSession(brokers)
    monkeypatch.setattr(session, "group", group, raising=False)
    monkeypatch.setattr(session, "ask", lambda question: asyncio.run(question()))
    monkeypatch.setattr(offsets, "cluster_session", lambda *_, **__: nullcontext(session))
    reset(SETTINGS, Options(to_earliest=True), (), print, execute=True, as_json=False)
    (kept,) = group.kept
    assert kept is None if not can_be_asked else kept is not None and kept > timedelta(days=365)
