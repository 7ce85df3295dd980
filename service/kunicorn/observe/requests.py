"""Requests to act, their answers, and the local socket they may come by. Small, as commands and the supervisor's start
load it: loads no HTTP server.

On its own machine the service takes orders from its own user without a token, over a socket with a name and no file
(Linux' abstract namespace), so nothing is left behind and a read-only root does not matter; there is one per network
namespace and port. Both ends ask the kernel who the other is: the service answers its own user and root, a command
believes its own user and root. No browser can reach it, nor another machine.
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


def address(port: int) -> str:
    """Name of the socket, by the port of [http]."""
    return f"\0kunicorn-http-{port}"


def may_deal_with_us(sock: socket.socket) -> bool:
    """Whether the process at the other end runs as our own user, or as root."""
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid in {os.getuid(), 0}


def listen(port: int) -> socket.socket:
    """Listen on the local socket. Raises `OSError` where the name is taken."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(address(port))
    except OSError:
        sock.close()
        raise
    return sock


def connect(port: int, timeout: float) -> socket.socket:
    """Connect to the local socket. Raises `OSError` where nobody listens there, or a process of another user."""
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
