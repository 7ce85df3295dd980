"""The commands' side of `/actions/`, beside a real server; and what they print."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest import mock

import pytest
from pydantic import SecretStr

from kunicorn.commands.control import Reply, RunningService
from kunicorn.commands.status import ask
from kunicorn.errors import ConfigError
from kunicorn.observe import requests
from kunicorn.observe.requests import Done, Goal
from kunicorn.settings import HttpSettings
from tests.fakes.answering import Answer, answering
from tests.fakes.complete_settings import settings_of
from tests.unit.observe.serving import TOKEN, Service, serving


async def test_a_seek_is_asked_for_and_its_plan_told() -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        running = RunningService(f"http://127.0.0.1:{server.port}", TOKEN, 10)
        body = {"partitions": ["orders:1"], "to_offset": 5, "execute": True}
        answer = await asyncio.to_thread(running.ask, "seek", body)
    assert service.done == [("seek", (["orders:1"], Goal(offset=5), True))]
    head, row, _said = Reply(answer).lines()
    assert head.split() == [
        "partition",
        "committed",
        "position",
        "then",
        "records",
        "log",
        "start",
        "log",
        "end",
        "note",
    ]
    assert row.split() == ["orders-1", "8", "10", "5", "5", "again", "0", "20"]


async def test_who_asked_is_in_the_services_log(capfd: pytest.CaptureFixture[str]) -> None:
    async with serving(Service(), token=SecretStr(TOKEN)) as server:
        running = RunningService(f"http://127.0.0.1:{server.port}", TOKEN, 10)
        await asyncio.to_thread(running.ask, "seek", {"partitions": ["orders:1"], "to": "latest"})
    logged = capfd.readouterr().err
    assert "seek was asked for over HTTP by 127.0.0.1 (" in logged
    assert "orders-1: 10 → 5" in logged


@pytest.mark.parametrize(
    "body", [{"partitions": ["orders:1"]}, {"to": "latest"}, {"partitions": ["a"], "to": "latest", "to_offset": 1}]
)
async def test_a_seek_that_says_nothing_or_too_much_is_refused(body: dict[str, object]) -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        running = RunningService(f"http://127.0.0.1:{server.port}", TOKEN, 10)
        with pytest.raises(ConfigError, match="a seek names partitions, and one of"):
            await asyncio.to_thread(running.ask, "seek", body)
    assert service.done == []


async def test_a_wrong_token_a_refusal_and_a_silent_port_are_told_apart() -> None:
    async with serving(Service(), token=SecretStr(TOKEN)) as server:
        url = f"http://127.0.0.1:{server.port}"
        with pytest.raises(ConfigError, match="send the token"):
            await asyncio.to_thread(RunningService(url, f"{TOKEN}x", 10).ask, "drain", {})
        refused = await asyncio.to_thread(RunningService(url, TOKEN, 10).ask, "recycle", {"worker": 9})
        assert (refused["ok"], refused["said"]) == (False, "there is no worker 9")
    with pytest.raises(ConfigError, match="no service answers"):
        await asyncio.to_thread(RunningService(url, TOKEN, 10).ask, "drain", {})


def test_the_token_goes_to_no_address_that_whoever_answers_sends_us_to() -> None:
    asked: list[str] = []

    def move(to: BaseHTTPRequestHandler, _: bytes) -> Answer:
        asked.append(to.path)
        return Answer(status=302, headers={"Location": f"http://localhost:{to.server.server_port}/elsewhere"})  # type: ignore[attr-defined] # of HTTPServer

    refusal = r"answers 302: it sends us to .*/elsewhere, which is not followed"
    with answering(move) as url, pytest.raises(ConfigError, match=refusal):
        RunningService(url, TOKEN, 10).ask("pause", {})
    assert asked == ["/actions/pause"]


WORDS = b"not a name of this service: see http.allowed_hosts\nbell \x1b[2J"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(WORDS, 403, {"Content-Type": "text/plain"}), "answers 403: not a name .*allowed_hosts; correct --url"),
        (Answer(WORDS, 500, {"Content-Type": "text/plain"}), "answers 500: what was asked for has failed, .* log"),
        (Answer(b"<html>", 404, {"Content-Type": "text/html"}), "is not kunicorn, or an older one; correct --url"),
    ],
)
def test_a_refusal_in_words_is_passed_on_and_not_taken_for_another_service(answer: Answer, told: str) -> None:
    """The service goes by no name that it does not know, and says so as a text."""
    with answering(lambda *_: answer) as url, pytest.raises(ConfigError, match=told) as refused:
        RunningService(url, TOKEN, 10).ask("pause", {})
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 409 Conflict\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{",
        b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["no answer", "half an answer", "half a refusal", "half of a chunk", "no chunk"],
)
def test_a_service_that_ends_amid_its_answer_may_have_done_what_was_asked_for(sent: bytes) -> None:
    """A pod that is killed just then is neither taken for none, nor for another service."""
    with hanging_up(sent) as url, pytest.raises(ConfigError, match=r"broken off before .*may be done yet; its log"):
        RunningService(url, TOKEN, 10).ask("seek", {})


def test_a_service_of_this_machine_that_ends_before_its_answer_may_have_done_what_was_asked_for() -> None:
    port = os.getpid()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            while b"}" not in connection.recv(65_536):
                pass

    with requests.listen(port) as listening:
        listening.setblocking(True)
        listening.listen()
        threading.Thread(target=serve, daemon=True).start()
        try:
            with pytest.raises(ConfigError, match="If it has ended just now, what was asked for may be done; one else"):
                RunningService("http://localhost", None, 10, port).ask("seek", {})
        finally:
            requests.forget(listening.getsockname())


@contextmanager
def hanging_up(sent: bytes) -> Iterator[str]:
    """The address of a service that reads one request, sends this and ends."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            while b"}" not in connection.recv(65_536):
                pass
            connection.sendall(sent)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering_once = threading.Thread(target=serve, daemon=True)
        answering_once.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        answering_once.join(10)


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "http://127.0.0.1:94 00", "http://", "http://:9400"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match=f"--url '{url}' is no address of a service; write it such as"):
        RunningService(url, TOKEN, 10).ask("pause", {})
    with pytest.raises(ConfigError, match=f"--url '{url}' is no address of a service; write it such as"):
        ask(url)


