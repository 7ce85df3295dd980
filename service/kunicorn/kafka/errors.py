"""Failures of the other side of a connection; all are `PeerError`s: trying again, perhaps elsewhere, may help. Small,
as it is part of every start.
"""

from __future__ import annotations

from kunicorn.errors import PeerError


class ProtocolError(PeerError):
    """Bytes from the broker, or a refusal by it, that do not fit the Kafka protocol as we know it."""


class UnsupportedByBroker(ProtocolError):
    """The broker offers no version of this API that we speak."""


class ConnectionLost(PeerError):
    """The connection could not be made, or broke: whether the broker acted on the request is unknown."""


class RequestTimedOut(PeerError):
    """No answer in time: whether the broker acted on the request is unknown."""


class AuthenticationFailed(PeerError):
    """A broker refuses us, or we refuse it: credentials, mechanism, certificate. The message names the setting to
    correct. Not fatal: credentials are rotated, and one broker may learn of it later than the others."""


class BrokersUnreachable(PeerError):
    """No known broker and no bootstrap server answered; the message says what was tried and why it failed."""


class CoordinatorUnavailable(PeerError):
    """The group's coordinator is not known, or the look-up was refused with Kafka's error code `error`."""

    def __init__(self, error: int, message: str) -> None:
        super().__init__(message)
        self.error = error
