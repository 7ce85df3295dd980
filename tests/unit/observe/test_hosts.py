"""Under which names the pages are shown."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from kunicorn.observe.http import NOBODYS, is_ours
from kunicorn.settings import HttpSettings
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


@pytest.mark.parametrize(
    "entry",
    [
        "orders.example.com:9400",
        "https://orders.example.com",
        "*.example.com",
        " orders.example.com",
        "",
        ".",
        "ö.example",
    ],
)
def test_an_allowed_host_that_no_browser_would_name_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError, match="not the name of a host"):
        HttpSettings(allowed_hosts=(entry,))


def test_an_allowed_host_is_compared_as_a_browser_names_it() -> None:
    allowed = HttpSettings(allowed_hosts=("Orders.Example.COM.", "shop_1.example.com")).allowed_hosts
    assert allowed == ("orders.example.com", "shop_1.example.com")
    assert is_ours("orders.example.com.:9400", allowed)


def test_the_pages_name_all_ends_under_which_the_port_answers() -> None:
    said = HttpSettings.model_fields["allowed_hosts"].description or ""
    security = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    (names,) = [text for text in security.split("\n\n") if text.startswith("**Names.**")]
    for end in NOBODYS:
        assert re.search(rf"(?<!\w){re.escape(end)}(?!\w)", said), end
        assert f"`{end}`" in names


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