def test_the_token_goes_to_no_other_port_where_one_is_named_that_cannot_be() -> None:
    """The system takes the port modulo 65536: whoever listens there would be sent the token."""
    asked: list[str] = []

    def listens(to: BaseHTTPRequestHandler, _: bytes) -> Answer:
        asked.append(to.path)
        return Answer(b"{}")

    with answering(listens) as url:
        address, _, port = url.rpartition(":")
        beyond = f"{address}:{int(port) + 65536}"
        with pytest.raises(ConfigError, match="is no address of a service"):
            RunningService(beyond, TOKEN, 10).ask("pause", {})
        with pytest.raises(ConfigError, match="is no address of a service"):
            ask(beyond)
    assert asked == []


def test_what_no_request_can_be_made_of_is_told_without_the_token() -> None:
    with pytest.raises(ConfigError, match=r"--url 'http://\[::1' is no address of a service"):
        RunningService("http://[::1", TOKEN, 10).ask("pause", {})
    for token in (f"{TOKEN}\n", f"{TOKEN}\u20ac"):
        with pytest.raises(ConfigError, match="is no address of a service, or the token is none") as refused:
            RunningService("http://127.0.0.1:1", token, 10).ask("pause", {})
        assert refused.value.__cause__ is None
        assert TOKEN not in str(refused.value)


def test_a_token_file_is_read_as_the_service_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN} \r\n\n")
    assert RunningService.of(settings_of(), "http://pod:9400", file).token == TOKEN
    file.write_text(f"{TOKEN}\u20ac\n")
    with pytest.raises(ConfigError, match=r"--token-file .* use printable ASCII") as refused:
        RunningService.of(settings_of(), "http://pod:9400", file)
    assert TOKEN not in str(refused.value)


