"""Linux, which the service needs, and what stands in for its parts where commands run on another platform. Small, as it
is part of every start.

A developer's macOS runs `kunicorn.testing`, the commands that ask and move a group, and the demo with one worker. Only
`kunicorn run` needs processes that are told of one another's death by the kernel.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kunicorn.errors import ConfigError

if TYPE_CHECKING:
    from socket import socket

IS_LINUX = sys.platform == "linux"
_MAX_PACKET = 1 << 17


def need_linux() -> None:
    """Raise `ConfigError` on any other platform. Caller: `kunicorn run`, before it reads anything."""
    if not IS_LINUX:
        raise ConfigError(
            f"the service needs Linux, and this is {sys.platform}: run it in a container; kunicorn.testing, check, "
            "lag, offsets, dlq, replay-one and demo work here"
        )


def memory_file(name: str) -> int:
    """A descriptor of an empty file that is gone with its last descriptor. In memory on Linux, else one on the disk
    that has no name any more.
    """
    if IS_LINUX:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    import tempfile

    fd, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return fd


def stat_fields(of: str) -> list[str]:
    """What `/proc/<of>/stat` says of a process, or thread, behind its name, which may have any character (proc(5)): its
    state first. Raises `OSError` where there is none.
    """
    with open(f"/proc/{of}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()


def receive_descriptors(sock: socket, nbytes: int, most: int) -> tuple[bytes, list[int], int]:
    """A packet, the descriptors that came with it, and the message's flags. No program inherits them, as it would those
    of `socket.recv_fds`, which drops the flag for that.
    """
    import array
    import socket

    fds = array.array("i")
    body, ancillary, flags, _ = sock.recvmsg(nbytes, socket.CMSG_LEN(most * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return body, list(fds), flags


def packet_pair() -> tuple[socket, socket]:
    """Two ends of a connection that keeps messages of up to 128 KB whole. Off Linux an end does not learn that the
    other is closed, so that who receives needs a time-out.
    """
    import socket

    if IS_LINUX:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in pair:
        for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, size, _MAX_PACKET)
    return pair


def usable_cpus() -> int:
    """Number of CPUs that this process may be scheduled on; off Linux, that the machine has."""
    return len(os.sched_getaffinity(0)) if IS_LINUX else os.cpu_count() or 1
