"""One token, fetched in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kunicorn.clients.oauth import request as oauth_request
from kunicorn.errors import PeerError
from kunicorn.ipc.messages import FetchToken

ROOT = Path(__file__).parents[4]


def request(function: str, timeout: float = 30.0) -> FetchToken:
    path = [str(ROOT), str(ROOT / "service"), *sys.path]
    return FetchToken(None, None, None, None, f"tests.system.handlers.tokens:{function}", {}, path, timeout)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'service'}:{ROOT}")


def test_a_token_comes_from_its_provider() -> None:
    token = oauth_request.fetch(request("provide"))
    assert token.principal == "alice"
    assert token.value not in repr(token)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("fail", "no credentials in this place"),
        ("die", r"ended without an answer \(exit 9\)"),
        ("stale", "has expired already"),
        ("nonsense", r"returned str: it is to return \(token, expires_at"),
    ],
)
def test_without_a_token_the_reason_is_told(function: str, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        oauth_request.fetch(request(function))


def test_a_provider_that_hangs_is_not_waited_for() -> None:
    with pytest.raises(PeerError, match=r"gave none within 2 s"):
        oauth_request.fetch(request("hang", timeout=2.0))
