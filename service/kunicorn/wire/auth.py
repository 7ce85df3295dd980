"""How a connection is secured: the one place that opens streams, where TLS and SASL belong."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import NamedTuple

from kunicorn.errors import ConfigError


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Security:
    """What the broker's listener demands. Raises `ConfigError` for what this version cannot do."""

    protocol: str = "PLAINTEXT"

    def __post_init__(self) -> None:
        if self.protocol != "PLAINTEXT":
            raise ConfigError(
                f"security_protocol = {self.protocol!r} is not supported by this version; it supports: 'PLAINTEXT'"
            )


async def open_stream(address: Address, security: Security) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and secure. Raises `OSError`; the caller sets the time limit."""
    del security  # one protocol, and nothing to do for it
    reader, writer = await asyncio.open_connection(address.host, address.port)
    connection = writer.get_extra_info("socket")
    if connection is not None:
        # A broker that lost power never says so; without probes an idle connection to it looks well for ever.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return reader, writer
