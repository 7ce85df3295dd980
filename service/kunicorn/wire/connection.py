"""One TCP connection to one broker.

1. Requests go out in the order of the calls and are answered in that order; the correlation id is only checked.
2. A time-out closes the connection. On one that stayed open, every later answer would wait behind the missing one.
3. A caller that is cancelled leaves its request in the queue. Closing instead would let a commit that is sent again
   over a new connection overtake the old one inside the broker, and the older offset would be the one that stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import Any, NamedTuple

from kunicorn import __version__
from kunicorn.errors import PeerError
from kunicorn.wire import codec
from kunicorn.wire.auth import Address, Security, open_stream
from kunicorn.wire.errors import ConnectionLost, ProtocolError, RequestTimedOut
from kunicorn.wire.make import Fields
from kunicorn.wire.negotiation import RetryWith, read_api_versions
from kunicorn.wire.versions import OURS, Api, Negotiated

_CORRELATION_IDS = 2**31

_CLIENT_SOFTWARE: Fields = {"client_software_name": "kunicorn", "client_software_version": __version__}
"""KIP-511. Letters, digits, dots and dashes only: brokers answer anything else with INVALID_REQUEST (42)."""


class _Pending(NamedTuple):
    """A request whose answer is still to come."""

    correlation_id: int
    what: str
    answer: asyncio.Future[bytes]


class Connection:
    """An open, negotiated connection. Made by `open`; belongs to the event loop that opened it."""

    def __init__(
        self, address: Address, client_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Caller: `open`."""
        self.address = address
        self.closed = False
        self.failure: PeerError | None = None
        """Why the connection closed, if it left requests unanswered."""
        self._client_id = client_id
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._versions = Negotiated({Api.API_VERSIONS: OURS[Api.API_VERSIONS]}, str(address))
        self._pending: deque[_Pending] = deque()
        self._sending = asyncio.Lock()
        self._muted_until = 0.0
        self._sent = 0
        self._proven = False
        self._reading = self._loop.create_task(self._read(), name=f"read from {address}")

    @classmethod
    async def open(cls, address: Address, security: Security, client_id: str, timeout: float) -> Connection:
        """Connect and negotiate versions, in `timeout` seconds altogether. Raises `PeerError`."""
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await open_stream(address, security)
                connection = cls(address, client_id, reader, writer)
                try:
                    await connection._negotiate()
                except BaseException:
                    connection.close()
                    raise
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
        return self._versions.version(api, at_most)

    async def request(self, api: Api, fields: Fields, timeout: float, at_most: int | None = None) -> Any:
        """Send and wait for the answer, `timeout` seconds at most; kio's message of `version(api, at_most)`.

        Raises `ConnectionLost` and `RequestTimedOut` (the connection is closed then), or `ProtocolError` if the
        answer cannot be read.
        """
        version = self.version(api, at_most)
        frame = await self._exchange(api, version, fields, timeout)
        answer = codec.decode_response(api, version, frame)
        self._proven = True
        throttled: timedelta = getattr(answer, "throttle_time", timedelta())
        # Over quota: the broker has stopped reading from this connection for as long as it says (KIP-219).
        self._muted_until = max(self._muted_until, self._loop.time() + throttled.total_seconds())
        return answer

    def close(self) -> None:
        """Close at once; whoever waits for an answer gets `ConnectionLost`."""
        self._shut(ConnectionLost(f"the connection to {self.address} was closed on our side"))

    async def wait_closed(self) -> None:
        """Wait until nothing of this connection runs any more. Caller: after `close`."""
        await asyncio.wait({self._reading})

    async def _negotiate(self) -> None:
        version = OURS[Api.API_VERSIONS].high
        while True:
            frame = await self._exchange(Api.API_VERSIONS, version, _CLIENT_SOFTWARE, timeout=None)
            outcome = read_api_versions(version, frame)
            if not isinstance(outcome, RetryWith):
                self._versions = Negotiated(outcome, str(self.address))
                return
            version = outcome.version

    async def _exchange(self, api: Api, version: int, fields: Fields, timeout: float | None) -> bytes:
        """Send one request; the frame that answers it, undecoded."""
        pending: _Pending | None = None
        try:
            async with asyncio.timeout(timeout):
                async with self._sending:
                    if (muted := self._muted_until - self._loop.time()) > 0:
                        await asyncio.sleep(muted)
                    pending = self._send(api, version, fields)
                    await self._writer.drain()
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
        except OSError as error:
            lost = ConnectionLost(f"{api.title}: {self.address} closed the connection: {error}")
            self._shut(lost)
            raise lost from error

    def _send(self, api: Api, version: int, fields: Fields) -> _Pending:
        if self.closed:
            raise ConnectionLost(f"{api.title}: the connection to {self.address} is closed")
        correlation_id = self._sent % _CORRELATION_IDS
        frame = codec.encode_request(api, version, correlation_id, self._client_id, fields)
        self._sent += 1
        pending = _Pending(correlation_id, api.title, self._loop.create_future())
        self._pending.append(pending)
        self._writer.write(frame)
        return pending

    async def _read(self) -> None:
        """Hand every frame to whoever waits for it, until the connection ends."""
        try:
            while True:
                length = codec.frame_length(await self._reader.readexactly(codec.LENGTH_BYTES))
                self._deliver(await self._reader.readexactly(length))
        except ProtocolError as error:
            self._shut(
                ProtocolError(f"{self.address}: {error}" + ("" if self._proven else "; check security_protocol"))
            )
        except (EOFError, OSError) as error:
            why = "" if isinstance(error, EOFError) else f" ({error})"
            # A listener that wants TLS or SASL hangs up on the first plain request, without a word.
            hint = "" if self._proven else " at the first request; if it always does, check security_protocol"
            self._shut(ConnectionLost(f"{self.address} closed the connection{why}{hint}"))

    def _deliver(self, frame: bytes) -> None:
        answered = codec.correlation_id(frame)
        if not self._pending or self._pending[0].correlation_id != answered:
            raise ProtocolError(f"an answer to request {answered}, which is not the next to be answered")
        pending = self._pending.popleft()
        if not pending.answer.done():
            pending.answer.set_result(frame)

    def _shut(self, failure: PeerError) -> None:
        """Close, and tell all who wait why. The first reason counts."""
        if self.closed:
            return
        self.closed = True
        if self._pending:
            self.failure = failure
        kind = ProtocolError if isinstance(failure, ProtocolError) else ConnectionLost
        for pending in self._pending:
            if not pending.answer.done():
                pending.answer.set_exception(kind(f"{pending.what}: {failure}"))
                # Marks it as seen: a caller cancelled while writing will not come for it.
                pending.answer.exception()
        self._pending.clear()
        self._reading.cancel()
        self._writer.transport.abort()
