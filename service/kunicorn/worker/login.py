"""What this worker's client logs in with, where that changes: the token or password that the supervisor sent last."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer

from kunicorn.pipes.logins import Password, Token


class Login:
    """Written by the control thread, read by the runner and by a thread of librdkafka's: whole objects, replaced."""

    def __init__(self, token: Token | None) -> None:
        """None where the mechanism is another one."""
        self._token = token
        self._password: Password | None = None
        self._latest: Password | None = None
        self._producers: tuple[Producer, ...] = ()

    @property
    def is_bearer(self) -> bool:
        """Whether clients log in with tokens."""
        return self._token is not None

    def use(self, *producers: Producer) -> None:
        """Clients made later than the consumer, in place of those before: they, too, get the password of now.
        Caller: the runner."""
        self._producers = producers
        if self._latest is not None:
            for producer in producers:
                producer.set_sasl_credentials(self._latest.username, self._latest.value)

    def renew(self, message: Token | Password) -> None:
        """Caller: the control thread."""
        if isinstance(message, Token):
            self._token = message
        else:
            self._password = message

    def apply(self, consumer: Consumer) -> None:
        """Give the clients a password that has come; it counts from their next login on. Caller: the runner."""
        if (password := self._password) is not None:
            self._password, self._latest = None, password
            for producer in self._producers:
                producer.set_sasl_credentials(password.username, password.value)
            consumer.set_sasl_credentials(password.username, password.value)

    def bearer(self, config: str | None) -> tuple[str, float, str, dict[str, str]]:
        """confluent-kafka's `oauth_cb`, called when the client is made and when 80 % of a token's life are over.

        The supervisor renews earlier than that. Where it could not, the client is told so and asks again after ten
        seconds (`rd_kafka_oauthbearer_set_token_failure0`).
        """
        token = self._token
        if token is None or token.expires_at <= time.time():
            raise RuntimeError("the supervisor has sent no OAUTHBEARER token that is still valid")
        return token.value, token.expires_at, token.principal, token.extensions
