"""Under which names the pages are shown: not under those that somebody else may have pointed here.

A page of evil.example whose name resolves, at the second look, to 127.0.0.1 or to a pod's address may read whatever
answers there (DNS rebinding): its browser believes that it is evil.example's own. Only the Host header tells. Pure.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection

_NOBODYS = (".localhost", ".local", ".internal", ".svc", ".arpa", ".test")
"""Ends of names that the public DNS does not have, and in which nobody registers anything."""


def is_ours(host: str | None, allowed: Collection[str] = ()) -> bool:
    """Whether this is a name for us that no stranger can have made: an address, a name without a dot, one that only a
    network's own resolver knows, this machine's name, or one of `allowed`; browsers always send a name."""
    if host is None:
        return True
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if "." not in name and ":" not in name:
        return name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    return _is_address(name) or name.endswith(_NOBODYS) or name == socket.gethostname().lower() or name in allowed


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
