"""The service's token, with the real helper process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kunicorn.backoff import Backoff
from kunicorn.ipc.messages import FetchToken, Token
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.supervisor import credentials
from kunicorn.supervisor.credentials import NoToken, Tokens
from tests.waiting import wait_until

LIMIT = 20.0


def request(function: str, timeout: float = LIMIT) -> FetchToken:
    provider = f"tests.system.handlers.tokens:{function}"
    return FetchToken(None, None, None, None, provider, {}, [str(Path(__file__).parents[3]), *sys.path], timeout)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the provider was called."""
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("TOKEN_CALLS", str(path))
    return lambda: len(path.read_text().splitlines())


async def test_a_token_is_renewed_before_it_expires_and_told_each_time(
    calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_SECONDS", "30")
    monkeypatch.setattr(credentials, "_RENEW_AT", 0.05)
    shared: asyncio.Queue[Token] = asyncio.Queue()
    keeper = Tokens(request("provide"))
    keeping = asyncio.create_task(keeper.keep(shared.put_nowait))
    async with asyncio.timeout(LIMIT):
        first = await shared.get()
        assert keeper.bearer().value == first.value
        second = await shared.get()
    assert time.time() < first.expires_at < second.expires_at
    assert keeper.bearer().value == second.value
    assert calls() == 2
    keeping.cancel()


async def test_a_provider_that_hangs_is_ended_and_reported(calls: Callable[[], int]) -> None:
    keeper = Tokens(request("hang", timeout=1.0))
    with pytest.raises(NoToken, match=r"tokens:hang gave none within 1 s"):
        await keeper.fetch()


async def test_failures_are_tried_again_and_the_reason_is_what_a_login_gets(
    calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_BACKOFF", Backoff(0.01, 30.0))
    keeper = Tokens(request("fail"))
    keeping = asyncio.create_task(keeper.keep(lambda _: None))
    await asyncio.to_thread(
        wait_until, lambda: "no credentials in this place" in str(keeper.problem), "the reason", LIMIT
    )
    with pytest.raises(AuthenticationFailed, match="no credentials in this place"):
        keeper.bearer()
    monkeypatch.setattr(keeper, "_request", request("provide"))
    async with asyncio.timeout(LIMIT):
        await keeper.first()
    assert keeper.problem is None
    keeping.cancel()
