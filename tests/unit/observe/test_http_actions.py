"""Who may act over HTTP, and who may not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from kunicorn.observe import actions
from kunicorn.observe.http import Server
from kunicorn.observe.requests import Done
from tests.unit.observe.serving import TOKEN, Service, ask, serving

WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "_DENIED_SECONDS", 0.01)


async def act(server: Server, action: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Status code, and what was said."""
    data = json.dumps(body).encode() if body is not None else b"{}"
    code, text, _ = await ask(server, f"/actions/{action}", "POST", data, **{**WITH_TOKEN, **headers})
    return code, json.loads(text)["said"]


async def test_whoever_has_the_token_can_act() -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        assert await act(server, "pause", {"partitions": ["orders:1"]}) == (200, "pause is done")
        assert await act(server, "resume") == (200, "resume is done")
        assert await act(server, "recycle", {"worker": 0}) == (200, "recycle is done")
        assert await act(server, "recycle", {"worker": 9}) == (409, "there is no worker 9")
        assert await act(server, "reload") == (200, "reload is done")
        assert await act(server, "drain") == (200, "drain is done")
    assert service.done == [
        ("pause", ["orders:1"]),
        ("resume", []),
        ("recycle", 0),
        ("reload", None),
        ("drain", None),
    ]


async def test_without_a_token_in_the_settings_nobody_can_act() -> None:
    service = Service()
    async with serving(service) as server:
        code, said = await act(server, "drain")
        assert (code, said) == (403, "actions are switched off: set [http] token or token_file, and restart")
    assert service.done == []


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ÿ"]
)
async def test_another_token_is_denied_and_counted(given: str) -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        data = b"{}"
        code, body, headers = await ask(
            server, "/actions/drain", "POST", data, Authorization=given, Content_Type="application/json"
        )
        assert (code, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert TOKEN not in body
        page = (await ask(server, "/metrics"))[1]
    assert 'kunicorn_http_actions_total{action="drain",group="shop",result="denied"} 1.0' in page
    assert service.done == []


async def test_a_token_of_any_bytes_is_denied_late_and_counted_and_writes_no_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "_DENIED_SECONDS", 0.2)
    async with serving(Service(), token=SecretStr(TOKEN)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /actions/drain HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n"
            b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        asked = asyncio.get_running_loop().time()
        async with asyncio.timeout(60):
            answer = await reader.read()
        assert asyncio.get_running_loop().time() - asked > 0.1, "guessing is to take its time"
        writer.close()
        assert answer.startswith(b"HTTP/1.1 401"), answer
        page = (await ask(server, "/metrics"))[1]
    assert 'kunicorn_http_actions_total{action="drain",group="shop",result="denied"} 1.0' in page
    assert "Traceback" not in capfd.readouterr().err


async def test_a_body_that_is_not_encoded_as_it_says_is_refused_and_writes_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"POST /actions/drain HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n"
            "Connection: close\r\n\r\n{}".encode()
        )
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert service.done == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_body_that_is_announced_and_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "_BODY_SECONDS", 0.2)
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"POST /actions/drain HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{".encode()
        )
        async with asyncio.timeout(60):
            answer = await reader.readline()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert service.done == []


async def test_an_action_that_fails_is_counted() -> None:
    class Broken(Service):
        def drain(self) -> Done:
            raise LookupError("a bug")

    async with serving(Broken(), token=SecretStr(TOKEN)) as server:
        data = {"data": b"{}", "Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json"}
        assert (await ask(server, "/actions/drain", "POST", **data))[0] == 500  # type: ignore[arg-type]
        page = (await ask(server, "/metrics"))[1]
    assert 'kunicorn_http_actions_total{action="drain",group="shop",result="failed"} 1.0' in page


async def test_the_answers_name_no_versions() -> None:
    async with serving(Service()) as server:
        assert (await ask(server, "/livez"))[2]["Server"] == "kunicorn"


