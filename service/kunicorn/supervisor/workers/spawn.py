"""The template's process is started first of all: while it imports the handler and the Kafka client on another core,
the supervisor imports what only it needs. So nothing here loads more than a message takes, and no event loop is asked
for; `kunicorn.supervisor.workers.template` has the other end once there is one.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import NamedTuple

from kunicorn.allocator import library_of, with_library
from kunicorn.ipc.messages import Preload, encode
from kunicorn.settings import Settings
from kunicorn.settings.security import without_secrets

_CHILD_FD = 3
_HEARD = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Spawned(NamedTuple):
    """A template's process, told what to import. Whoever drops it closes the socket, and the process ends."""

    sock: socket.socket
    pid: int
    pidfd: int


def preload(settings: Settings) -> Preload:
    """The template's first message."""
    return Preload(
        entrypoints=[handler.entrypoint for handler in settings.every_handler],
        path=[os.getcwd(), *sys.path],
        supervisor=os.getpid(),
        log_level=settings.log.level,
        log_format=settings.log.format,
        allocator=library_of(settings.workers.allocator, os.environ),
        middlewares=list(dict.fromkeys(each for handler in settings.every_handler for each in handler.middlewares)),
    )


def spawn(message: Preload) -> Spawned:
    """Exec the template and tell it what to import. Takes milliseconds. Raises `OSError` for want of processes, memory
    or descriptors.

    Caller: the main thread, before anything reaps children: the process dies with the thread that started it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        return _spawn(message, ours, theirs)
    except OSError:
        ours.close()
        raise


def _spawn(message: Preload, ours: socket.socket, theirs: socket.socket) -> Spawned:
    with theirs:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "kunicorn.worker.template", str(_CHILD_FD)],
            with_library(without_secrets(os.environ), message.allocator),
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHILD_FD)],
            setpgroup=0,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE],
        )
    pidfd = os.pidfd_open(pid)
    ours.send(encode(message))
    ours.setblocking(False)
    return Spawned(ours, pid, pidfd)


def hold_signals() -> None:
    """Those that the service hears wait from now on: one that comes before anybody listens would kill the process
    without an order, or as PID 1 be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def release_signals() -> None:
    """Let come what has waited. Caller: the main thread, once it listens."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
