"""A standard output that nobody reads: log lines are dropped and counted, the service goes on (invariant 5)."""

from __future__ import annotations

import fcntl
import os
import termios
from collections.abc import Callable
from struct import unpack

import pytest

from kunicorn.ipc import clock
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.system.service.takeover import SESSION, short_sessions

SceneMaker = Callable[..., Scene]


def fill(pipe: int) -> int:
    """Write until nothing more goes in; how much that was."""
    written = 0
    os.set_blocking(pipe, False)
    try:
        while True:
            written += os.write(pipe, b"." * 4096)
    except BlockingIOError:
        return written
    finally:
        os.set_blocking(pipe, True)


def unread(pipe: int) -> int:
    """Bytes that wait in the pipe."""
    waiting: bytes = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int(unpack("i", waiting)[0])


@pytest.mark.long
def test_an_output_that_nobody_reads_costs_neither_membership_nor_progress(scene: SceneMaker) -> None:
    stage = scene(4, settings=short_sessions(), env={"KUNICORN_HANDLER_MS": "2"})
    reader, writer = os.pipe()
    try:
        full = fill(writer)
        member = stage.members.start(settings={"log": {"level": "debug"}}, stdout=writer)
        with Flow(stage.kafka.bootstrap, stage.topic, 300):
            member.wait_running(4)
            generation, rebalances = member.generation(), len(stage.rebalances())
            handled = len(stage.handled(0))
            began = clock.now()
            member.wait(lambda: clock.now() - began > 2 * SESSION, "two sessions", within=3 * SESSION)
            assert member.status()["group"]["heartbeat_age"] < SESSION / 2
            assert (member.generation(), len(stage.rebalances())) == (generation, rebalances)
            assert len(stage.handled(0)) > handled + 100
        member.wait(lambda: member.lag() == 0, "everything to be committed")
        assert member.stop() == 0
        assert unread(reader) == full, "nobody has read, and nothing was written"
    finally:
        os.close(writer)
        os.close(reader)
    assert stage.judge().holds


def test_an_output_whose_reader_is_gone_stops_nothing(scene: SceneMaker) -> None:
    """EPIPE, and SIGPIPE for whoever has not ignored it."""
    stage = scene(2, workers=1)
    reader, writer = os.pipe()
    member = stage.members.start(stdout=writer)
    os.close(writer)
    member.wait_running(2)
    os.close(reader)
    stage.send(0, *["x"] * 50)
    stage.wait_handled(0, 49, member)
    assert member.stop() == 0
    assert stage.judge().holds
