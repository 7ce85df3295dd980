"""Brokers that nobody can reach: the service keeps trying, says so, and lets itself be stopped."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.kafka.ports import kept_port
from tests.system.members import MemberProcess, Members
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
GroupMaker = Callable[..., Members]
TRYING = "no broker answers, trying again in"


@contextmanager
def silent_server() -> Iterator[str]:
    """Accepts connections (the kernel does) and never says a word, as a frozen broker or a wrong port may."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def nobody() -> Iterator[str]:
    """A port that refuses connections."""
    yield f"127.0.0.1:{kept_port()}"


@contextmanager
def unknown_host() -> Iterator[str]:
    """A name that no server resolves (RFC 2606)."""
    yield "kafka.invalid:9092"


def says_what_is_wrong(member: MemberProcess, server: str) -> bool:
    """/status names the server and the failure."""
    problem = str(member.status().get("problem"))
    return "no broker answers" in problem and server.removesuffix(":9092") in problem


@pytest.mark.parametrize("place", [nobody, unknown_host, pytest.param(silent_server, marks=pytest.mark.long)])
@pytest.mark.scenario("testCloseCoordinatorNotKnownWithCommits")
def test_without_a_broker_it_keeps_trying_says_so_and_stops_at_once(
    members_of: GroupMaker, topic: str, place: Callable[[], Iterator[str]]
) -> None:
    with place() as server:  # type: ignore[attr-defined]
        settings = {"kafka": {"request_timeout_ms": 500}}
        member = members_of(server, topic, entrypoint="tests.system.handlers.audited:handle", settings=settings).start()
        member.wait(lambda: says_what_is_wrong(member, server), "the problem in /status")
        assert member.get("/livez")[0] == 200, "a restart would cure nothing"
        code, reasons = member.get("/readyz")
        assert code == 503
        assert server.removesuffix(":9092") in reasons
        member.wait(lambda: member.output().count(TRYING) >= 4, "some more tries")
        assert member.stop() == 0
    assert "Traceback" not in member.output()


@pytest.mark.scenario("testCoordinatorDiscoveryExponentialBackoff")
def test_tries_come_further_and_further_apart(members_of: GroupMaker, topic: str) -> None:
    with nobody() as server:
        member = members_of(server, topic, entrypoint="tests.system.handlers.audited:handle").start()
        member.wait(lambda: member.output().count(TRYING) >= 6, "some tries")
        assert member.stop() == 0
    waits = [float(seconds) for seconds in re.findall(rf"{TRYING} ([\d.]+) s", member.output())]
    assert waits[0] < 0.5 < waits[5] < 10.0


def test_a_stop_while_the_handler_is_imported_does_not_wait_for_it(scene: SceneMaker) -> None:
    stage = scene(1, handler="slow_import:handle", env={"IMPORT_SECONDS": "600"})
    member = stage.members.start()
    member.wait(lambda: "SERVING" in member.output().upper() and member.status()["brokers_reached"], "the broker")
    assert member.status()["template"] == "starting", "the handler is still being imported"
    assert member.stop() == 0
    assert "Traceback" not in member.output()
