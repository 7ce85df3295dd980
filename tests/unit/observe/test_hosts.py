"""Under which names the pages are shown."""

from __future__ import annotations

import socket

import pytest

from kunicorn.observe.http import is_ours
from tests.unit.observe.serving import Service, ask, serving


@pytest.mark.parametrize(
    "host",
    [
        None,
        "127.0.0.1",
        "127.0.0.1:9400",
        "[::1]:9400",
        "10.1.2.3:80",
        "localhost:9400",
        "LOCALHOST",
        "orders-2:9400",
        "orders-2.orders.shop.svc:9400",
        "orders-2.orders.shop.svc.cluster.local.",
        "orders-2.home.arpa",
        "orders.example.com:443",
        socket.gethostname(),
    ],
)
def test_an_address_and_a_name_that_no_stranger_can_have_made_are_ours(host: str | None) -> None:
    assert is_ours(host, {"orders.example.com"})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9400",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "7.113.0.203.in-addr.arpa",
        "1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
        "evil-home.arpa",
        "",
        "\udcff",
        "a/b",
    ],
)
def test_a_name_that_its_owner_may_point_here_is_not(host: str) -> None:
    assert not is_ours(host, {"orders.example.com"})


@pytest.mark.parametrize("path", ["/", "/status", "/events", "/actions/drain"])
async def test_under_a_strangers_name_no_page_is_shown(path: str) -> None:
    async with serving(Service()) as server:
        code, text, _ = await ask(server, path, Host="evil.example")
        assert (code, "http.allowed_hosts" in text) == (403, True)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_probes_and_scrapers_may_use_any_name(path: str) -> None:
    async with serving(Service()) as server:
        assert (await ask(server, path, Host="evil.example"))[0] == 200


async def test_a_name_of_the_settings_is_answered() -> None:
    async with serving(Service(), allowed_hosts=["Orders.example.com"]) as server:
        assert (await ask(server, "/status", Host="orders.example.com"))[0] == 200
