"""Spoilt answers through connection and driver: what cannot be read ends its connection, it is logged why, and the
member is settled again as soon as the answers make sense."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from random import Random

import pytest

from kunicorn.kafka.versions import OURS, Api
from tests.contract.conformance.coordinator.coordinated import Stage, both_protocols, heartbeats, play
from tests.contract.conformance.coordinator.told import listening
from tests.contract.conformance.coordinator.weather import ASKED, OF_EVERYBODY, Weather
from tests.contract.conformance.endurance import NEVER_ASKED, SPOILT_FOR, UNREADABLE_FOR, came_through
from tests.fakes.driver import until

FEW, MANY = 6, 100_000
PARTS = 10
"""Tests of minutes that are done side by side."""
MOST_MEMORY = 64
"""MiB that the process may grow by."""

every_answer = pytest.mark.parametrize(
    ("protocol", "api"), ASKED, ids=[f"{protocol}-{api.title}" for protocol, api in ASKED]
)


def outlive(protocol: str, api: Api, count: int, *, sockets: bool = True, part: int = 0) -> Weather:
    """A member through so many spoilt answers; what the weather was."""
    seed = os.environ.get("KUNICORN_SEED", f"spoilt {protocol} {api} {part}")
    past: list[Weather] = []

    async def story(stage: Stage) -> None:
        asyncio.get_running_loop().set_exception_handler(told.complaint)
        past.append(Weather(stage, protocol, api, Random(seed), told))
        await past[0].blow(count)

    with listening() as told:
        play(protocol, story, sockets=sockets)
    assert not told.bugs
    return past[0]


def test_every_answer_that_we_read_is_spoilt_for_a_member_or_it_is_said_why_not() -> None:
    assert {api for _, api in ASKED} | set(NEVER_ASKED) == set(OURS)


@every_answer
def test_a_member_outlives_spoilt_answers_of_every_kind(protocol: str, api: Api) -> None:
    assert outlive(protocol, api, FEW).sent >= FEW


@pytest.mark.long
@pytest.mark.timeout(1800)
@every_answer
@pytest.mark.parametrize("part", range(PARTS))
def test_a_member_outlives_a_hundred_thousand_spoilt_answers_of_every_kind(protocol: str, api: Api, part: int) -> None:
    """As many of each API in all parts together, over both protocols where it belongs to both."""
    count = MANY // PARTS // (2 if api in OF_EVERYBODY else 1)
    resident, peak = _resident(), _peak()
    past = outlive(protocol, api, count, sockets=False, part=part)
    assert past.told.unreadable > count // 10, "most are read for all that: spoil them more"
    assert _resident() - resident < MOST_MEMORY
    assert _peak() - peak < MOST_MEMORY
    came_through(SPOILT_FOR.format(protocol=protocol), api.title, past.sent, part)
    came_through(UNREADABLE_FOR.format(protocol=protocol), api.title, past.told.unreadable, part)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@both_protocols
def test_an_answer_that_cannot_be_read_closes_the_coordinators_connections_and_the_reason_is_logged(
    protocol: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> None:
        member = await stage.start(group_protocol=protocol)
        await stage.settled(member)
        api = heartbeats(protocol)
        connections = stage.broker.connections
        stage.broker.plan(api, lambda asked: asked.correlation_id.to_bytes(4, "big") + b"\0\0")
        await until(lambda: stage.broker.connections > connections)
        await stage.settled(member)

    play(protocol, story)
    said = capfd.readouterr().err
    assert "a connection is closed, and another one takes its place: " in caplog.text
    assert "the coordinator is looked up anew: " in said
    assert "cannot be read: BufferUnderflow" in said
