"""SASL over an open connection: SaslHandshake, then SaslAuthenticate until both sides are content (KIP-152)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.errors import AuthenticationFailed
from kunicorn.wire.make import Fields
from kunicorn.wire.sasl import Conversation, Sasl, conversation
from kunicorn.wire.versions import Api

Ask = Callable[[Api, Fields], Awaitable[Any]]
"""Sends one request, behind nothing and before nothing else, and returns kio's answer; raises `PeerError`."""

_REMEDIES: Mapping[str, str] = {
    "PLAIN": "check kafka.sasl_username and kafka.sasl_password",
    "SCRAM-SHA-256": "check kafka.sasl_username and kafka.sasl_password, and that the cluster has SCRAM credentials of "
    "this mechanism for the user",
    "SCRAM-SHA-512": "check kafka.sasl_username and kafka.sasl_password, and that the cluster has SCRAM credentials of "
    "this mechanism for the user",
    "OAUTHBEARER": "check the token that the kafka.sasl_oauthbearer_ settings lead to: audience, scope, principal",
}


async def authenticate(ask: Ask, sasl: Sasl, address: str) -> float | None:
    """Authenticate, for the first time or anew; the session's length in seconds, None for one without an end.

    Raises `AuthenticationFailed` naming the settings to correct, and what `ask` raises.
    """
    try:
        return await _authenticate(ask, sasl)
    except AuthenticationFailed as error:
        who = f" as {sasl.username!r}" if sasl.username else ""
        raise AuthenticationFailed(f"{address} and SASL {sasl.mechanism}{who}: {error}") from error


async def _authenticate(ask: Ask, sasl: Sasl) -> float | None:
    await _shake_hands(ask, sasl.mechanism)
    talk = conversation(sasl)
    message = await asyncio.to_thread(_next, talk, None)
    lifetime: float | None = None
    while message is not None:
        answer = await ask(Api.SASL_AUTHENTICATE, {"auth_bytes": message})
        if error := int(answer.error_code):
            said = f" ({answer.error_message})" if answer.error_message else ""
            talk.throw(AuthenticationFailed(f"{describe(error)}{said}; {_REMEDIES[sasl.mechanism]}"))
        lifetime = _seconds(getattr(answer, "session_lifetime", None))
        message = await asyncio.to_thread(_next, talk, answer.auth_bytes)
    return lifetime


async def _shake_hands(ask: Ask, mechanism: str) -> None:
    answer = await ask(Api.SASL_HANDSHAKE, {"mechanism": mechanism})
    error = int(answer.error_code)
    if error == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        # The codec reads a null name as well as a null list.
        offered = ", ".join(filter(None, answer.mechanisms or ())) or "none"
        raise AuthenticationFailed(
            f"{describe(error)}: the listener offers {offered}; set kafka.sasl_mechanism to one of these"
        )
    if error == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            f"{describe(error)}: the listener asks for no SASL; set kafka.security_protocol to PLAINTEXT or SSL, or "
            f"kafka.bootstrap_servers to the port of the listener that does"
        )
    if error:
        raise AuthenticationFailed(f"SaslHandshake was refused: {describe(error)}")


def _next(talk: Conversation, answer: bytes | None) -> bytes | None:
    """The next message to send; None at the end, as StopIteration does not pass through a future."""
    try:
        return next(talk) if answer is None else talk.send(answer)
    except StopIteration:
        return None


def _seconds(lifetime: timedelta | None) -> float | None:
    """0 is Kafka's word for "no end"; versions before 1 have no word for it."""
    return lifetime.total_seconds() if lifetime else None
