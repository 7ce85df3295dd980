"""Ports of this machine for members of the demo; in tests for brokers, services and what stands in for them."""

from __future__ import annotations

import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports below Linux's ephemeral range (32768 and up).

    A port of that range may become the source port of anybody's outgoing connection before who asked has bound it, or
    while a broker is down. One that somebody has bound is not free, whether they listen there or not.
    """
    ports: list[int] = []
    for port in random.sample(range(15_000, 32_000), k=1_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError("no free ports between 15000 and 32000 on 127.0.0.1")


def free_port() -> int:
    """One of them."""
    [port] = free_ports(1)
    return port
