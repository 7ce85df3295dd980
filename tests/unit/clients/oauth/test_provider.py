"""A user's function, good and bad."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kunicorn.clients.oauth.fetch import TokenError, call_provider
from kunicorn.ipc.messages import FetchToken


def request(function: str) -> FetchToken:
    return FetchToken(None, None, None, None, f"providers_of_tests:{function}", {"pool": "p", "own": "no"}, [], 60.0)


@pytest.fixture(autouse=True)
def providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
import math
def two(): return "t", 5
def four(): return "t", 5.0, "alice", {"own": "yes"}
def one(): return "t"
def empty(): return "", 5
def late(): return "t", "tomorrow"
def odd(): return "t", 5, "alice", {"own": 1}
def forever(): return "t", math.inf
def never(): return "t", math.nan
def milliseconds(): return "t", 1_700_000_000_000
def huge(): return "t", 10**400
number = 7
"""
    (tmp_path / "providers_of_tests.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "providers_of_tests", raising=False)


@pytest.mark.parametrize(
    ("function", "principal", "extensions"),
    [
        ("two", "providers_of_tests:two", {"pool": "p", "own": "no"}),
        ("four", "alice", {"pool": "p", "own": "yes"}),
    ],
)
def test_principal_and_extensions_may_be_left_out(function: str, principal: str, extensions: Mapping[str, str]) -> None:
    token = call_provider(request(function))
    assert (token.value, token.expires_at, token.principal, token.extensions) == ("t", 5.0, principal, extensions)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("one", r"returned str: it is to return \(token, expires_at"),
        ("empty", "or an empty text"),
        ("late", r"returned \(str, str\)"),
        ("forever", "returned inf for expires_at: .*seconds since 1970"),
        ("never", "returned nan for expires_at: "),
        ("huge", "returned 1000+ for expires_at: "),
        ("milliseconds", "returned 1700000000000 for expires_at: "),
        ("odd", r"returned \(str, int, str, dict\)"),
        ("number", "cannot be called"),
        ("nobody", "cannot be loaded: .*nobody"),
    ],
)
def test_what_does_not_keep_the_contract_is_told_with_the_contract(function: str, complaint: str) -> None:
    with pytest.raises(TokenError, match=complaint):
        call_provider(request(function))
