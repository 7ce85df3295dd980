"""What a worker's client logs in with."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer

from kunicorn.ipc.messages import Password, Token
from kunicorn.worker.fetching.client import Login


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
