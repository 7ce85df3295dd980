"""What supervisor, token helper and workers say to one another about logging in. Every one of these is a secret."""

from __future__ import annotations

from kunicorn.pipes.tagged import Tagged


class Token(Tagged, frozen=True):
    """An OAUTHBEARER token: from the token helper to the supervisor, and from there to every worker. A secret."""

    value: str
    expires_at: float
    """Seconds since 1970."""
    principal: str
    extensions: dict[str, str]
    """SASL extensions to send beside it (KIP-342)."""

    def __repr__(self) -> str:
        return f"Token(principal={self.principal!r}, expires_at={self.expires_at!r}, …)"


class Password(Tagged, frozen=True):
    """The password was rotated: log in with this one from now on. A secret."""

    username: str
    value: str

    def __repr__(self) -> str:
        return f"Password(username={self.username!r}, …)"


class FetchToken(Tagged, frozen=True):
    """The helper's only frame: whom to ask for a token, answered by `Token` or `TokenFailed`. Carries secrets."""

    endpoint_url: str | None
    client_id: str | None
    client_secret: str | None
    scope: str | None
    provider: str | None
    """The user's function, in place of an endpoint."""
    extensions: dict[str, str]
    path: list[str]
    """`sys.path` of the supervisor."""
    timeout: float
    """Seconds; the helper ends itself by then."""

    def __repr__(self) -> str:
        return f"FetchToken(endpoint_url={self.endpoint_url!r}, provider={self.provider!r}, …)"


class TokenFailed(Tagged, frozen=True):
    """There is no token, and why."""

    error: str


FromTokenHelper = Token | TokenFailed
