"""The session of a command or a driver with the cluster: what it asks again, and what it says of refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from kunicorn.clients import session
from kunicorn.clients.access import token_renewal
from kunicorn.clients.oauth import request
from kunicorn.clients.session import JOB_PATIENCE, cluster_session, fetch_token, open_cluster
from kunicorn.errors import ConfigError, FatalGroupError
from kunicorn.ipc.messages import FetchToken, Token
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.pipeline.group_offsets import commit
from kunicorn.positions import EARLIEST, NO_OFFSET, Edges, TopicPartition
from kunicorn.settings import GroupSettings, HandlerSettings, KafkaSettings, Settings
from tests.fakes.refusing_brokers import RefusingBroker, refusing_broker
from tests.system.producing import produce

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def broker() -> Iterator[RefusingBroker]:
    with refusing_broker() as broker:
        broker.create("orders")
        yield broker


def settings(bootstrap: str, *topics: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=(bootstrap,)),
        group=GroupSettings(id="shop", topics=topics or ("orders",)),
        handler=HandlerSettings(entrypoint="x:y"),
    )


def with_tokens(secret: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=("kafka:9092",),
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://tokens",
        sasl_oauthbearer_client_id="shop",
        sasl_oauthbearer_client_secret=SecretStr(secret),
    )


def test_topics_are_found_by_name_and_by_pattern_and_a_missing_one_is_named(broker: RefusingBroker) -> None:
    broker.create("orders-old")
    with cluster_session(settings(broker.bootstrap)) as session:
        assert session.partitions(["^ord"]) == [ORDERS, TopicPartition("orders-old", 0)]
        assert session.topics(["orders"], ["orders-old", "gone"]) == ["orders", "orders-old"]
        with pytest.raises(ConfigError, match=r"no topic matches \^nothing; correct group\.topics"):
            session.partitions(["^nothing"])
        with pytest.raises(ConfigError, match=r"topic 'odrers': .*; create the topic, or correct --topic"):
            session.partitions(["odrers"], "--topic")


def test_logs_edges_and_the_offsets_of_times_are_the_leaders_word(broker: RefusingBroker) -> None:
    produce(broker.bootstrap, "orders", 5)
    with cluster_session(settings(broker.bootstrap)) as session:
        assert session.edges([ORDERS]) == {ORDERS: Edges(0, 5)}
        assert session.at({ORDERS: EARLIEST}) == {ORDERS: 0}


def test_a_leader_that_moves_is_asked_again_by_a_job_and_named_to_a_person(broker: RefusingBroker) -> None:
    refusals = 4  # Each question is asked twice before its answer counts.
    broker.refuse(Api.LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER, refusals)
    with (
        cluster_session(settings(broker.bootstrap)) as session,
        pytest.raises(
            ConfigError, match=r"orders-0: its leader does not tell an offset: NOT_LEADER_OR_FOLLOWER .*wait"
        ),
    ):
        session.edges([ORDERS])
    with cluster_session(settings(broker.bootstrap), patience=JOB_PATIENCE) as session:
        assert session.edges([ORDERS]) == {ORDERS: Edges(0, 0)}


def test_a_coordinator_that_moves_ends_no_job_and_its_commit_arrives(broker: RefusingBroker) -> None:
    broker.refuse(Api.OFFSET_COMMIT, ErrorCode.COORDINATOR_NOT_AVAILABLE, 1)
    with cluster_session(settings(broker.bootstrap), "mirror") as session:
        assert session.committed([ORDERS])[ORDERS].offset == NO_OFFSET
        commit(session, {ORDERS: 3}, "spark:run")
        found = session.committed([ORDERS])[ORDERS]
    assert (found.offset, found.metadata) == (3, "spark:run")
    with cluster_session(settings(broker.bootstrap)) as session:
        assert session.committed([ORDERS])[ORDERS].offset == NO_OFFSET, "it was committed for the other group"


def test_a_group_with_members_refuses_a_job_and_the_message_says_what_that_means(broker: RefusingBroker) -> None:
    for error, why in (
        (ErrorCode.UNKNOWN_MEMBER_ID, "group 'shop' has members again .*UNKNOWN_MEMBER_ID.*nothing is lost"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit of orders-0 is refused: .*this user needs DESCRIBE and READ"),
    ):
        broker.refuse(Api.OFFSET_COMMIT, error, 1)
        with (
            cluster_session(settings(broker.bootstrap)) as session,
            pytest.raises(FatalGroupError, match=why),
        ):
            commit(session, {ORDERS: 3}, "spark:run")


def test_brokers_that_do_not_answer_are_told_by_the_setting() -> None:
    with (
        pytest.raises(ConfigError, match=r"127\.0\.0\.1:1.*correct kafka\.bootstrap_servers, or start them"),
        cluster_session(settings("127.0.0.1:1")) as session,
    ):
        session.partitions(["orders"])


def test_a_token_is_used_for_most_of_its_life_and_asked_for_anew_when_its_secret_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[FetchToken] = []

    def fetched(request: FetchToken) -> Token:
        asked.append(request)
        return Token(f"token {len(asked)}", time.time() + 3600 * (len(asked) != 2), "kunicorn", {})

    def token(secret: str) -> str:
        found = asyncio.run(fetch_token(with_tokens(secret)))
        assert found is not None
        return found.value

    monkeypatch.setattr(request, "fetch", fetched)
    assert [token("a"), token("a")] == ["token 1", "token 1"]
    # The second one has no life left.
    assert [token("b"), token("b"), token("b")] == ["token 2", "token 3", "token 3"]


def test_whoever_logs_in_behind_a_tokens_life_has_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = list[Token]()

    def fetch(_: FetchToken) -> Token:
        fetched.append(Token(f"token {len(fetched) + 1}", time.time(), "kunicorn", {}))
        return fetched[-1]

    monkeypatch.setattr(request, "fetch", fetch)
    kafka = with_tokens("s")
    made = dict[str, Any]()
    monkeypatch.setattr(session, "Cluster", lambda *_, **given: made.update(given))
    open_cluster(kafka)
    log_in, connect = token_renewal(kafka)["oauth_cb"], made["security"].sasl.token
    assert [log_in("")[0], log_in("")[0]] == ["token 1", "token 2"]
    assert [connect().value, connect().value] == ["token 3", "token 4"]
    assert token_renewal(KafkaSettings(bootstrap_servers=("127.0.0.1:9",))) == {}
