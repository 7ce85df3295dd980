"""Broker addresses and secured connections: `connect` is the one place that connects.

TLS is done when it returns (`tls`); SASL is an exchange of requests over it (`connection.authenticate`), of
which the mechanisms here are the client's side: PLAIN, SCRAM (RFC 5802, RFC 7677), OAUTHBEARER. They are pure
generators: what to send next, given what came; random numbers come from outside. As in Kafka (`ScramFormatter.java`)
names and passwords are plain UTF-8, not prepared by SASLprep, and there is no channel binding.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import hmac
import re
import secrets
import socket
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from kunicorn.errors import ConfigError
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.kafka.tls import Tls, context, explained

HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""hashlib's name of each mechanism's hash."""

_LEAST_ITERATIONS = 4096
"""RFC 7677, section 4. A broker that asks for fewer would get a proof that is cheap to guess the password from."""
_MOST_ITERATIONS = 1_000_000
"""About a second of computing; a broker that asks for more is broken, or means harm."""
_NO_BINDING = "n,,"
_WHAT_ANSWERS = "see what answers there in a broker's place: kafka.bootstrap_servers, or a proxy in between"


def scram(mechanism: str, username: str, password: str, nonce: str) -> Generator[bytes, bytes, None]:
    """Client's side of SCRAM: yields what to send, is sent what the broker answers, and returns when the broker has
    proven that it knows the password, too. Raises `AuthenticationFailed`.

    `nonce`: printable, no comma, never used before.
    """
    hash_name = HASHES[mechanism]
    bare = f"n={_escaped(username)},r={nonce}"
    server_first = _text((yield f"{_NO_BINDING}{bare}".encode()))
    fields = _fields(server_first)
    salt, iterations = _salt(fields, nonce)
    without_proof = f"c={b64encode(_NO_BINDING.encode()).decode()},r={fields['r']}"
    message = f"{bare},{server_first},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, message, hash_name)
    proof = bytes(mine ^ theirs for mine, theirs in zip(client_key, signature, strict=True))
    server_final = _text((yield f"{without_proof},p={b64encode(proof).decode()}".encode()))
    _verify(_fields(server_final), hmac.digest(hmac.digest(salted, b"Server Key", hash_name), message, hash_name))


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationFailed(f"its SCRAM message is no UTF-8; {_WHAT_ANSWERS}") from error


def _fields(message: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in message.split(","))}


def _salt(fields: Mapping[str, str], nonce: str) -> tuple[bytes, int]:
    if "m" in fields:
        raise AuthenticationFailed(f"it asks for a SCRAM extension that no client of Kafka knows; {_WHAT_ANSWERS}")
    if not fields.get("r", "").startswith(nonce) or fields["r"] == nonce:
        raise AuthenticationFailed(
            f"its SCRAM nonce does not continue ours: somebody may be replaying an old exchange; {_WHAT_ANSWERS}"
        )
    try:
        salt, iterations = b64decode(fields["s"], validate=True), int(fields["i"])
    except (KeyError, ValueError) as error:
        raise AuthenticationFailed(
            f"its first SCRAM message has no salt or no iteration count; {_WHAT_ANSWERS}"
        ) from error
    if not _LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise AuthenticationFailed(
            f"it asks for {iterations} SCRAM iterations, outside of {_LEAST_ITERATIONS} to {_MOST_ITERATIONS}: "
            f"have the user's SCRAM credentials made anew on the cluster"
        )
    return salt, iterations


def _verify(fields: Mapping[str, str], expected: bytes) -> None:
    if "e" in fields:
        raise AuthenticationFailed(f"SCRAM: {fields['e']}; check kafka.sasl_username and kafka.sasl_password")
    try:
        signature = b64decode(fields.get("v", ""), validate=True)
    except ValueError:  # Not only binascii.Error: a character that is not ASCII is refused as an argument.
        signature = b""
    if not hmac.compare_digest(signature, expected):
        raise AuthenticationFailed(
            f"it could not prove that it knows the password: it may be an impostor; {_WHAT_ANSWERS}"
        )


Conversation = Generator[bytes, bytes, None]
"""Yields what to send, is sent each answer, returns when it is content. The broker's refusal is thrown into it; raises
`AuthenticationFailed`. A step may compute for a second: not for the event loop."""


@dataclass(frozen=True, slots=True)
class BearerToken:
    """Token that OAUTHBEARER presents (RFC 6750), and the SASL extensions beside it (KIP-342)."""

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


def _no_password() -> str:
    raise AuthenticationFailed("no password is set: set kafka.sasl_password")


def _no_token() -> BearerToken:
    raise AuthenticationFailed("there is no OAUTHBEARER token")


@dataclass(frozen=True, slots=True)
class Sasl:
    """Mechanism and credentials. Functions give what may be rotated: they are called at each authentication.

    Both functions are called in a thread of their own and raise `AuthenticationFailed` where there is nothing to give.
    """

    mechanism: str
    username: str = ""
    password: Callable[[], str] = field(default=_no_password, repr=False)
    token: Callable[[], BearerToken] = field(default=_no_token, repr=False)


def conversation(sasl: Sasl) -> Conversation:
    """Begin one authentication. Raises `AuthenticationFailed` where credentials are missing."""
    return _CONVERSATIONS[sasl.mechanism](sasl)


def _plain(sasl: Sasl) -> Conversation:
    """PLAIN (RFC 4616). The broker's answer is empty."""
    yield f"\0{sasl.username}\0{sasl.password()}".encode()


def _scram(sasl: Sasl) -> Conversation:
    # Begun at the first step, as the others are: the password may be in a file, and the event loop begins us.
    yield from scram(sasl.mechanism, sasl.username, sasl.password(), secrets.token_urlsafe(24))


