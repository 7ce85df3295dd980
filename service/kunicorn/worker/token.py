"""The OAUTHBEARER token of this worker's client: the one that the supervisor sent last."""

from __future__ import annotations

import time

from kunicorn.pipes.messages import Token


class LatestToken:
    """Written by the control thread, read by a thread of librdkafka's: one reference, replaced as a whole."""

    def __init__(self, token: Token | None) -> None:
        """None where the mechanism is another one."""
        self._token = token

    def store(self, token: Token) -> None:
        """Caller: the control thread."""
        self._token = token

    def answer(self, config: str | None) -> tuple[str, float, str, dict[str, str]]:
        """confluent-kafka's `oauth_cb`, called when the client is made and when 80 % of a token's life are over.

        The supervisor renews earlier than that. Where it could not, the client is told so and asks again after ten
        seconds (`rd_kafka_oauthbearer_set_token_failure0`).
        """
        token = self._token
        if token is None or token.expires_at <= time.time():
            raise RuntimeError("the supervisor has sent no OAUTHBEARER token that is still valid")
        return token.value, token.expires_at, token.principal, token.extensions