async def test_another_sites_page_cannot_act_even_with_the_token() -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        for site in ("cross-site", "same-site"):
            assert (await act(server, "drain", Sec_Fetch_Site=site))[0] == 403
        code, _, headers = await ask(server, "/actions/drain", "OPTIONS", Origin="https://evil.example")
        assert code == 405
        assert not any(name.lower().startswith("access-control") for name in headers), "no CORS, ever"
        assert (await act(server, "drain", Sec_Fetch_Site="same-origin"))[0] == 200


@pytest.mark.parametrize(
    ("content_type", "data", "code"),
    [
        ("text/plain", b"{}", 415),
        ("application/x-www-form-urlencoded", b"a=b", 415),
        ("application/json", b"[]", 400),
        ("application/json", b"{nonsense", 400),
        ("application/json", b'{"worker": "all"}', 400),
        ("application/json", b'{"partition": ["orders"]}', 400),
        ("application/json", b'{"partitions": ["orders"], "to_time_ms": 9223372036854775808}', 400),
        ("application/json", b'{"partitions": ["orders"], "to_offset": 9223372036854775808}', 400),
        ("application/json", b" " * 70_000, 413),
    ],
)
async def test_nonsense_is_refused(content_type: str, data: bytes, code: int) -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        answer = await ask(
            server, "/actions/pause", "POST", data, Authorization=f"Bearer {TOKEN}", Content_Type=content_type
        )
        assert answer[0] == code
        assert (await ask(server, "/livez"))[0] == 200
    assert service.done == []


async def test_an_action_that_there_is_not_is_named_only_to_whoever_has_the_token() -> None:
    async with serving(Service(), token=SecretStr(TOKEN)) as server:
        assert await act(server, "explode") == (
            404,
            "no such action; there are pause, resume, recycle, reload, drain, seek",
        )
        assert (await act(server, "explode", Authorization="Bearer nope"))[0] == 401
        assert (await ask(server, "/actions/drain", "GET", Authorization=f"Bearer {TOKEN}"))[0] == 405


async def test_a_token_that_is_rotated_in_its_file_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    async with serving(Service(), token_file=str(file)) as server:
        assert (await act(server, "resume"))[0] == 200
        file.write_text("another-long-enough-token\n")
        assert (await act(server, "resume"))[0] == 401
        assert (await act(server, "resume", Authorization="Bearer another-long-enough-token"))[0] == 200
        file.unlink()
        code, said = await act(server, "resume")
        assert code == 503
        assert "cannot be read" in said


@pytest.mark.parametrize("behind", ["\n\n", "\r\n\n", " ", "\t\n"])
async def test_blanks_and_empty_lines_around_a_token_in_its_file_are_none_of_it(behind: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(f"\n{TOKEN}{behind}".encode())
    async with serving(Service(), token_file=str(file)) as server:
        assert (await act(server, "resume"))[0] == 200


@pytest.mark.parametrize("token", [f"{TOKEN} ", f" {TOKEN}", f"{TOKEN}\n", f"{TOKEN}\nx", f"{TOKEN}ü"])
async def test_a_token_that_no_header_carries_is_refused_at_the_start_and_not_shown(token: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use printable ASCII, no blanks around it") as refused:
        async with serving(Service(), token=SecretStr(token)):
            pass
    assert TOKEN not in str(refused.value)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nx\n")
    with pytest.raises(ValueError, match="use printable ASCII, no blanks around it"):
        async with serving(Service(), token_file=str(file)):
            pass


async def test_a_token_that_is_too_short_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("short\n")
    with pytest.raises(ValueError, match="shorter than 16 characters; make one with: openssl rand -hex 32"):
        async with serving(Service(), token=SecretStr("short")):
            pass
    with pytest.raises(ValueError, match="shorter than 16 characters"):
        async with serving(Service(), token_file=str(file)):
            pass
    with pytest.raises(ValueError, match="token is set, too; remove one of them"):
        async with serving(Service(), token=SecretStr(TOKEN), token_file=str(file)):
            pass
