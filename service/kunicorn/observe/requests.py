"""Requests to act, their answers, and the local socket they may come by. Small, as commands and the supervisor's start
load it: loads no HTTP server.

On its own machine the service takes orders from its own user without a token, over a Unix socket. It is a file of mode
0600 in the directory for temporary files: a container has one of its own, so that only who may run commands in it gets
there. Where no file can be had the socket has a name alone (Linux' abstract namespace), which every container of a pod
sees. Either way both ends ask the kernel who the other is: the service answers its own user and root, a command
believes its own user and root. No browser can reach it, nor another machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Goal:
    """Target of a seek; exactly one field is set."""

    edge: Literal["earliest", "latest"] | None = None
    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SeekMove:
    """Effect of a seek on one partition."""

    topic: str
    partition: int
    position: int | None
    """The next offset to handle, now; None while it is not known."""
    committed: int | None
    then: int
    log_start: int
    log_end: int
    problem: str
    """Why the seek is impossible; empty if it is possible."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of an action: what it did, or why it did nothing."""

    ok: bool
    said: str
    moves: Sequence[SeekMove] | None = None
    """Effects of a seek."""


_UCRED = struct.Struct("3i")
_TEMPORARY = "/tmp"  # noqa: S108 - anybody may make our file there; both ends ask who the other is
_PREFIX = "kunicorn-http-"
_SOON = 2.0
"""Seconds for a connection to what may be left over; a service that does not take it within them is there."""
_YOUNG = 60.0
"""Seconds. A file that is younger may be of a service that is about to listen."""

Address = str | bytes
"""Path of a socket's file, or its name in the abstract namespace, which begins with a zero byte."""


def _name(port: int) -> str:
    """Of the socket of the service with that port of [http]. Files are seen by containers with ports of their own, too,
    where they share a volume at /tmp. Raises `OSError` off Linux."""
    return f"{_PREFIX}{port}-{os.stat('/proc/self/ns/net').st_ino}.sock"


def _files(port: int) -> Iterator[str]:
    """Where the socket's file may be, best first. TMPDIR, which who is on call may have set otherwise, comes second.
    None where names cannot be made."""
    with contextlib.suppress(OSError):
        name = _name(port)
        for directory in dict.fromkeys((_TEMPORARY, os.environ.get("TMPDIR", ""))):
            if os.path.isabs(directory):
                yield os.path.join(directory, name)


def _abstract(port: int) -> bytes:
    return f"\0{_PREFIX}{port}".encode()


def may_deal_with_us(sock: socket.socket) -> bool:
    """Whether the process at the other end runs as our own user, or as root."""
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid in {os.getuid(), 0}


def listen(port: int) -> socket.socket:
    """Listen on the local socket, in the first place that there is. The caller has bound the port, so that a file with
    our name is left over from a service that was killed. Such files of services with other ports go, too. Raises
    `OSError` where no place is left. Whoever closes the socket calls `forget` before."""
    for path in _files(port):
        with contextlib.suppress(OSError):
            _remove_left_over(path)
            sock = _bound(path)
            _sweep(os.path.dirname(path))
            return sock
    return _bound(_abstract(port))


def _sweep(directory: str) -> None:
    """A service that listens at any port (http.port = 0) and is killed leaves a name that nobody takes again."""
    young = time.time() - _YOUNG
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < young:
                        _remove_left_over(entry.path)


def _remove_left_over(path: str) -> None:
    """Remove a socket's file of our user at which nobody listens any more, and nothing else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid():
        try:
            _connected(path, _SOON).close()
        except ConnectionRefusedError:
            os.unlink(path)


def _bound(address: Address) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Before bind, which gives a file this mode: set afterwards, others could have connected meanwhile.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def forget(address: Address) -> None:
    """Remove the file of a socket that listens. Caller: who is about to close it, and has the port still: behind it a
    successor's file may have the name."""
    if isinstance(address, str):
        with contextlib.suppress(OSError):
            os.unlink(address)


def connect(port: int, timeout: float) -> socket.socket:
    """Connect to the local socket. Raises `OSError` where nobody listens there, or a process of another user."""
    refused: OSError | None = None
    for path in _files(port):
        try:
            return _believed(path, timeout)
        except PermissionError as error:
            refused = error
        except OSError:
            continue
    try:
        return _believed(_abstract(port), timeout)
    except OSError as error:
        raise refused or error from None


def _believed(address: Address, timeout: float) -> socket.socket:
    sock = _connected(address, timeout)
    if os.getuid() != 0 and not may_deal_with_us(sock):
        sock.close()
        raise PermissionError("another user's process listens there")
    return sock


def _connected(address: Address, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock
