"""Ports that a cluster keeps for as long as it is there, and those of other servers that tests start.

A broker binds its ports seconds after they were chosen, and not at all while it is down: whoever looked for a port
meanwhile got one of these, and the broker "Address already in use". So each is bound from the first moment on, by a
socket that never listens. On Linux a server that sets SO_REUSEADDR, as those of Java, Go and asyncio do, may bind such
a port and listen there; `free_ports` of any process passes it over.
"""

from __future__ import annotations

import socket

from kunicorn.commands.demo.ports import free_ports


class KeptPorts:
    """Empty at first. Not thread-safe."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, count: int) -> list[int]:
        """So many more, on 127.0.0.1. Raises `OSError` where there are none."""
        taken: list[int] = []
        while len(taken) < count:
            for port in free_ports(count - len(taken)):
                held = socket.socket()
                try:
                    held.bind(("127.0.0.1", port))
                except OSError:  # Somebody else's, by now.
                    held.close()
                    continue
                # Only behind bind(): two that set it before might hold the same port.
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._held.append(held)
                taken.append(port)
        return taken

    def close(self) -> None:
        """Anybody may have them now."""
        while self._held:
            self._held.pop().close()


_ours = KeptPorts()


def kept_ports(count: int) -> list[int]:
    """So many for as long as this process lives: of servers that a test starts, or of nobody at all."""
    return _ours.take(count)


def kept_port() -> int:
    """One of them."""
    [port] = kept_ports(1)
    return port
