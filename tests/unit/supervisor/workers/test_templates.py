"""One ready template at hand: what is used up by those that die, and what happens where none can be started."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kunicorn.backoff import Backoff
from kunicorn.errors import HandlerLoadError
from kunicorn.ipc.messages import Forked, Preload, TemplateReady, encode
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.workers import template as module
from kunicorn.supervisor.workers.spawn import Spawned, spawn
from kunicorn.supervisor.workers.template import Template, TemplateDied, Templates
from tests.fakes.driver import until
from tests.waiting import sleeps

PRELOAD = Preload(["shop:handle"], [], 1, "info", "text", "")
WITHOUT_END = 10_000


class Played:
    """A template that is ready at once, unless the handler's code is broken."""

    keepers: frozenset[str] = frozenset()
    how_it_ended = "SIGKILL"
    broken = False
    importing = False

    def __init__(self, spawned: Spawned) -> None:
        self.pid = spawned.pid
        self.dead, self.killed = asyncio.Event(), asyncio.Event()
        self.closed = False

    async def ready(self) -> TemplateReady:
        if Played.broken:
            raise HandlerLoadError("SyntaxError: invalid syntax")
        if Played.importing:
            # A socket that is closed on this side wakes nobody who waits for it to be readable.
            await self.killed.wait()
            raise TemplateDied("the template is gone")
        return TemplateReady(True, "", 0.0, [])

    def close(self) -> None:
        self.closed = True
        self.dead.set()

    async def retire(self) -> None:
        self.close()

    async def abort(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.killed.set()
        self.dead.set()


class Machine:
    """Starts templates, unless it is out of processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = 0
        self.refusals = 0
        monkeypatch.setattr(module, "spawn", self.spawn)
        monkeypatch.setattr(module, "Template", Played)
        monkeypatch.setattr(Played, "broken", False)
        monkeypatch.setattr(Played, "importing", False)
        monkeypatch.setattr(module, "_BACKOFF", Backoff(0.0, 0.0))
        in_force: Any = mock.Mock(spec=SettingsInForce)
        self.templates = Templates(self.spawn(PRELOAD), PRELOAD, in_force, Metrics())

    def spawn(self, preload: Preload) -> Spawned:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.started += 1
        return Spawned(mock.Mock(), self.started, 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


async def turns(condition: Callable[[], bool]) -> None:
    for _ in range(WITHOUT_END):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("waited in vain")


async def test_the_socket_of_an_adopted_template_that_dies_is_closed(machine: Machine) -> None:
    keeping = asyncio.ensure_future(machine.templates.keep())
    await machine.templates.current()
    adopted = await machine.templates.prepare(PRELOAD, 60.0)
    await machine.templates.adopt(adopted, PRELOAD)
    adopted.dead.set()
    await turns(lambda: machine.started == 3)
    assert adopted.closed  # type: ignore[attr-defined]
    assert not (await machine.templates.current()).closed  # type: ignore[attr-defined]
    keeping.cancel()


async def test_a_dead_template_is_replaced_as_soon_as_processes_are_to_be_had_again(machine: Machine) -> None:
    keeping = asyncio.ensure_future(machine.templates.keep())
    first = await machine.templates.current()
    machine.refusals = 3
    first.dead.set()
    await turns(lambda: machine.started == 2)
    assert not keeping.done()
    keeping.cancel()


async def test_a_shortage_of_processes_may_last_for_days(machine: Machine) -> None:
    keeping = asyncio.ensure_future(machine.templates.keep())
    first = await machine.templates.current()
    # Two to that power is no number of seconds that a float can hold.
    machine.refusals = 1100
    first.dead.set()
    await turns(lambda: machine.started == 2 or keeping.done())
    assert not keeping.done()
    keeping.cancel()


async def test_one_that_still_imports_when_another_is_adopted_is_ended_and_the_adopted_one_is_kept(
    machine: Machine,
) -> None:
    keeping = asyncio.ensure_future(machine.templates.keep())
    first = await machine.templates.current()
    adopted: Any = await machine.templates.prepare(PRELOAD, 60.0)
    Played.importing = True
    first.dead.set()
    await turns(lambda: machine.started == 3)
    importing: Any = machine.templates._template
    await machine.templates.adopt(adopted, PRELOAD)
    await turns(lambda: importing.closed and importing.dead.is_set())
    assert machine.started == 3, "none is made in its place"
    assert not adopted.closed
    Played.importing = False
    adopted.dead.set()
    await turns(lambda: machine.started == 4)
    assert await machine.templates.current() is not adopted
    keeping.cancel()


async def test_the_death_of_an_adopted_template_is_seen_although_the_one_before_does_not_end(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped, or that waits in what the handler has registered with atexit."""
    keeping = asyncio.ensure_future(machine.templates.keep())
    first: Any = await machine.templates.current()
    monkeypatch.setattr(first, "close", lambda: None)
    adopted = await machine.templates.prepare(PRELOAD, 60.0)
    await machine.templates.adopt(adopted, PRELOAD)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not first.dead.is_set()
    adopted.dead.set()
    await turns(lambda: machine.started == 3)
    assert await machine.templates.current() is not adopted
    keeping.cancel()


async def test_the_pid_of_a_template_that_has_ended_is_nobodys(machine: Machine) -> None:
    keeping = asyncio.ensure_future(machine.templates.keep())
    first = await machine.templates.current()
    assert machine.templates.owns(first.pid)
    machine.refusals = 1000
    first.dead.set()
    assert not machine.templates.owns(first.pid), "another process may have it, and is to be reaped"
    keeping.cancel()


@pytest.mark.parametrize("refusals", [0, 1000], ids=["the handler's code is broken", "there are no processes"])
async def test_a_template_that_is_adopted_while_none_can_be_made_is_the_one_to_fork_from(
    machine: Machine, refusals: int
) -> None:
    keeping = asyncio.ensure_future(machine.templates.keep())
    first = await machine.templates.current()
    adopted = await machine.templates.prepare(PRELOAD, 60.0)
    Played.broken, machine.refusals = not refusals, refusals
    first.dead.set()
    await turns(lambda: machine.templates.state == "backing-off" or machine.refusals < refusals)
    await machine.templates.adopt(adopted, PRELOAD)
    Played.broken, machine.refusals = False, 0
    started = machine.started
    for _ in range(20):
        await asyncio.sleep(0)
    assert machine.started == started, "none is made in its place"
    assert await machine.templates.current() is adopted
    adopted.dead.set()
    await turns(lambda: machine.started == started + 1)
    assert machine.templates.state == "ready"
    keeping.cancel()


async def test_an_import_that_hangs_is_ended_and_fails_the_reload(machine: Machine) -> None:
    Played.importing = True
    with pytest.raises(
        HandlerLoadError, match=r"'shop:handle' takes longer than 0\.01 s \(workers\.start_timeout_ms\)"
    ):
        await machine.templates.prepare(PRELOAD, 0.01)
    assert not machine.templates.owns(machine.started)


async def test_a_template_that_is_aborted_says_where_its_import_waits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    hanging = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(3600)\n"
    template = _importing(tmp_path, "hangs_at_import", hanging)
    # Asleep, and not at line 2 still: a Python that is between two calls may tell neither.
    await until(lambda: begun.exists() and sleeps(template.pid))
    await template.abort()
    await until(template.dead.is_set)
    template.close()
    assert 'hangs_at_import.py", line 3' in capfd.readouterr().err
    assert "SIGABRT" in str(template.how_it_ended)


async def test_a_template_whose_import_fails_ends_beside_a_thread_that_the_import_has_started(tmp_path: Path) -> None:
    failing = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\nraise ValueError('no')\n"
    )
    template = _importing(tmp_path, "fails_behind_a_thread", failing)
    with pytest.raises(HandlerLoadError, match="raised ValueError: no"):
        await template.ready()
    try:
        await until(template.dead.is_set)
    finally:
        template.kill()
        template.close()
    assert template.how_it_ended == "exit 3"


