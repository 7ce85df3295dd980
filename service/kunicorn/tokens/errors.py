"""How a token can fail to come."""

from __future__ import annotations


class TokenError(Exception):
    """There is no token; the message says what happened, to what, and what to do. Holds no secret."""
