"""The token that a worker's client is given."""

from __future__ import annotations

import time

import pytest

from kunicorn.pipes.messages import Token
from kunicorn.worker.token import LatestToken


def token(value: str, seconds: float) -> Token:
    return Token(value, time.time() + seconds, "alice", {"pool": "p"})


def test_the_client_gets_the_token_that_came_last() -> None:
    latest = LatestToken(token("old", 60))
    new = token("new", 120)
    latest.store(new)
    assert latest.answer(None) == ("new", new.expires_at, "alice", {"pool": "p"})


@pytest.mark.parametrize("stored", [None, token("old", -1)])
def test_the_client_is_told_where_there_is_no_valid_one(stored: Token | None) -> None:
    with pytest.raises(RuntimeError, match="no OAUTHBEARER token that is still valid"):
        LatestToken(stored).answer(None)