def test_the_token_comes_from_a_file_or_from_the_settings_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    named = RunningService.of(settings_of(), "http://pod:9400/", file)
    assert (named.url, named.token) == ("http://pod:9400", TOKEN)
    own = RunningService.of(settings_of(http={"port": 9401, "token": TOKEN}), None, None)
    assert (own.url, own.token) == ("http://127.0.0.1:9401", TOKEN)
    assert TOKEN not in repr(named)
    with pytest.raises(ConfigError, match=r"http\.token or http\.token_file"):
        RunningService.of(settings_of(), "http://pod:9400", None)
    with pytest.raises(ConfigError, match="--token-file"):
        RunningService.of(settings_of(), None, tmp_path / "nowhere")
    assert not HttpSettings().acts


async def test_on_its_own_machine_the_services_user_needs_no_token(capfd: pytest.CaptureFixture[str]) -> None:
    service = Service()
    async with serving(service) as server:
        running = RunningService.of(settings_of(http={"port": server.port}), None, None)
        answer = await asyncio.to_thread(running.ask, "resume", {"partitions": ["orders:1"]})
        assert (answer["ok"], answer["said"]) == (True, "resume is done")
        refused = await asyncio.to_thread(running.ask, "recycle", {"worker": 9})
        assert (refused["ok"], refused["said"]) == (False, "there is no worker 9")
        with pytest.raises(ConfigError, match="no such action"):
            await asyncio.to_thread(running.ask, "explode", {})
    assert service.done == [("resume", ["orders:1"])]
    assert "resume was asked for over HTTP by this machine (" in capfd.readouterr().err


class Reloading(Service):
    """Its reload takes as long as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.through = asyncio.Event()

    async def reload(self) -> Done:
        await self.through.wait()
        return await super().reload()


@pytest.mark.parametrize("here", [True, False])
async def test_an_answer_that_does_not_come_in_time_is_not_taken_for_no_service(here: bool) -> None:
    service = Reloading()
    async with serving(service, token=None if here else SecretStr(TOKEN)) as server:
        url, token = f"http://127.0.0.1:{server.port}", None if here else TOKEN
        running = RunningService(url, token, 0.1, server.port)
        with pytest.raises(ConfigError, match=r"has not answered within 0\.2 s: what was asked for may be done yet"):
            await asyncio.to_thread(running.ask, "reload", {})
        service.through.set()


def test_a_reload_is_waited_for_as_long_as_it_may_take() -> None:
    """The import, and then each worker's start and the drain of the one before it."""
    settings = settings_of(http={"token": TOKEN})
    running = RunningService.of(settings, None, None)
    start, drain = settings.workers.start_timeout_ms / 1000, settings.group.drain_timeout_ms / 1000
    assert running.patience_for("reload") > start + settings.workers.count * (start + drain)
    assert running.patience_for("pause") < start


async def test_another_users_orders_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    async with serving(service) as server:
        monkeypatch.setattr(requests, "may_deal_with_us", lambda sock: False)
        running = RunningService.of(settings_of(http={"port": server.port}), None, None)
        with pytest.raises(ConfigError, match="no service of this user"):
            await asyncio.to_thread(running.ask, "drain", {})
    assert service.done == []


def test_whose_process_is_at_the_other_end_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert requests.may_deal_with_us(ours)
        monkeypatch.setattr(requests, "_UCRED", mock.Mock(size=12, unpack=lambda _: (1, 4711, 4711)))
        assert not requests.may_deal_with_us(ours)


def test_a_command_does_not_believe_another_users_process(monkeypatch: pytest.MonkeyPatch) -> None:
    port = os.getpid()
    with requests.listen(port) as listening:
        listening.listen()
        monkeypatch.setattr(os, "getuid", lambda: 4711)
        monkeypatch.setattr(requests, "may_deal_with_us", lambda sock: False)
        with pytest.raises(PermissionError, match="another user"):
            requests.connect(port, 10)
        requests.forget(listening.getsockname())


def test_where_nobody_runs_or_the_port_is_any_it_is_told_what_to_do() -> None:
    with pytest.raises(ConfigError, match="answers on this machine"):
        RunningService.of(settings_of(http={"port": 1}), None, None).ask("drain", {})
    with pytest.raises(ConfigError, match=r"http\.port = 0 takes any port"):
        RunningService.of(settings_of(http={"port": 0}), None, None)
