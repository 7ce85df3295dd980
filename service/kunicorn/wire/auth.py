"""How a connection is secured: where a broker listens, what its listener demands, and the one place that opens streams.

TLS is done when the stream is open (tls.py); SASL is an exchange of requests over it (authentication.py).
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field

from kunicorn.errors import ConfigError
from kunicorn.wire.errors import AuthenticationFailed
from kunicorn.wire.sasl import Sasl
from kunicorn.wire.tls import Tls, context, explained


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens. Two names for one place are one address."""

    host: str
    port: int
    name: str = field(default="", compare=False)
    """The host's name where `host` is one of its resolved addresses: certificates are made out to names."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Everything that `security_protocol` can be (`SecurityProtocol.java`)."""


@dataclass(frozen=True, slots=True)
class Security:
    """What the brokers' listener demands. Raises `ConfigError` for what cannot work, certificate files included.

    Blocks on the disk where it reads those, milliseconds. Its repr shows no secret.
    """

    protocol: str = "PLAINTEXT"
    tls: Tls = field(default_factory=Tls)
    sasl: Sasl | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"security_protocol = {self.protocol!r} is none of {', '.join(PROTOCOLS)}")
        if self.protocol.startswith("SASL_") != (self.sasl is not None):
            raise ConfigError(f"security_protocol = {self.protocol!r} and sasl_mechanism: one asks for the other")
        if self.encrypted:
            context(self.tls)

    @property
    def encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.protocol.endswith("SSL")


async def open_stream(address: Address, security: Security) -> Stream:
    """Connect, and shake hands where TLS is spoken. The caller sets the time limit.

    Raises `OSError`, `AuthenticationFailed` where one side refuses the other's certificate, and `ConnectionLost` where
    the handshake ends otherwise.
    """
    if not security.encrypted:
        return await asyncio.open_connection(address.host, address.port)
    try:
        # Anew each time: files may have been renewed. In a thread: reading the system's CAs takes a while.
        tls = await asyncio.to_thread(context, security.tls)
    except ConfigError as error:
        raise AuthenticationFailed(f"{address}: {error}") from error
    name = address.name or address.host
    try:
        return await asyncio.open_connection(address.host, address.port, ssl=tls, server_hostname=name)
    except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise explained(error, name, str(address)) from error
