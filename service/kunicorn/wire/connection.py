"""One TCP connection to one broker.

1. Requests go out in the order of the calls and are answered in that order; the correlation id is only checked. What
   is no answer to the next of them, or cannot be read, ends the connection: nothing behind it can be relied upon.
2. A time-out closes the connection. On one that stayed open, every later answer would wait behind the missing one.
3. A caller that is cancelled leaves its request in the queue. Closing instead would let a commit that is sent again
   over a new connection overtake the old one inside the broker, and the older offset would be the one that stays.
4. Where SASL sessions end, they are renewed before (KIP-368): with nothing in flight, and nothing else is sent
   meanwhile. Between SaslHandshake and its end a broker takes any other request for an attack and hangs up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from kunicorn import __version__
from kunicorn.errors import PeerError
from kunicorn.wire import codec
from kunicorn.wire.auth import Address, Security, open_stream
from kunicorn.wire.authentication import authenticate
from kunicorn.wire.errors import (
    AuthenticationFailed,
    ConnectionLost,
    ProtocolError,
    RequestTimedOut,
    UnsupportedByBroker,
)
from kunicorn.wire.in_flight import InFlight, Pending
from kunicorn.wire.make import Fields
from kunicorn.wire.negotiation import RetryWith, read_api_versions
from kunicorn.wire.sasl import Sasl
from kunicorn.wire.tls import refused_by_alert
from kunicorn.wire.versions import OURS, Api, Negotiated

logger = logging.getLogger(__name__)

_CLIENT_SOFTWARE: Fields = {"client_software_name": "kunicorn", "client_software_version": __version__}
"""KIP-511. Letters, digits, dots and dashes only: brokers answer anything else with INVALID_REQUEST (42)."""

_RENEW_FROM, _RENEW_UNTIL = 0.85, 0.95
"""When a session is renewed, by its length; as in `SaslClientAuthenticator.java`, at random, so that the connections of
a restarted service do not all come at once."""
_RENEW_PAUSE = 1.1
"""A broker takes a renewal within a second for an error (`KafkaChannel.java`, MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS); a
session that is shorter ends, and another connection follows."""

_LONGEST_MUTE = 60.0
"""Seconds for which a broker over quota is believed: a wrong number would silence the connection for weeks."""


class Connection:
    """An open, negotiated connection. Made by `open`; belongs to the event loop that opened it."""

    def __init__(
        self, address: Address, client_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Caller: `open`."""
        self.address = address
        self.closed = False
        self.failure: PeerError | None = None
        """Why the connection closed, if it left requests unanswered, was not to be believed any more, or could not be
        authenticated anew."""
        self.doubtful = False
        """The broker was found to lack an API. It may have been wrong about that, or another one: who asks again shall
        not meet this connection, on which the versions stay what they are."""
        self._client_id = client_id
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._versions = Negotiated({Api.API_VERSIONS: OURS[Api.API_VERSIONS]}, str(address))
        self._pending = InFlight()
        self._sending = asyncio.Lock()
        self._muted_until = 0.0
        self._opened = self._proven = False
        self._reading = self._loop.create_task(self._read(), name=f"read from {address}")
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: Address, security: Security, client_id: str, timeout: float) -> Connection:
        """Connect, negotiate versions and authenticate, in `timeout` seconds altogether.

        Raises `AuthenticationFailed`, and other `PeerError`s.
        """
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await open_stream(address, security)
                connection = cls(address, client_id, reader, writer)
                try:
                    await connection._negotiate()
                    if security.sasl is not None:
                        await connection._authenticate(security.sasl, timeout)
                except ProtocolError as error:
                    connection._distrust(error)
                    raise
                except BaseException:
                    connection.close()
                    raise
                connection._opened = True
                return connection
        except TimeoutError as error:
            raise RequestTimedOut(f"{address} did not accept a connection within {timeout:g} s") from error
        except (OSError, UnicodeError, OverflowError) as error:
            # The last two: a host name or a port that is none, as a broken advertised.listeners hands them out.
            raise ConnectionLost(f"cannot connect to {address}: {error}") from error

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    def version(self, api: Api, at_most: int | None = None) -> int:
        """The version that `request` will use. Raises `UnsupportedByBroker`."""
        try:
            return self._versions.version(api, at_most)
        except UnsupportedByBroker:
            self.doubtful = True
            raise

    async def request(self, api: Api, fields: Fields, timeout: float, at_most: int | None = None) -> Any:
        """Send and wait for the answer, `timeout` seconds at most; kio's message of `version(api, at_most)`.

        Raises `ConnectionLost`, `RequestTimedOut`, or `ProtocolError` if the answer cannot be read; the connection is
        closed then.
        """
        version = self.version(api, at_most)
        frame = await self._exchange(api, version, fields, timeout)
        try:
            answer = codec.decode_response(api, version, frame)
        except ProtocolError as error:
            unreadable = ProtocolError(f"{self.address}: {error}")
            self._distrust(unreadable)
            raise unreadable from error
        self._proven = True
        throttled: timedelta = getattr(answer, "throttle_time", timedelta())
        # Over quota: the broker has stopped reading from this connection for as long as it says (KIP-219).
        muted = min(throttled.total_seconds(), _LONGEST_MUTE)
        self._muted_until = max(self._muted_until, self._loop.time() + muted)
        return answer

    def close(self) -> None:
        """Close at once; whoever waits for an answer gets `ConnectionLost`."""
        self._shut(ConnectionLost(f"the connection to {self.address} was closed on our side"))

    async def wait_closed(self) -> None:
        """Wait until nothing of this connection runs any more. Caller: after `close`."""
        await asyncio.wait({self._reading} if self._renewing is None else {self._reading, self._renewing})

    async def _negotiate(self) -> None:
        version = OURS[Api.API_VERSIONS].high
        while True:
            frame = await self._converse(Api.API_VERSIONS, version, _CLIENT_SOFTWARE)
            outcome = read_api_versions(version, frame)
            if not isinstance(outcome, RetryWith):
                self._versions = Negotiated(outcome, str(self.address))
                return
            version = outcome.version

    async def _authenticate(self, sasl: Sasl, timeout: float) -> None:
        """Authenticate, and see to it that it is done again in time, each time within `timeout` seconds."""

        async def ask(api: Api, fields: Fields) -> Any:
            version = self.version(api)
            return codec.decode_response(api, version, await self._converse(api, version, fields))

        lifetime = await authenticate(ask, sasl, str(self.address))
        if lifetime is not None:
            self._renewing = self._loop.create_task(
                self._renew(lifetime, lambda: authenticate(ask, sasl, str(self.address)), timeout),
                name=f"authenticate anew with {self.address}",
            )

    async def _renew(
        self, lifetime: float | None, authenticate_anew: Callable[[], Awaitable[float | None]], timeout: float
    ) -> None:
        """Before each session's end, begin another on the same connection."""
        try:
            while lifetime is not None:
                await asyncio.sleep(max(_RENEW_PAUSE, lifetime * random.uniform(_RENEW_FROM, _RENEW_UNTIL)))
                async with self._quiet(), asyncio.timeout(timeout):
                    lifetime = await authenticate_anew()
                logger.debug("authenticated anew with %s", self.address)
        except TimeoutError:
            self._lose_session(AuthenticationFailed(f"{self.address} did not answer within {timeout:g} s"))
        except PeerError as error:
            self._lose_session(error)

    @asynccontextmanager
    async def _quiet(self) -> AsyncIterator[None]:
        """Hold back what others send, from a moment on when nothing is in flight."""
        while True:
            await self._pending.idle.wait()
            async with self._sending:
                if self._pending.idle.is_set():
                    yield
                    return

    def _lose_session(self, failure: PeerError) -> None:
        """Close: at the session's end the broker would hang up, without a word. Nothing if the connection has gone."""
        if not self.closed:
            logger.warning("authenticating anew failed, the connection is closed: %s", failure)
            self.failure = failure
            self._shut(failure)

    async def _converse(self, api: Api, version: int, fields: Fields) -> bytes:
        """Like `_exchange`, for who has the connection to himself; the caller sets the time limit."""
        pending = self._send(api, version, fields)
        await self._flush(api)
        return await pending.answer

    async def _exchange(self, api: Api, version: int, fields: Fields, timeout: float | None) -> bytes:
        """Send one request; the frame that answers it, undecoded."""
        pending: Pending | None = None
        try:
            async with asyncio.timeout(timeout):
                async with self._sending:
                    if (muted := self._muted_until - self._loop.time()) > 0:
                        await asyncio.sleep(muted)
                    pending = self._send(api, version, fields)
                    await self._flush(api)
                return await pending.answer
        except TimeoutError as error:
            if pending is None:
                raise RequestTimedOut(
                    f"{api.title} to {self.address} not sent within {timeout:g} s: others are before it, "
                    f"or the broker throttles this client"
                ) from error
            late = RequestTimedOut(f"{self.address} did not answer {api.title} within {timeout:g} s")
            self._shut(late)
            raise late from error

    async def _flush(self, api: Api) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            lost = ConnectionLost(f"{api.title}: {self.address} closed the connection: {error}")
            self._shut(lost)
            raise lost from error

    def _send(self, api: Api, version: int, fields: Fields) -> Pending:
        if self.closed:
            why = f": {self.failure}" if self.failure is not None else ""
            raise ConnectionLost(f"{api.title}: the connection to {self.address} is closed{why}")
        frame = codec.encode_request(api, version, self._pending.next_id, self._client_id, fields)
        pending = self._pending.add(api.title)
        self._writer.write(frame)
        return pending

    async def _read(self) -> None:
        """Hand every frame to whoever waits for it, until the connection ends."""
        try:
            while True:
                length = codec.frame_length(await self._reader.readexactly(codec.LENGTH_BYTES))
                self._pending.deliver(await self._reader.readexactly(length))
        except ProtocolError as error:
            hint = "" if self._proven else "; check security_protocol"
            self._distrust(ProtocolError(f"{self.address}: {error}{hint}"))
        except (EOFError, OSError) as error:
            if (refusal := refused_by_alert(error, str(self.address))) is not None:
                self._shut(refusal)
                return
            why = "" if isinstance(error, EOFError) else f" ({error})"
            # A listener that wants TLS or SASL hangs up on the first plain request, without a word.
            hint = "" if self._proven else " at the first request; if it always does, check security_protocol"
            self._shut(ConnectionLost(f"{self.address} closed the connection{why}{hint}"))

    def _distrust(self, error: ProtocolError) -> None:
        """Close, and say why: nobody may be waiting, and who waits may have another broker to ask."""
        if not self.closed:
            self.failure = error
            # Whoever opens it tells of it, too, and asks for an end of it.
            logger.log(
                logging.WARNING if self._opened else logging.INFO,
                "a connection is closed, and another one takes its place: %s; if that goes on, look for what answers "
                "in the broker's place, or report it with the brokers' version",
                error,
            )
        self._shut(error)

    def _shut(self, failure: PeerError) -> None:
        """Close, and tell all who wait why. The first reason counts."""
        if self.closed:
            return
        self.closed = True
        if self._pending:
            self.failure = failure
        self._pending.fail(failure)
        self._reading.cancel()
        if self._renewing is not None and self._renewing is not asyncio.current_task():
            self._renewing.cancel()
        self._writer.transport.abort()
