"""Providers of OAUTHBEARER tokens, good and bad; what `kafka.sasl_oauthbearer_token_provider` names in tests.

`TOKEN_CALLS` names a file to which every call adds a line, `TOKEN_SECONDS` says how long tokens live.
"""

from __future__ import annotations

import base64
import json
import os
import time
from typing import NoReturn


def unsigned(subject: str, seconds: float) -> tuple[str, float]:
    """An unsigned JWT (RFC 7519, section 6) and when it expires."""
    now = time.time()
    claims = {"sub": subject, "iat": now - 1, "exp": now + seconds}
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none"}, claims))
    return f"{head.decode().rstrip('=')}.{body.decode().rstrip('=')}.", now + seconds


def provide() -> tuple[str, float, str]:
    """For `alice`."""
    with open(os.environ["TOKEN_CALLS"], "a") as calls:
        calls.write(f"{os.getpid()}\n")
    return *unsigned("alice", float(os.environ.get("TOKEN_SECONDS", "600"))), "alice"


def hang() -> NoReturn:
    """Never comes back."""
    while True:
        time.sleep(60)


def die() -> NoReturn:
    """Takes its process with it."""
    os._exit(9)


def fail() -> NoReturn:
    """Raises."""
    raise RuntimeError("no credentials in this place")


def nonsense() -> str:
    """Not what the contract says."""
    return "a token, but for how long?"


def stale() -> tuple[str, float]:
    """Expired before it came."""
    return unsigned("alice", -10)
