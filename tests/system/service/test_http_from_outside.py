"""The HTTP server from outside: what it shows, what it refuses, and that clients cannot disturb the service."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from kunicorn.ipc import clock
from tests.system.members import MemberProcess
from tests.system.producing import Flow
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
PAGES = ("/", "/livez", "/readyz", "/metrics", "/status")


def ask(member: MemberProcess, method: str, path: str) -> int:
    """The status code of one request."""
    request = urllib.request.Request(f"http://127.0.0.1:{member.port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_pages_show_every_partition_and_no_secret_and_nothing_else_exists(scene: SceneMaker) -> None:
    secrets = {"database_password": "hunter2", "innocent": "hunter3"}
    stage = scene(5, handler="optioned:handle", settings={"handler.options": secrets})
    stage.send(0, *["x"] * 10)
    member = stage.members.start(env={"KUNICORN_KAFKA__CLIENT_ID": "from-the-environment"})
    member.wait_running(5)
    code, body = member.get("/status")
    assert code == 200
    status = json.loads(body)
    assert sorted(p["partition"] for p in status["partitions"]) == [0, 1, 2, 3, 4], "invariant 7"
    assert {p["state"] for p in status["partitions"]} == {"running"}
    assert status["client_id"] == "from-the-environment"
    for page in PAGES:
        code, body = member.get(page)
        assert code == 200, (page, body)
        assert "hunter" not in body, page
    assert "hunter" not in member.output()
    assert [ask(member, "GET", path) for path in ("/index.html", "/statusx", "/status/", "/etc/passwd")] == [404] * 4
    assert [ask(member, method, "/status") for method in ("POST", "PUT", "DELETE")] == [405] * 3
    assert ask(member, "HEAD", "/livez") == 200
    assert member.stop() == 0


@pytest.mark.long
@pytest.mark.scenario("ConsumerNetworkThreadTest")
def test_a_thousand_idle_and_hostile_connections_delay_no_heartbeat(scene: SceneMaker) -> None:
    stage = scene(4)
    member = stage.members.start()
    with Flow(stage.kafka.bootstrap, stage.topic, 200), ExitStack() as open_sockets:
        member.wait_running(4)
        generation, rebalances = member.generation(), len(stage.rebalances())
        for number in range(1000):
            client = open_sockets.enter_context(socket.create_connection(("127.0.0.1", member.port), timeout=60))
            with suppress(ConnectionError):  # The oldest are closed for those that come after them.
                client.sendall(SLOW[number % len(SLOW)])
        began, ages = clock.now(), []

        def watched() -> bool:
            ages.append(member.status()["group"]["heartbeat_age"])
            assert ask(member, "GET", "/livez") == 200
            assert refused(member, b"GET /livez HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n") in {b"400", b""}
            return clock.now() - began > 5

        member.wait(watched, "five seconds beside them")
        assert max(ages) < 45.0 / 4, "of its session; heartbeats are a second apart"
        assert (member.generation(), len(stage.rebalances())) == (generation, rebalances)
    assert member.stop() == 0, "open connections do not keep it"


SLOW = (
    b"",
    b"GET /status HTTP/1.1\r\nHost: x\r\nX-Never-Ends: ",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /actions/drain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{",
)
"""Says nothing; never finishes its request; asks a lot and reads nothing; speaks TLS; listens and never reads; begins a
body and never ends it."""


def refused(member: MemberProcess, data: bytes) -> bytes:
    """The status code of the answer to these bytes; nothing where the connection was just closed."""
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", member.port), timeout=60) as client:
        client.sendall(data)
        return client.recv(100)[9:12]
    return b""
