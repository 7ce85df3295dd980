"""The session of a command or a driver with the cluster: what it asks again, and what it says of refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from kunicorn.clients import session
from kunicorn.clients.access import token_renewal
from kunicorn.clients.oauth import request
from kunicorn.clients.session import JOB_PATIENCE, cluster_session, fetch_token, open_cluster
from kunicorn.errors import ConfigError, FatalGroupError, PeerError
from kunicorn.ipc.messages import FetchToken, Token
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.pipeline.group_offsets import commit
from kunicorn.positions import EARLIEST, NO_OFFSET, Edges, TopicPartition
from kunicorn.settings import GroupSettings, HandlerSettings, KafkaSettings, Settings
from tests.fakes.broker import Asked, FakeBroker, Reply
from tests.fakes.messages import blank_response
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


@pytest.mark.parametrize("error", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_commit_that_may_be_taken_the_next_time_is_sent_again_by_a_job(
    broker: RefusingBroker, error: ErrorCode
) -> None:
    broker.refuse(Api.OFFSET_COMMIT, error, 2)
    with cluster_session(settings(broker.bootstrap), patience=JOB_PATIENCE) as session:
        commit(session, {ORDERS: 3}, "spark:run")
        assert session.committed([ORDERS])[ORDERS].offset == 3


def test_a_job_waits_for_a_coordinator_that_loads_its_offsets_as_long_as_for_brokers(
    broker: RefusingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_PATIENCE", 0.0)
    broker.refuse(Api.OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2)
    with cluster_session(settings(broker.bootstrap), patience=JOB_PATIENCE) as asked:
        commit(asked, {ORDERS: 3}, "spark:run")
        assert asked.committed([ORDERS])[ORDERS].offset == 3


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


async def test_a_job_that_was_let_in_outlasts_the_rotation_of_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LOGIN_PAUSE", 0.05)
    written, right = tmp_path / "password", ["first"]
    written.write_text("first")
    refused = list[bytes]()

    def log_in(asked: Asked) -> Reply:
        given = asked.message.auth_bytes
        if given.endswith(b"\0" + right[0].encode()):
            return blank_response(asked.api, asked.version)
        refused.append(given)
        if len(refused) == 2:
            written.write_text("second")  # The file is behind the brokers.
        return blank_response(asked.api, asked.version, error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)

    def asked_for_topics(broker: FakeBroker) -> list[str]:
        kafka = KafkaSettings(
            bootstrap_servers=(f"127.0.0.1:{broker.port}",),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="shop",
            sasl_password_file=str(written),
        )
        own = settings(kafka.bootstrap_servers[0]).model_copy(update={"kafka": kafka})
        with cluster_session(own, patience=JOB_PATIENCE) as asked:
            return asked.topics(["orders"])

    async with FakeBroker() as broker:
        broker.lead([broker], {"orders": {0: (1, 1)}})
        broker.script[Api.SASL_HANDSHAKE] = lambda asked: blank_response(asked.api, asked.version)
        broker.script[Api.SASL_AUTHENTICATE] = log_in
        right[0] = "another"
        with pytest.raises(ConfigError, match="SASL_AUTHENTICATION_FAILED"):
            await asyncio.to_thread(asked_for_topics, broker)
        assert len(refused) == 1, "a password that was wrong from the start is told at once"
        right[0] = "first"
        assert await asyncio.to_thread(asked_for_topics, broker) == ["orders"]
        right[0] = "second"
        assert await asyncio.to_thread(asked_for_topics, broker) == ["orders"]
    assert len(refused) == 2


def test_a_token_whose_successor_does_not_come_is_used_while_it_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = [0.05, None, 3600, None]
    """Seconds that the next ones are valid; None: the endpoint does not answer."""
    clock = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])

    def fetched(_: FetchToken) -> Token:
        life = lives.pop(0)
        if life is None:
            raise PeerError("https://tokens does not answer")
        return Token(f"token of {life:g} s", clock[0] + life, "kunicorn", {})

    def token() -> str:
        found = asyncio.run(fetch_token(with_tokens("valid")))
        assert found is not None
        return found.value

    monkeypatch.setattr(request, "fetch", fetched)
    assert token() == "token of 0.05 s"
    clock[0] += 0.045
    assert token() == "token of 0.05 s", "it is asked for anew, in vain, and the last one is still good"
    assert lives == [3600, None]
    clock[0] += 0.1
    assert [token(), token()] == ["token of 3600 s"] * 2
    clock[0] += 4000
    with pytest.raises(PeerError, match="does not answer"):
        token()


def test_a_job_asks_an_endpoint_again_that_gives_no_token(
    broker: RefusingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [PeerError("https://tokens does not answer")]

    def fetched(_: FetchToken) -> Token:
        if failures:
            raise failures.pop()
        return Token("token", time.time() + 3600, "kunicorn", {})

    monkeypatch.setattr(request, "fetch", fetched)
    own = settings(broker.bootstrap).model_copy(update={"kafka": with_tokens("endpoint")})
    with cluster_session(own, patience=JOB_PATIENCE) as asked:
        assert asked.token is not None


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
