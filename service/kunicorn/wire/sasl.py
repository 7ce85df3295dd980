"""The SASL mechanisms, the client's side of each. Pure: what to send next, given what came."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from kunicorn.wire.errors import AuthenticationFailed
from kunicorn.wire.scram import scram

Conversation = Generator[bytes, bytes, None]
"""Yields what to send, is sent each answer, returns when it is content. The broker's refusal is thrown into it; raises
`AuthenticationFailed`. A step may compute for a second: not for the event loop."""


@dataclass(frozen=True, slots=True)
class BearerToken:
    """What OAUTHBEARER presents (RFC 6750), and the SASL extensions beside it (KIP-342)."""

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


def _no_password() -> str:
    raise AuthenticationFailed("no password is set: set kafka.sasl_password")


def _no_token() -> BearerToken:
    raise AuthenticationFailed("there is no OAUTHBEARER token")


@dataclass(frozen=True, slots=True)
class Sasl:
    """How to authenticate. What may be rotated is asked for at each authentication.

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
    """RFC 4616. The answer is empty."""
    yield f"\0{sasl.username}\0{sasl.password()}".encode()


def _scram(sasl: Sasl) -> Conversation:
    return scram(sasl.mechanism, sasl.username, sasl.password(), secrets.token_urlsafe(24))


def _oauthbearer(sasl: Sasl) -> Conversation:
    """RFC 7628, section 3. A token that is refused is answered with JSON, and asks for one more message, which may not
    say anything, before the broker ends the exchange with its error."""
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

MECHANISMS = tuple(_CONVERSATIONS)
"""Everything that `sasl_mechanism` can be."""
