"""What a worker's client logs in with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from kunicorn.ipc.messages import Password, Token
from kunicorn.worker.fetching.client import Client, KnownTopics, Librdkafka, Login
from kunicorn.worker.fetching.own_fetcher import OwnFetcher


def token(value: str, seconds: float) -> Token:
    return Token(value, time.time() + seconds, "alice", {"pool": "p"})


def test_the_client_gets_the_token_that_came_last() -> None:
    login = Login(token("old", 60))
    new = token("new", 120)
    login.renew(new)
    assert login.bearer(None) == ("new", new.expires_at, "alice", {"pool": "p"})


@pytest.mark.parametrize("stored", [None, token("old", -1)])
def test_the_client_is_told_where_there_is_no_valid_token(stored: Token | None) -> None:
    with pytest.raises(RuntimeError, match="no OAUTHBEARER token that is still valid"):
        Login(stored).bearer(None)


def test_a_new_password_is_given_to_the_client_once() -> None:
    given: list[tuple[str, str]] = []

    class Client(Consumer):
        def set_sasl_credentials(self, username: str, password: str) -> None:
            given.append((username, password))

    client, login = Client({"group.id": "g", "log_level": 0}), Login(None)
    login.apply(client)
    login.renew(Password("alice", "old"))
    login.renew(Password("alice", "new"))
    login.apply(client)
    login.apply(client)
    assert given == [("alice", "new")]
    client.close()


def by_librdkafka(login: Login) -> Client:
    consumer = Consumer({"group.id": "g", "log_level": 0})
    return Librdkafka(consumer, KnownTopics(consumer), login)


def by_our_own_fetcher(login: Login) -> Client:
    nothing: Any = None
    return OwnFetcher(nothing, nothing, login)


@pytest.mark.parametrize("made", [by_librdkafka, by_our_own_fetcher])
def test_a_new_password_is_given_to_the_producers_whoever_fetches(made: Callable[[Login], Client]) -> None:
    given: list[tuple[str, str]] = []

    class Outputs(Producer):
        def set_sasl_credentials(self, username: str, password: str) -> None:
            given.append((username, password))

    login = Login(None)
    login.use(Outputs({"log_level": 0}))
    client = made(login)
    client.log_in()
    assert given == []
    login.renew(Password("alice", "new"))
    client.log_in()
    client.log_in()
    assert given == [("alice", "new")]
