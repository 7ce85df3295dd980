"""What `kunicorn lag`, `offsets` and `leave` find out of a group, from a broker that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kunicorn.clients.session import NOT_TOLD, ClusterSession
from kunicorn.commands import lag, leave, offsets
from kunicorn.commands.group_lag import GroupStanding, look
from kunicorn.errors import ConfigError
from kunicorn.ipc.bitmap import epoch_word, topic_word
from kunicorn.kafka.admin import Described, DescribedMember, no_consumers
from kunicorn.kafka.versions import RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.settings.load import load
from kunicorn.text import topic_id_text
from tests.fakes.broker import Asked, FakeBroker, Reply, by_partition
from tests.fakes.complete_settings import settings_of
from tests.fakes.messages import blank, nested

ORDERS = UUID(int=77)
CLUSTER = "ours"
COMMITTED, END = 100, 150
EPOCH = 5
"""In which what is committed was written."""


def in_cluster(topics: Any) -> Reply:
    return replace(topics, cluster_id=CLUSTER)


def coordinator(broker: FakeBroker, asked: Asked) -> Reply:
    schema = RESPONSES[asked.api, asked.version]
    row = nested(schema, "coordinators")
    return blank(
        schema, coordinators=(blank(row, key="g", node_id=broker.node_id, host="127.0.0.1", port=broker.port),)
    )


def empty_group(asked: Asked) -> Reply:
    schema = RESPONSES[asked.api, asked.version]
    group = blank(nested(schema, "groups"), group_id="g", group_state="Empty", protocol_type="consumer")
    return blank(schema, groups=(group,))


def commits(epoch: int, metadata: str) -> Callable[[Asked], Reply]:
    """The same of both partitions."""

    def answer(asked: Asked) -> Reply:
        schema = RESPONSES[asked.api, asked.version]
        group = nested(schema, "groups")
        topic = nested(group, "topics")
        told: dict[str, Any] = {"committed_offset": COMMITTED, "committed_leader_epoch": epoch, "metadata": metadata}
        rows = tuple(blank(nested(topic, "partitions"), partition_index=number, **told) for number in (0, 1))
        return blank(
            schema, groups=(blank(group, group_id="g", topics=(blank(topic, name="orders", partitions=rows),)),)
        )

    return answer


def log_offsets(asked: Asked) -> Reply:
    return by_partition(asked, lambda each: {"offset": 0 if each.timestamp == -2 else END, "leader_epoch": 6})


def epoch_ends(end: int, error: int) -> Callable[[Asked], Reply]:
    def answer(asked: Asked) -> Reply:
        schema = RESPONSES[asked.api, asked.version]
        topic = nested(schema, "topics")
        row = nested(topic, "partitions")
        return blank(
            schema,
            topics=tuple(
                blank(
                    topic,
                    topic=each.topic,
                    partitions=tuple(
                        blank(row, partition=p.partition, leader_epoch=p.leader_epoch, end_offset=end, error_code=error)
                        for p in each.partitions
                    ),
                )
                for each in asked.message.topics
            ),
        )

    return answer


@pytest.fixture
def standing(tmp_path: Path) -> Callable[..., GroupStanding]:
    """The group as it is found. `epoch`, `metadata`: of its commits. `leader`: of partition 1. `end`, `error`: what
    leaders say of the epoch. `policy`: where members begin that find their offset outside of the log."""

    def found(
        epoch: int, metadata: str = "", leader: int = 1, end: int = END, error: int = 0, policy: str = "earliest"
    ) -> GroupStanding:
        with asyncio.Runner() as runner:
            broker = FakeBroker(1)
            runner.run(broker.__aenter__())
            broker.lead([broker], {"orders": {0: (1, 6), 1: (leader, 6)}}, {"orders": ORDERS})
            topics = broker.script[Api.METADATA]
            broker.script |= {
                Api.METADATA: lambda asked: in_cluster(topics(asked)),
                Api.FIND_COORDINATOR: lambda asked: coordinator(broker, asked),
                Api.DESCRIBE_GROUPS: empty_group,
                Api.OFFSET_FETCH: commits(epoch, metadata),
                Api.LIST_OFFSETS: log_offsets,
                Api.OFFSET_FOR_LEADER_EPOCH: epoch_ends(end, error),
            }
            file = tmp_path / "kunicorn.toml"
            file.write_text(
                f'[kafka]\nbootstrap_servers = ["{broker.address}"]\n[group]\nid = "g"\ntopics = ["orders"]\n'
                '[handler]\nentrypoint = "x:y"\n'
            )
            session = ClusterSession(load(file, {"KUNICORN_GROUP__AUTO_OFFSET_RESET": policy}), "g", runner)
            try:
                return look(session)
            finally:
                session.close()
                runner.run(broker.stop())

    return found


def test_a_partition_without_a_leader_is_told_beside_the_others(standing: Callable[..., GroupStanding]) -> None:
    """One broker is down, which is when people look. Commits of the service have an epoch, about which leaders are
    asked."""
    well, leaderless = standing(EPOCH, leader=-1).partitions
    assert (well.lag, well.problem) == (END - COMMITTED, None)
    assert (leaderless.lag, leaderless.committed) == (None, COMMITTED)
    assert "LEADER_NOT_AVAILABLE" in (leaderless.problem or "")


def test_a_group_goes_on_by_its_policy(standing: Callable[..., GroupStanding]) -> None:
    assert [each.policy for each in standing(EPOCH, policy="latest").partitions] == ["latest", "latest"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.OFFSET_NOT_AVAILABLE, "OFFSET_NOT_AVAILABLE"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ""),  # Who may not ask goes by the log's edges, as the service does.
    ],
)
def test_an_epoch_of_which_nothing_is_told_is_its_partitions_note(
    standing: Callable[..., GroupStanding], error: ErrorCode, told: str
) -> None:
    first, _ = standing(EPOCH, error=error).partitions
    assert told in (first.problem or "")
    assert (first.problem is None) is (told == "")
    assert first.lag == END - COMMITTED


@pytest.mark.parametrize(
    ("epoch", "metadata"), [(EPOCH, ""), (-1, epoch_word(COMMITTED, topic_id_text(ORDERS), EPOCH) + " spark:replay")]
)
def test_a_log_that_was_truncated_and_has_grown_is_told_whichever_way_the_commit_names_its_epoch(
    standing: Callable[..., GroupStanding], epoch: int, metadata: str
) -> None:
    found = standing(epoch, metadata, end=60)
    assert [each.lag for each in found.partitions] == [END - 60, END - 60]
    assert "the log was truncated" in "\n".join(found.lines())


def test_an_offset_of_the_topic_that_had_the_name_before_is_no_place_in_this_one(
    standing: Callable[..., GroupStanding],
) -> None:
    """A transaction's commit that comes late counts for a topic that was created anew. The service begins that at its
    beginning, so all of it is lag."""
    found = standing(EPOCH, topic_word(COMMITTED, CLUSTER, topic_id_text(UUID(int=76))))
    assert [each.lag for each in found.partitions] == [END, END]
    assert "the topic was created anew" in "\n".join(found.lines())
    of_this_one = standing(EPOCH, topic_word(COMMITTED, CLUSTER, topic_id_text(ORDERS)))
    assert [each.lag for each in of_this_one.partitions] == [END - COMMITTED] * 2


class OfOthers:
    """Session with a group that no consumer joins."""

    settings = settings_of(group={"id": "shop"})
    group_id = "shop"

    def __init__(self, found: Described) -> None:
        self.described = lambda: found


ASKED: dict[Any, Callable[[], object]] = {
    lag: lambda: lag.lag(OfOthers.settings, 20),
    offsets: lambda: offsets.show(OfOthers.settings),
    leave: lambda: leave.leave(OfOthers.settings, "pod-1", print, lambda: True),
}
CONNECT = DescribedMember("connect-1", None, "connect", "/10.0.0.7", ())


@pytest.mark.parametrize("command", ASKED)
@pytest.mark.parametrize(
    "found",
    [
        Described(ErrorCode.GROUP_ID_NOT_FOUND, state="Stable", other_type="share"),
        Described(ErrorCode.GROUP_ID_NOT_FOUND, state="Empty", other_type="streams"),
        Described(0, state="Stable", members=(CONNECT,), classic=True, other_type="connect"),
    ],
)
def test_a_group_of_others_is_named_and_not_taken_for_one_that_does_not_exist(
    command: Any, found: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "cluster_session", lambda *_, **__: nullcontext(OfOthers(found)))
    with pytest.raises(ConfigError) as refused:
        ASKED[command]()
    assert str(refused.value) == no_consumers("shop", found)


def test_of_a_broker_that_tells_no_members_nothing_is_said_of_a_static_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka before 2.4 has static members and does not name them; the embedded broker has none."""
    found = Described(0, state=NOT_TOLD)
    monkeypatch.setattr(leave, "cluster_session", lambda *_, **__: nullcontext(OfOthers(found)))
    with pytest.raises(ConfigError, match="'shop': these brokers do not tell its members"):
        ASKED[leave]()
    assert "0 members" not in GroupStanding("shop", NOT_TOLD, (), ()).head


def test_members_that_are_not_told_are_null_to_a_program_as_all_that_is_not_known() -> None:
    standing = GroupStanding("shop", NOT_TOLD, (), ())
    answers: list[Any] = [standing, lag.Lag(standing, {}, {}, 5), offsets.Reset(standing, [])]
    assert [each.as_json()["members"] for each in answers] == [None, None, None]
    empty = GroupStanding("shop", "Empty", (), ())
    answers = [empty, lag.Lag(empty, {}, {}, 5), offsets.Reset(empty, [])]
    assert [each.as_json()["members"] for each in answers] == [[], 0, 0]
