"""Effects and offset in one transaction of a real PostgreSQL: each effect is there once, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.postgres import postgres
from tests.system.members import MemberProcess
from tests.system.scene import Scene
from tests.waiting import wait_until


@pytest.fixture
def dsn() -> Iterator[str]:
    """A database of the test's own."""
    with postgres() as started:
        yield started


def settings(dsn: str) -> dict[str, dict[str, object]]:
    """Deaths are ours, not the records': no record is to be blamed for them."""
    return {
        "handler": {"options": {"dsn": dsn}},
        "workers": {"max_crashes": 1000},
        "group": {"session_timeout_ms": 6000, "allow_short_session_timeout": True},
    }


def payments(dsn: str) -> list[tuple[int, int]]:
    """Every effect there is: partition and offset."""
    with psycopg.connect(dsn, autocommit=True) as db:
        if db.execute("SELECT to_regclass('payments')").fetchone() == (None,):
            return []
        return [(partition, at) for partition, at in db.execute("SELECT partition, at FROM payments ORDER BY 1, 2")]


@pytest.mark.long
def test_a_worker_that_dies_on_either_side_of_the_commit_repeats_no_effect(
    scene: Callable[..., Scene], dsn: str
) -> None:
    played = scene(1, workers=1, handler="keeping:PostgresPayments", settings=settings(dsn))
    played.send(0, "a", "die inside", "b", "die after", "c")
    member = played.members.start()
    member.wait(lambda: (0, 4) in payments(dsn), "the last record's effect")
    assert played.marked("0@1 die inside", "0@3 die after")
    assert member.stop() == 0
    assert payments(dsn) == [(0, at) for at in range(5)]


@pytest.mark.long
def test_every_effect_is_there_once_through_kills_of_workers_and_supervisors_and_rebalances(
    scene: Callable[..., Scene], dsn: str
) -> None:
    partitions, records = 4, 400
    chance = random.Random(20261121)
    played = scene(partitions, workers=2, handler="keeping:PostgresPayments", settings=settings(dsn))
    for partition in range(partitions):
        played.send(partition, *["slow"] * records)
    members = [played.members.start(), played.members.start()]
    expected = [(partition, at) for partition in range(partitions) for at in range(records)]
    deadline = time.monotonic() + 240
    while len(payments(dsn)) < len(expected) and time.monotonic() < deadline:
        enough = min(len(payments(dsn)) + 60, len(expected))
        wait_until(lambda least=enough: len(payments(dsn)) >= least, "60 more effects", every=0.2)  # type: ignore[misc]
        members = _harm(played, members, chance)
    assert payments(dsn) == expected
    for member in members:
        # One that has just been started knows nothing of signals yet.
        member.wait(member.status, "it to serve")
        assert member.stop() == 0


def _harm(played: Scene, members: list[MemberProcess], chance: random.Random) -> list[MemberProcess]:
    """One of: a worker is killed, a member is killed or leaves, and another one comes; the members from now on."""
    victim, *others = chance.sample(members, len(members))
    # One that has just been started knows nothing of signals yet.
    victim.wait(victim.status, "it to serve")
    harm = chance.choice(["worker", "worker", "supervisor", "leave"])
    if harm == "worker":
        if workers := victim.workers():
            os.kill(chance.choice(workers)["pid"], signal.SIGKILL)
        return members
    if harm == "supervisor":
        victim.kill()
    else:
        assert victim.stop() == 0
    return [*others, played.members.start()]
