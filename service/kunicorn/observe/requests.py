"""How a service is asked to act: the request, the answer, the socket of its own machine. Light: loads no HTTP server.

What an action is asked for and what comes of it: shared by the HTTP server and by who acts. Loads no server.

The socket by which a service takes orders from its own machine, without a token.

It has a name and no file (Linux' abstract namespace), so nothing is left behind and a read-only root does not matter;
there is one per network namespace and port. Both ends ask the kernel who the other is: the service answers its own user
and root, a command believes its own user and root. No browser can reach it, nor another machine.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a seek is to go; exactly one is set."""

    edge: Literal["earliest", "latest"] | None = None
    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SeekMove:
    """What a seek means for one partition."""

    topic: str
    partition: int
    position: int | None
    """The next offset to handle, now; None while it is not known."""
    committed: int | None
    then: int
    log_start: int
    log_end: int
    problem: str
    """Why it cannot be; empty if it can."""


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, or why it did nothing."""

    ok: bool
    said: str
    moves: Sequence[SeekMove] | None = None
    """Of a seek."""


_UCRED = struct.Struct("3i")


def address(port: int) -> str:
    """The socket's name, by the port of [http]."""
    return f"\0kunicorn-http-{port}"


def may_deal_with_us(sock: socket.socket) -> bool:
    """Whether the process at the other end is our own user's, or root's."""
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid in {os.getuid(), 0}


def listen(port: int) -> socket.socket:
    """Raises `OSError` where the name is taken."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(address(port))
    except OSError:
        sock.close()
        raise
    return sock


def connect(port: int, timeout: float) -> socket.socket:
    """Raises `OSError` where nobody listens there, or somebody whom we do not believe."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(address(port))
        if os.getuid() != 0 and not may_deal_with_us(sock):
            raise PermissionError("another user's process listens there")
    except OSError:
        sock.close()
        raise
    return sock
