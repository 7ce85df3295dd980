"""The commands' side of `/actions/`, beside a real server; and what they print."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr

from kunicorn.control.plan import lines
from kunicorn.control.service import RunningService
from kunicorn.errors import ConfigError
from kunicorn.observe.asked import Goal
from kunicorn.settings import HttpSettings, Settings
from tests.unit.observe.serving import TOKEN, Service, serving


def settings(**http: object) -> Settings:
    return Settings.model_validate(
        {
            "kafka": {"bootstrap_servers": ["127.0.0.1:9"]},
            "group": {"id": "g", "topics": ["orders"]},
            "handler": {"entrypoint": "shop:handle"},
            "http": http,
        }
    )


async def test_a_seek_is_asked_for_and_its_plan_told() -> None:
    service = Service()
    async with serving(service, token=SecretStr(TOKEN)) as server:
        running = RunningService(f"http://127.0.0.1:{server.port}", TOKEN, 10)
        body = {"partitions": ["orders:1"], "to_offset": 5, "execute": True}
        answer = await asyncio.to_thread(running.ask, "seek", body)
    assert service.done == [("seek", (["orders:1"], Goal(offset=5), True))]
    head, row = lines(answer["partitions"])
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


def test_the_token_comes_from_a_file_or_from_the_settings_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    named = RunningService.of(settings(), "http://pod:9400/", file)
    assert (named.url, named.token) == ("http://pod:9400", TOKEN)
    own = RunningService.of(settings(port=9401, token=TOKEN), None, None)
    assert (own.url, own.token) == ("http://127.0.0.1:9401", TOKEN)
    assert TOKEN not in repr(named)
    with pytest.raises(ConfigError, match=r"http\.token or http\.token_file"):
        RunningService.of(settings(), None, None)
    with pytest.raises(ConfigError, match="--token-file"):
        RunningService.of(settings(), None, tmp_path / "nowhere")
    assert not HttpSettings().acts