def _oauthbearer(sasl: Sasl) -> Conversation:
    """OAUTHBEARER (RFC 7628, section 3). A refused token is answered with JSON, and asks for one more message, which
    may not say anything, before the broker ends the exchange with its error.
    """
    token = sasl.token()
    pairs = {"auth": f"Bearer {token.value}", **token.extensions}
    problem = yield ("n,,\x01" + "".join(f"{name}={value}\x01" for name, value in pairs.items()) + "\x01").encode()
    if problem:
        try:
            yield b"\x01"
        except AuthenticationFailed as refusal:
            raise AuthenticationFailed(f"{refusal}; the broker says {problem.decode(errors='replace')}") from refusal


_CONVERSATIONS: Mapping[str, Callable[[Sasl], Conversation]] = {
    "PLAIN": _plain,
    "SCRAM-SHA-256": _scram,
    "SCRAM-SHA-512": _scram,
    "OAUTHBEARER": _oauthbearer,
}


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a broker. Two names for one place are one address."""

    host: str
    port: int
    name: str = field(default="", compare=False)
    """The host's name where `host` is one of its resolved addresses: certificates are made out to names."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Everything that `security_protocol` can be (`SecurityProtocol.java`)."""


@dataclass(frozen=True, slots=True)
class Security:
    """Security settings of the brokers' listener. Raises `ConfigError` for those that cannot work, certificate files
    included.

    Blocks on the disk to read these, for milliseconds. Its repr shows no secret.
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
        return self.protocol.endswith("SSL")


P = TypeVar("P", bound=asyncio.BaseProtocol)

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, number, as Linux names them; where there are none of these, the system's own count.

Balancers and NATs forget a connection that is silent for some minutes, and say nothing. The commit of a stop would be
the first request behind that, and cost its whole time-out.
"""


_EACH_SECONDS = 1.5
"""For an address of a host that has a further one: long enough for a lost packet, which comes again after a second."""


_CONNECTIONS = count(1)
"""Of this process."""
_COLLECTED_EVERY = 8
"""A connection with TLS that has ended is a cycle of objects, of up to a megabyte (its buffer, the CAs). The garbage
collector goes by the number of objects, and workers have it look seldom: what hangs up on each attempt, as a balancer
before a dead broker does, would fill their memory. Without TLS it is a few KiB, for which a collection, of up to a
second with the interpreter's lock, is too much."""


async def connect(address: Address, security: Security, protocol: Callable[[], P]) -> P:
    """Connect, and shake hands where TLS is spoken; the protocol that was made, with its transport. The system looks
    after a connection that is silent for a minute. The caller sets the time limit.

    Of a host with several addresses the first that answers counts. One that nobody has any more, not even to refuse a
    connection, would else use up the whole limit, each time (KIP-602).

    Raises `OSError`, `AuthenticationFailed` where one side refuses the other's certificate, and `ConnectionLost` where
    the handshake ends otherwise.
    """
    loop = asyncio.get_running_loop()
    if not security.encrypted:
        return _kept_alive(*await loop.create_connection(protocol, **await _place(address)))
    if next(_CONNECTIONS) % _COLLECTED_EVERY == 0:
        gc.collect()
    try:
        # Anew each time: files may have been renewed. In a thread: reading the system's CAs takes a while.
        tls = await asyncio.to_thread(context, security.tls)
    except ConfigError as error:
        raise AuthenticationFailed(f"{address}: {error}") from error
    name, place = address.name or address.host, await _place(address)
    try:
        made = await loop.create_connection(protocol, **place, ssl=tls, server_hostname=name)
    except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise explained(error, name, str(address)) from error
    return _kept_alive(*made)


async def _place(address: Address) -> Mapping[str, Any]:
    """Arguments of `create_connection`: where to connect, or how it is connected already. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    if len(found) == 1:
        return {"host": address.host, "port": address.port}
    refused = []
    for number, (family, *_, place) in enumerate(found, 1):
        try:
            async with asyncio.timeout(None if number == len(found) else _EACH_SECONDS):
                return {"sock": await _connected(family, place)}
        except OSError as error:
            refused.append(f"{place[0]}: {str(error) or f'no answer within {_EACH_SECONDS:g} s'}")
    raise OSError("; ".join(refused))


async def _connected(family: int, place: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock


def _kept_alive(transport: asyncio.BaseTransport, protocol: P) -> P:
    if (sock := transport.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return protocol


_SERVER = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>\d{1,5})")
_MAX_PORT = 65535


def parse_seeds(servers: Sequence[str]) -> tuple[Address, ...]:
    """`bootstrap_servers` as addresses. Raises `ConfigError` naming the server that is none."""
    if not servers:
        raise ConfigError("bootstrap_servers is empty: name at least one broker as 'host:port'")
    return tuple(dict.fromkeys(_parse(server) for server in servers))


def _parse(server: str) -> Address:
    match = _SERVER.fullmatch(server.strip())
    if match is None or not 0 < int(match["port"]) <= _MAX_PORT or not _is_name(match["host"] or ""):
        raise ConfigError(f"bootstrap_servers: {server!r} is not 'host:port' (IPv6: '[address]:port')")
    return Address(match["ipv6"] or match["host"], int(match["port"]))


def _is_name(host: str) -> bool:
    """Whether a resolver takes it: no empty or overlong label."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


async def resolve(seeds: Sequence[Address], timeout: float, problems: list[str]) -> list[Address]:
    """All addresses of all bootstrap servers; a name without an answer in `timeout` seconds is added to `problems`.

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