@pytest.mark.parametrize(("load_offsets", "keeps"), [("None", False), ("lambda self, partitions: {}", True)])
async def test_a_handler_whose_load_offsets_is_none_is_no_keeper_of_offsets(
    tmp_path: Path, load_offsets: str, keeps: bool
) -> None:
    name = f"keeps_offsets_{keeps}"
    source = f"class Orders:\n  load_offsets = {load_offsets}\n  def __call__(self, record): ...\nhandle = Orders()\n"
    template = _importing(tmp_path, name, source)
    await template.ready()
    assert template.keepers == (frozenset({f"{name}:handle"}) if keeps else frozenset())
    template.close()
    await until(template.dead.is_set)


_ALONE = 61_427
"""A user of whom nobody else has processes: those of root are not limited."""
_LIMITED = """
import os, resource
if os.getuid() == 0:
    os.setuid({user})
here, tries, (_, most) = os.getpid(), [], resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, most))

def lift_after_two_tries():
    tries.append(1)
    if os.getpid() == here and len(tries) > 2:
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))

os.register_at_fork(before=lift_after_two_tries)
def handle(record): ...
"""


@pytest.mark.parametrize("processes", [1, 2], ids=["for the process between them", "for the worker"])
async def test_a_fork_that_fails_for_want_of_processes_is_told_and_the_template_goes_on(
    tmp_path: Path, processes: int
) -> None:
    if processes > 1 and os.getuid() != 0:
        pytest.skip("only root can be a user without other processes")
    name = f"limited_to_{processes}"
    template = _importing(tmp_path, name, _LIMITED.format(user=_ALONE, processes=processes))
    await template.ready()
    channel, ledger = socket.socketpair()
    with channel, ledger:
        for _ in range(2):
            with pytest.raises(OSError, match=r"the fork failed with EAGAIN .* pids limit") as failed:
                await template.fork(0, channel, ledger.fileno())
            assert failed.value.errno == errno.EAGAIN
        child = await template.fork(0, channel, ledger.fileno())
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
    os.close(child.pidfd)
    assert not template.dead.is_set()
    template.close()
    await until(template.dead.is_set)
    assert template.how_it_ended == "exit 0"


def _importing(folder: Path, name: str, source: str) -> Template:
    (folder / f"{name}.py").write_text(source)
    path = [str(folder), *sys.path]
    return Template(spawn(Preload([f"{name}:handle"], path, os.getpid(), "info", "text", "")))


def _asleep(sock: socket.socket) -> Spawned:
    pid = os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
    return Spawned(sock, pid, os.pidfd_open(pid))


async def test_a_workers_pidfd_is_inherited_by_no_program() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template = Template(_asleep(ours))
    channel, ledger = socket.socketpair()
    with theirs, channel, ledger:
        forking = asyncio.ensure_future(template.fork(0, channel, ledger.fileno()))
        await asyncio.sleep(0)
        for fd in socket.recv_fds(theirs, 1 << 16, 2)[1]:
            os.close(fd)
        socket.send_fds(theirs, [encode(Forked(os.getpid()))], [channel.fileno()])
        child = await forking
    assert not os.get_inheritable(child.pidfd)
    os.close(child.pidfd)
    template.close()
    template.kill()
    await template.dead.wait()
