"""The service's token, with the real helper process."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from kunicorn.backoff import Backoff
from kunicorn.clients.config import token_request
from kunicorn.errors import ConfigError
from kunicorn.ipc.messages import FetchToken, Token
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.supervisor import credentials
from kunicorn.supervisor.credentials import NoToken, Tokens
from kunicorn.supervisor.workers.process import Child, watch_exit
from tests.fakes.answering import Answer, answering
from tests.fakes.driver import until
from tests.unit.settings.files import LEAST, loaded
from tests.waiting import wait_until

LIMIT = 60.0


def request(function: str, timeout: float = LIMIT) -> FetchToken:
    provider = f"tests.system.handlers.tokens:{function}"
    return FetchToken(None, None, None, None, provider, {}, [str(Path(__file__).parents[3]), *sys.path], timeout)


def asking(function: str, timeout: float = LIMIT) -> Callable[[], FetchToken]:
    """What `Tokens` asks for its request."""
    return lambda: request(function, timeout)


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
    keeper = Tokens(asking("provide"))
    keeping = asyncio.create_task(keeper.keep(shared.put_nowait))
    async with asyncio.timeout(LIMIT):
        first = await shared.get()
        assert keeper.bearer().value == first.value
        second = await shared.get()
    assert time.time() < first.expires_at < second.expires_at
    assert keeper.bearer().value == second.value
    assert calls() == 2
    keeping.cancel()


class Clocks:
    """Time that passes by sleeping. Ten minutes later the wall's clock is set `ahead`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
        self.passed = 0.0
        self._ahead = ahead
        monkeypatch.setattr(credentials, "time", SimpleNamespace(time=self.wall))
        monkeypatch.setattr(credentials, "clock", SimpleNamespace(now=lambda: self.passed))
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    def wall(self) -> float:
        return 1_800_000_000.0 + self.passed + (self._ahead if self.passed >= 600.0 else 0.0)

    async def _sleep(self, seconds: float) -> None:
        self.passed += seconds


@pytest.mark.parametrize(("ahead", "renewed_after"), [(0.0, 2520.0), (7200.0, 600.0), (-7200.0, 2520.0)])
async def test_a_token_is_renewed_in_time_where_the_clock_is_set_meanwhile(
    monkeypatch: pytest.MonkeyPatch, ahead: float, renewed_after: float
) -> None:
    clocks, asked = Clocks(monkeypatch, ahead), asyncio.Queue[float]()
    keeper = Tokens(asking("provide"))

    async def fetch() -> Token:
        asked.put_nowait(clocks.passed)
        if asked.qsize() > 1:
            await asyncio.Event().wait()
        return Token("secret", clocks.wall() + 3600.0, "orders", {})

    monkeypatch.setattr(keeper, "fetch", fetch)
    keeping = asyncio.create_task(keeper.keep(lambda _: None))
    async with asyncio.timeout(60):
        while asked.qsize() < 2:
            await asyncio.wait({keeping}, timeout=0.01)
    await asked.get()
    assert renewed_after <= await asked.get() <= renewed_after + 11.0
    keeping.cancel()


