"""The client credentials grant against endpoints that answer well, badly and not at all."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from kunicorn.clients.oauth.fetch import TokenError, ask_endpoint
from kunicorn.ipc.messages import FetchToken
from tests.fakes.answering import Answer, answering


@contextmanager
def endpoint(status: int, body: bytes, *, location: str | None = None, asked: list[str] | None = None) -> Iterator[str]:
    """Answers every request so, on a free port. `location`: where it sends whoever asks; `asked`: gets the methods."""

    def answer(to: BaseHTTPRequestHandler, _: bytes) -> Answer:
        if asked is not None:
            asked.append(to.command)
        return Answer(body, status, {} if location is None else {"Location": location})

    with answering(answer) as url:
        yield f"{url}/token"


def request(url: str) -> FetchToken:
    return FetchToken(url, "orders", "hunter2", None, None, {"pool": "p"}, [], 60.0)


def jwt(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.sig"


def test_a_tokens_life_is_what_the_endpoint_says_and_its_principal_the_subject() -> None:
    value = jwt(sub="alice", exp=1)
    with endpoint(200, json.dumps({"access_token": value, "expires_in": "300"}).encode()) as url:
        token = ask_endpoint(request(url))
    assert (token.value, token.principal, token.extensions) == (value, "alice", {"pool": "p"})
    assert token.expires_at == pytest.approx(time.time() + 300, abs=10)


def test_without_expires_in_the_claim_counts_and_an_opaque_token_is_the_clients() -> None:
    with endpoint(200, json.dumps({"access_token": jwt(exp=4e9)}).encode()) as url:
        token = ask_endpoint(request(url))
    assert (token.expires_at, token.principal) == (4e9, "orders")


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (401, b'{"error":"invalid_client"}', r"answered 401 .*invalid_client.*sasl_oauthbearer_client_secret"),
        (200, b"<html>", "answered no JSON; check kafka.sasl_oauthbearer_token_endpoint_url"),
        (200, b"[]", "answered no JSON object"),
        (200, b"{}", "without an access_token"),
        (200, b'{"access_token": "opaque"}', "does not say when the token expires"),
        (302, b"", "answered 302"),
    ],
)
def test_what_is_no_token_is_told_with_the_setting(status: int, body: bytes, complaint: str) -> None:
    with endpoint(status, body) as url, pytest.raises(TokenError, match=complaint) as refused:
        ask_endpoint(request(url))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("padding", [0, 195])
def test_an_endpoint_that_quotes_the_clients_secret_does_not_have_it_told(padding: int) -> None:
    login = base64.b64encode(b"orders:hunter2").decode()
    body = b"x" * padding + f"hunter2 is not it, Basic {login}".encode()
    with endpoint(401, body) as url, pytest.raises(TokenError, match="answered 401") as refused:
        ask_endpoint(request(url))
    assert "hunt" not in str(refused.value)
    assert login not in str(refused.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_clients_secret_goes_to_no_address_that_an_endpoint_sends_us_to(status: int) -> None:
    asked: list[str] = []
    answer = json.dumps({"access_token": "a stranger's", "expires_in": 300}).encode()
    told = f"answered {status} .*not followed.*token_endpoint_url"
    with (
        endpoint(200, answer, asked=asked) as stranger,
        endpoint(status, b"", location=stranger) as url,
        pytest.raises(TokenError, match=told),
    ):
        ask_endpoint(request(url))
    assert asked == []


@pytest.mark.parametrize("life", ["1e400", "NaN", '"Infinity"', "null", "[]"])
def test_a_life_that_is_no_length_of_time_is_none(life: str) -> None:
    body = f'{{"access_token": "opaque", "expires_in": {life}}}'.encode()
    with endpoint(200, body) as url, pytest.raises(TokenError, match="does not say when the token expires"):
        ask_endpoint(request(url))


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc/token", "http://127.0.0.1:1/to ken"])
def test_an_address_that_is_none_is_told_with_the_setting(url: str) -> None:
    with pytest.raises(TokenError, match="token_endpoint_url"):
        ask_endpoint(request(url))


def test_an_endpoint_that_is_not_there_is_told_with_the_setting() -> None:
    with pytest.raises(TokenError, match=r"does not answer: .*refused.*token_endpoint_url"):
        ask_endpoint(request("http://127.0.0.1:1/token"))
