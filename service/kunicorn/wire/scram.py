"""SCRAM, the client's side (RFC 5802, RFC 7677). Pure: random numbers come from outside.

As in Kafka (`ScramFormatter.java`) names and passwords are plain UTF-8, not prepared by SASLprep, and there is no
channel binding.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Generator, Mapping

from kunicorn.wire.errors import AuthenticationFailed

HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""hashlib's name of each mechanism's hash."""

_LEAST_ITERATIONS = 4096
"""RFC 7677, section 4. A broker that asks for fewer would get a proof that is cheap to guess the password from."""
_MOST_ITERATIONS = 1_000_000
"""About a second of computing; a broker that asks for more is broken, or means harm."""
_NO_BINDING = "n,,"


def scram(mechanism: str, username: str, password: str, nonce: str) -> Generator[bytes, bytes, None]:
    """Yields what to send, is sent what the broker answers, and returns when the broker has proven that it knows the
    password, too. Raises `AuthenticationFailed`.

    `nonce`: printable, no comma, never used before.
    """
    hash_name = HASHES[mechanism]
    bare = f"n={_escaped(username)},r={nonce}"
    server_first = (yield f"{_NO_BINDING}{bare}".encode()).decode(errors="replace")
    fields = _fields(server_first)
    salt, iterations = _salt(fields, nonce)
    without_proof = f"c={b64encode(_NO_BINDING.encode()).decode()},r={fields['r']}"
    message = f"{bare},{server_first},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, message, hash_name)
    proof = bytes(mine ^ theirs for mine, theirs in zip(client_key, signature, strict=True))
    server_final = _fields((yield f"{without_proof},p={b64encode(proof).decode()}".encode()).decode(errors="replace"))
    _verify(server_final, hmac.digest(hmac.digest(salted, b"Server Key", hash_name), message, hash_name))


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _fields(message: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in message.split(","))}


def _salt(fields: Mapping[str, str], nonce: str) -> tuple[bytes, int]:
    if "m" in fields:
        raise AuthenticationFailed("it asks for a SCRAM extension that no client of Kafka knows")
    if not fields.get("r", "").startswith(nonce) or fields["r"] == nonce:
        raise AuthenticationFailed("its SCRAM nonce does not continue ours: somebody may be replaying an old exchange")
    try:
        salt, iterations = b64decode(fields["s"], validate=True), int(fields["i"])
    except (KeyError, ValueError, binascii.Error) as error:
        raise AuthenticationFailed("its first SCRAM message has no salt or no iteration count") from error
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
    except binascii.Error:
        signature = b""
    if not hmac.compare_digest(signature, expected):
        raise AuthenticationFailed("it could not prove that it knows the password: it may be an impostor")