async def test_the_pid_of_a_helper_that_has_ended_is_nobodys(
    calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def start(sock: socket.socket) -> int:
        pids.append(started(sock))
        return pids[-1]

    started = credentials._start_helper
    monkeypatch.setattr(credentials, "_start_helper", start)
    keeper = Tokens(asking("hang"))
    fetching = asyncio.create_task(keeper.fetch())
    await until(lambda: pids)
    assert keeper.owns(pids[0])
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(NoToken, match="ended without an answer"):
        await fetching
    assert not keeper.owns(pids[0]), "another process may have it, and is to be reaped"


def reaped(pid: int) -> int:
    """How that child has ended, as `subprocess` has it; blocks until then."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("call", ["socket.socketpair", "os.pidfd_open"])
async def test_a_helper_for_which_there_is_no_descriptor_is_tried_again_later(
    call: str, calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    keeper, pids, started = Tokens(asking("provide")), list[int](), credentials._start_helper

    def start(sock: socket.socket) -> int:
        pids.append(started(sock))
        return pids[-1]

    with monkeypatch.context() as full:
        full.setattr(f"kunicorn.supervisor.credentials.{call}", refuse)
        full.setattr(credentials, "_start_helper", start)
        with pytest.raises(NoToken, match=r"the process that fetches it cannot be started: .*Too many open files"):
            await keeper.fetch()
    assert [*map(reaped, pids)] == [-signal.SIGKILL] * (call == "os.pidfd_open"), "one that nobody watches is killed"
    assert [pid for pid in pids if keeper.owns(pid)] == []
    async with asyncio.timeout(LIMIT):
        assert (await keeper.fetch()).value
    assert calls() == 1


async def test_a_provider_that_hangs_is_ended_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    how = list[str]()

    def watch(child: Child, on_exit: Callable[[str], None], *, with_group: bool) -> None:
        def exited(ended: str) -> None:
            how.append(ended)
            on_exit(ended)

        watch_exit(child, exited, with_group=with_group)

    monkeypatch.setattr(credentials, "watch_exit", watch)
    keeper = Tokens(asking("hang", timeout=1.0))
    with pytest.raises(NoToken, match=r"tokens:hang gave none within 1 s"):
        await keeper.fetch()
    await until(lambda: how)
    assert how == ["SIGKILL"]


async def test_failures_are_tried_again_and_the_reason_is_what_a_login_gets(
    calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_BACKOFF", Backoff(0.01, 30.0))
    functions = ["fail"]
    keeper = Tokens(lambda: request(functions[-1]))
    keeping = asyncio.create_task(keeper.keep(lambda _: None))
    await asyncio.to_thread(
        wait_until, lambda: "no credentials in this place" in str(keeper.problem), "the reason", LIMIT
    )
    with pytest.raises(AuthenticationFailed, match="no credentials in this place"):
        keeper.bearer()
    functions.append("provide")
    async with asyncio.timeout(LIMIT):
        await keeper.first()
    assert keeper.problem is None
    keeping.cancel()


@pytest.fixture
def logins() -> Iterator[tuple[str, SimpleQueue[str]]]:
    """A token endpoint whose tokens live for a second, and who logged in there, as `id:secret`."""
    seen: SimpleQueue[str] = SimpleQueue()

    def answer(to: BaseHTTPRequestHandler, _: bytes) -> Answer:
        seen.put(base64.b64decode(to.headers["Authorization"].removeprefix("Basic ")).decode())
        return Answer(json.dumps({"access_token": "t0ken", "expires_in": 1}).encode())

    with answering(answer) as url:
        yield f"{url}/token", seen


async def test_a_client_secret_that_is_rotated_in_its_file_is_what_the_next_renewal_logs_in_with(
    logins: tuple[str, SimpleQueue[str]], tmp_path: Path
) -> None:
    url, seen = logins
    file = tmp_path / "client-secret"
    file.write_text("old\n")
    lines = [
        'security_protocol = "SASL_SSL"',
        'sasl_mechanism = "OAUTHBEARER"',
        f'sasl_oauthbearer_token_endpoint_url = "{url}"',
        'sasl_oauthbearer_client_id = "orders"',
        f'sasl_oauthbearer_client_secret_file = "{file}"',
    ]
    kafka = loaded(tmp_path, LEAST.replace("[kafka]\n", "[kafka]\n" + "\n".join(lines) + "\n")).kafka
    keeper = Tokens(lambda: token_request(kafka))
    keeping = asyncio.create_task(keeper.keep(lambda _: None))
    assert await asyncio.to_thread(seen.get, timeout=LIMIT) == "orders:old"
    file.write_text("new\n")
    async with asyncio.timeout(LIMIT):
        while await asyncio.to_thread(seen.get, timeout=LIMIT) != "orders:new":
            pass
    keeping.cancel()


async def test_a_client_secret_that_cannot_be_read_is_why_there_is_no_token(tmp_path: Path) -> None:
    def unreadable() -> FetchToken:
        raise ConfigError("kafka.sasl_oauthbearer_client_secret_file = 'secret' cannot be read: No such file")

    with pytest.raises(NoToken, match=r"client_secret_file = 'secret' cannot be read"):
        await Tokens(unreadable).fetch()
