"""The socket for orders on the service's own machine: where it is, who gets there, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from kunicorn.commands.control import RunningService
from kunicorn.observe import http, requests
from tests.fakes.complete_settings import settings_of
from tests.unit.observe.serving import Service, serving

PORT = 70_000 + 4 * os.getpid()
ANOTHER = PORT + 1
"""None that is: the names are of this test alone, also those that every process of the machine sees."""
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users and namespaces need root")


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only place for sockets. A short one: pytest's own directories leave no room for a name."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o1777)
    monkeypatch.setattr(requests, "_TEMPORARY", str(made))
    monkeypatch.delenv("TMPDIR", raising=False)
    yield made
    shutil.rmtree(made)


@contextmanager
def listening(port: int = PORT) -> Iterator[str | bytes]:
    """The address at which a service with that port listens until it stops in good order."""
    with requests.listen(port) as sock:
        sock.listen()
        yield sock.getsockname()
        requests.forget(sock.getsockname())


def within(directory: Path) -> list[Path]:
    """The files that are there."""
    return list(directory.iterdir())


def killed(port: int = PORT) -> Path:
    """The file that a service leaves behind which has no time to stop."""
    with requests.listen(port) as sock:
        sock.listen()
        return Path(sock.getsockname())


def test_the_socket_is_a_file_for_its_user_alone_and_gone_when_the_service_is(directory: Path) -> None:
    before = os.umask(0)
    try:
        with listening() as path:
            (file,) = directory.iterdir()
            assert str(file) == path
            assert stat.filemode(file.lstat().st_mode) == "srw-------"
            requests.connect(PORT, 10).close()
    finally:
        os.umask(before)
    assert within(directory) == []
    with pytest.raises(ConnectionRefusedError):
        requests.connect(PORT, 10)


async def test_orders_come_by_the_file_and_a_server_that_stops_removes_it(directory: Path) -> None:
    service = Service()
    async with serving(service) as server:
        running = RunningService.of(settings_of(http={"port": server.port}), None, None)
        assert (await asyncio.to_thread(running.ask, "resume", {}))["ok"]
        assert [stat.S_ISSOCK(file.lstat().st_mode) for file in within(directory)] == [True]
    assert within(directory) == []
    assert service.done == [("resume", [])]


def test_what_a_killed_service_has_left_is_replaced(directory: Path) -> None:
    left = killed()
    with listening() as path:
        assert path == str(left)
        requests.connect(PORT, 10).close()
    assert within(directory) == []


def test_files_of_killed_services_with_other_ports_go_and_no_others(directory: Path) -> None:
    left, young = killed(ANOTHER), killed(ANOTHER + 1)
    foreign = directory / "kunicorn-http-notes"
    foreign.write_text("kept")
    with listening(ANOTHER + 2) as served:
        for file in (left, Path(str(served)), foreign):
            os.utime(file, (0, time.time() - 3600))
        with listening() as own:
            assert {*directory.iterdir()} == {young, Path(str(served)), foreign, Path(str(own))}


def test_a_second_service_at_another_port_has_another_name() -> None:
    with listening() as one, listening(ANOTHER) as other:
        assert one != other
        requests.connect(PORT, 10).close()
        requests.connect(ANOTHER, 10).close()


def test_what_is_no_socket_or_is_served_is_left_alone_and_the_name_alone_is_used(directory: Path) -> None:
    left = killed()
    left.unlink()
    left.write_text("somebody's")
    with listening() as address:
        assert isinstance(address, bytes)
        assert left.read_text() == "somebody's"
        requests.connect(PORT, 10).close()
    left.unlink()
    with listening() as first, listening() as second:
        assert (type(first), type(second)) == (str, bytes)
        assert left.is_socket()


def test_a_path_that_is_too_long_for_a_socket_is_passed_over(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = directory / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr(requests, "_TEMPORARY", str(long))
    with listening() as address:
        assert isinstance(address, bytes)
        requests.connect(PORT, 10).close()
    monkeypatch.setenv("TMPDIR", str(directory))
    with listening() as address:
        assert str(address).startswith(f"{directory}/kunicorn-http-{PORT}-")
        requests.connect(PORT, 10).close()
    assert list(long.iterdir()) == []


async def test_a_service_without_a_place_for_a_file_takes_orders_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_TEMPORARY", "/nonexistent")
    log = mock.Mock()
    monkeypatch.setattr(http, "log", log)
    async with serving(Service()) as server:
        running = RunningService.of(settings_of(http={"port": server.port}), None, None)
        assert (await asyncio.to_thread(running.ask, "resume", {}))["ok"]
    said = [str(call.args[0]) for call in log.info.mock_calls]
    assert any("by a socket without a file: neither /tmp nor TMPDIR takes one" in line for line in said), said
    log.warning.assert_not_called()


_READ_ONLY_TMP = ("unshare", "--mount", "sh", "-ec", 'mount -t tmpfs -o ro tmpfs /tmp; exec "$@"', "sh")
_ON_READ_ONLY = f"""
from kunicorn.observe import http, requests
sock = requests.listen({PORT})
sock.listen()
requests.connect({PORT}, 10).close()
print(type(sock.getsockname()).__name__)
"""


@as_root
def test_where_nothing_can_be_written_the_name_alone_is_used() -> None:
    done = subprocess.run(
        [*_READ_ONLY_TMP, sys.executable, "-c", _ON_READ_ONLY],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "bytes\n"), done.stderr


def as_nobody(act: Callable[[], object]) -> int:
    """Exit code of a process of another user that does this: 0, or 1 where it raises `PermissionError`."""
    with warnings.catch_warnings():
        # Threads of the pool are none of the child's: it acts and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 2
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        act()
        code = 0
    except PermissionError:
        code = 1
    finally:
        os._exit(code)


@as_root
def test_another_user_does_not_get_to_the_file() -> None:
    with listening() as path:
        assert as_nobody(lambda: requests.connect(PORT, 10)) == 1
        Path(str(path)).chmod(0o666)
        assert as_nobody(lambda: requests.connect(PORT, 10)) == 0, "it was the mode"


def _hung_up_on(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(path))
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"POST /actions/drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
            assert sock.recv(1) == b""


@as_root
async def test_another_user_who_gets_to_the_socket_is_hung_up_on_without_a_word_in_the_log(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # What earlier tests have left is not to be told here.
    caplog.clear()
    service = Service()
    async with serving(service):
        (file,) = within(directory)
        os.chmod(file, 0o666)
        assert await asyncio.to_thread(as_nobody, lambda: _hung_up_on(file)) == 0
    gc.collect()  # A task's exception that nobody has asked for is logged when the task goes.
    assert service.done == []
    assert caplog.text == ""


@as_root
async def test_a_file_of_another_user_keeps_nobody_from_acting(directory: Path) -> None:
    name = killed()
    name.unlink()
    assert as_nobody(lambda: requests.listen(PORT).close()) == 0
    assert name.lstat().st_uid == NOBODY
    with listening() as address:
        assert isinstance(address, bytes), "what another user has made is not removed"
        requests.connect(PORT, 10).close()
