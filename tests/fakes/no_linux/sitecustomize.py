"""A platform that is not Linux, for a process that has this directory on its PYTHONPATH, and for its children: Python
imports this file before anything else.

What macOS lacks is taken away: memfd, pidfd, prctl, affinity, epoll, CLOCK_BOOTTIME, packets that keep their order over
Unix sockets, /proc and /sys. So code that asks for one of them fails here as it would there. What macOS does otherwise
(its scheduler, its file system, its wheels) is not played.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import sys
import sysconfig
import time
import types
from typing import Any

_ABSENT: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (os, ("memfd_create", "MFD_CLOEXEC", "pidfd_open", "P_PIDFD", "sched_getaffinity", "sched_setaffinity")),
    (os, ("eventfd", "splice", "posix_fallocate", "getrandom", "setns", "unshare")),
    (signal, ("pidfd_send_signal",)),
    (select, ("epoll",)),
    (socket, ("SO_PEERCRED",)),
    (time, ("CLOCK_BOOTTIME",)),
)
_NO_DIRECTORIES = ("/proc", "/sys")

for module, names in _ABSENT:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sysconfig.get_config_vars()  # Read while this is still the platform that Python was built for.
sys.platform = "darwin"
# What the standard library finds there and not here.
proxies: Any = types.ModuleType("_scproxy")
proxies._get_proxies = proxies._get_proxy_settings = dict
sys.modules["_scproxy"] = proxies
uname = os.uname()
os.uname = lambda: os.uname_result(("Darwin", uname.nodename, "24.0.0", "Darwin Kernel", "arm64"))


class _NoPrctl(ctypes.CDLL):
    """The C library without what is Linux's own."""

    def __getattr__(self, name: str) -> Any:
        if name == "prctl":
            raise AttributeError("dlsym(RTLD_DEFAULT, prctl): symbol not found")
        return super().__getattr__(name)


ctypes.CDLL = _NoPrctl  # type: ignore[misc]
_pair = socket.socketpair


def _socketpair(family: int | None = None, type: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
    if type == getattr(socket, "SOCK_SEQPACKET", None):
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
    return _pair(family or socket.AF_UNIX, type, proto)


socket.socketpair = _socketpair


def _no_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir"} and isinstance(path := arguments[0], str | os.PathLike):
        place = os.fspath(path)
        if isinstance(place, str) and place.startswith(_NO_DIRECTORIES):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)


sys.addaudithook(_no_proc)
