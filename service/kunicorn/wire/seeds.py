"""Bootstrap servers: from the setting to addresses."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence

from kunicorn.errors import ConfigError
from kunicorn.wire.auth import Address

_SERVER = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>\d{1,5})")
_MAX_PORT = 65535


def parse_seeds(servers: Sequence[str]) -> tuple[Address, ...]:
    """`bootstrap_servers` as addresses. Raises `ConfigError` naming the server that cannot be one."""
    if not servers:
        raise ConfigError("bootstrap_servers is empty: name at least one broker as 'host:port'")
    return tuple(dict.fromkeys(_parse(server) for server in servers))


def _parse(server: str) -> Address:
    match = _SERVER.fullmatch(server.strip())
    if match is None or not 0 < int(match["port"]) <= _MAX_PORT or not _is_name(match["host"] or ""):
        raise ConfigError(f"bootstrap_servers: {server!r} is not 'host:port' (IPv6: '[address]:port')")
    return Address(match["ipv6"] or match["host"], int(match["port"]))


def _is_name(host: str) -> bool:
    """Whether a resolver can be asked for it at all: no empty or overlong label."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


async def resolve(seeds: Sequence[Address], timeout: float, problems: list[str]) -> list[Address]:
    """All the addresses behind all the seeds; a name without an answer in `timeout` seconds is told in `problems`.

    Every address of a name counts: one name for all brokers is a common set-up, and the first may be down (KIP-302).
    """
    answers = await asyncio.gather(*(_addresses(seed, timeout) for seed in seeds), return_exceptions=True)
    addresses: dict[Address, None] = {}
    for seed, answer in zip(seeds, answers, strict=True):
        if isinstance(answer, TimeoutError):
            problems.append(f"cannot resolve {seed.host}: no answer within {timeout:g} s")
        elif isinstance(answer, OSError):
            problems.append(f"cannot resolve {seed.host}: {answer.strerror or answer}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            addresses |= dict.fromkeys(answer)
    return list(addresses)


async def _addresses(seed: Address, timeout: float) -> list[Address]:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        found = await loop.getaddrinfo(seed.host, seed.port, type=socket.SOCK_STREAM)
    return [Address(str(sockaddr[0]), seed.port, name=seed.host) for *_, sockaddr in found]
