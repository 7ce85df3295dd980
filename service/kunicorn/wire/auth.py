"""How a connection is secured: the one place that opens streams, where TLS and SASL belong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kunicorn.errors import ConfigError


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _open_plain(address: Address) -> Stream:
    return await asyncio.open_connection(address.host, address.port)


_OPENERS: Mapping[str, Callable[[Address], Awaitable[Stream]]] = {"PLAINTEXT": _open_plain}
"""Everything that `security_protocol` can be."""


@dataclass(frozen=True, slots=True)
class Security:
    """What the brokers' listener demands. Raises `ConfigError` for what this version cannot do."""

    protocol: str = "PLAINTEXT"

    def __post_init__(self) -> None:
        if self.protocol not in _OPENERS:
            supported = ", ".join(_OPENERS)
            raise ConfigError(
                f"security_protocol = {self.protocol!r} is not supported by this version; it supports: {supported}"
            )


async def open_stream(address: Address, security: Security) -> Stream:
    """Connect, and secure the connection. Raises `OSError`; the caller sets the time limit."""
    return await _OPENERS[security.protocol](address)
