"""One TCP connection to one broker: negotiated (ApiVersions, KIP-35 and KIP-511), authenticated (SaslHandshake,
SaslAuthenticate, KIP-152), with any number of requests in flight.

1. Requests go out in the order of the calls and are answered in that order (`SocketServer.scala` reads no request
   before it has answered the one before). The correlation id is only checked: an answer that is not the next one's, or
   cannot be read, ends the connection, as nothing behind it can be relied upon.
2. A time-out closes the connection. On one that stayed open, every later answer would wait behind the missing one. A
   large answer (`exchange`) is given up for silence, and not for time: over a slow line it takes as long as it takes,
   and asked for again it would come no sooner.
3. A caller that is cancelled leaves its request in the queue. Closing instead would let a commit that is sent again
   over a new connection overtake the old one inside the broker, and the older offset would be the one that stays.
4. Where SASL sessions end, they are renewed before (KIP-368): with nothing in flight, and nothing else is sent
   meanwhile. Between SaslHandshake and its end a broker takes any other request for an attack and hangs up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from kio.serial.errors import SerialError
from kio.serial.readers import read_int16

from kunicorn import __version__
from kunicorn.errors import PeerError
from kunicorn.kafka import codec
from kunicorn.kafka.auth import Address, Conversation, Sasl, Security, connect, conversation
from kunicorn.kafka.codec import Fields, decode_response
from kunicorn.kafka.errors import (
    AuthenticationFailed,
    ConnectionLost,
    ProtocolError,
    RequestTimedOut,
    UnsupportedByBroker,
)
from kunicorn.kafka.frames import Frames
from kunicorn.kafka.tls import refused_by_alert
from kunicorn.kafka.versions import OURS, Api, Negotiated, VersionRange
from kunicorn.kafka_errors import ErrorCode, describe, fault

_ERROR_AT = 4
"""The response header of ApiVersions is version 0 whatever the request's: just the correlation id."""


class RetryWith(NamedTuple):
    """The broker is older than our ApiVersions; ask again in this version."""

    version: int


Offer = dict[int, VersionRange]
"""What the broker offers, by API key; keys that we have never heard of among them."""


def read_api_versions(sent: int, frame: bytes) -> Offer | RetryWith:
    """Result of ApiVersions version `sent`: the broker's offer, or a version to retry with. Raises `ProtocolError`.

    Every retry is in a lower version than the one before, so that no broker can keep us here.
    """
    try:
        error = int(read_int16(frame, _ERROR_AT)[0])
    except SerialError as short:
        raise ProtocolError(f"the answer to ApiVersions v{sent} has only {len(frame)} bytes") from short
    if error == ErrorCode.UNSUPPORTED_VERSION and sent > 0:
        return RetryWith(min(_best_offered(frame), sent - 1))
    if error != ErrorCode.NONE:
        raise ProtocolError(f"ApiVersions v{sent} was refused: {describe(error)}")
    answer = decode_response(Api.API_VERSIONS, sent, frame)
    return {int(each.api_key): VersionRange(each.min_version, each.max_version) for each in answer.api_keys or ()}


def _best_offered(frame: bytes) -> int:
    """The version the refusal recommends, 0 if that cannot be read.

    A refusal has the layout of version 0 whatever was asked, and some brokers get even that wrong
    (`NetworkClient.java`, handleApiVersionsResponse).
    """
    try:
        refusal = decode_response(Api.API_VERSIONS, 0, frame)
    except ProtocolError:
        return 0
    offered = (each.max_version for each in refusal.api_keys or () if each.api_key == Api.API_VERSIONS)
    return max(0, int(next(offered, 0)))


Ask = Callable[[Api, Fields], Awaitable[Any]]
"""Sends one request, behind nothing and before nothing else, and returns kio's answer; raises `PeerError`."""

_TO_CHECK: Mapping[str, str] = {
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
            talk.throw(AuthenticationFailed(f"{describe(error)}{said}; {_TO_CHECK[sasl.mechanism]}"))
        lifetime = _seconds(getattr(answer, "session_lifetime", None))
        message = await asyncio.to_thread(_next, talk, answer.auth_bytes or b"")  # Null where a broker sends that.
    return lifetime


async def _shake_hands(ask: Ask, mechanism: str) -> None:
    answer = await ask(Api.SASL_HANDSHAKE, {"mechanism": mechanism})
    error = int(answer.error_code)
    if error:
        # The codec reads a null name as well as a null list.
        offered = ", ".join(filter(None, answer.mechanisms or ())) or "none"
        raise AuthenticationFailed(f"{describe(error)}: the listener offers {offered}; {fault(error).remedy()}")


def _next(talk: Conversation, answer: bytes | None) -> bytes | None:
    """Next message to send; None at the end, as StopIteration does not pass through a future."""
    try:
        return next(talk) if answer is None else talk.send(answer)
    except StopIteration:
        return None


def _seconds(lifetime: timedelta | None) -> float | None:
    """Session length in seconds. 0 is Kafka's word for "no end"; versions before 1 have no word for it."""
    return lifetime.total_seconds() if lifetime else None


_CORRELATION_IDS = 2**31
_TOLD_AS_THEY_ARE = (ProtocolError, AuthenticationFailed)


class Pending(NamedTuple):
    """Request whose answer is still to come."""

    correlation_id: int
    what: str
    answer: asyncio.Future[bytes | memoryview]
    in_place: bool = False
    """Its answer is read where it was received, before the next request is sent."""


class InFlight:
    """Requests in flight, in the order in which they were sent. Belongs to the event loop that it was made in."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        """There are none, and no answer that is to be read in place waits for its caller's turn. Not the same as every
        caller having gone: one that is cancelled leaves its request."""
        self.idle.set()
        self._sent = 0
        self._unread = False
        """An answer was delivered that is to be read in place, and its caller has not had its turn yet."""
        self._pending: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def next_id(self) -> int:
        """Correlation id of the next request."""
        return self._sent % _CORRELATION_IDS

    def add(self, what: str, *, in_place: bool = False) -> Pending:
        """Note one more request, with `next_id`; `what` names it in errors."""
        pending = Pending(self.next_id, what, asyncio.get_running_loop().create_future(), in_place)
        self._sent += 1
        self._pending.append(pending)
        self.idle.clear()
        return pending

    def deliver(self, frame: memoryview) -> bool:
        """Hand the frame to the caller that waits for it; whether that reads it in place, and then says `taken`. Raises
        `ProtocolError` where it is not the next one's answer.
        """
        answered = codec.correlation_id(frame)
        if not self._pending or self._pending[0].correlation_id != answered:
            raise ProtocolError(f"an answer to request {answered}, which is not the next to be answered")
        pending = self._pending.popleft()
        is_awaited = not pending.answer.done()
        if is_awaited:
            pending.answer.set_result(frame if pending.in_place else bytes(frame))
        self._unread = pending.in_place and is_awaited
        self._look()
        return self._unread

    def taken(self, pending: Pending) -> None:
        """Its caller has the answer to read in place, or has gone. Caller: that one, which reads before it awaits."""
        if not pending.answer.cancel():
            self._unread = False
            self._look()

    def _look(self) -> None:
        # A log-in that is renewed meanwhile would be answered into the memory that the caller is about to read.
        if not self._pending and not self._unread:
            self.idle.set()

    def fail(self, failure: PeerError) -> None:
        """End all requests in flight with this failure."""
        kind = next((each for each in _TOLD_AS_THEY_ARE if isinstance(failure, each)), ConnectionLost)
        for pending in self._pending:
            if not pending.answer.done():
                pending.answer.set_exception(kind(f"{pending.what}: {failure}"))
                # Marks it as seen: a caller cancelled while writing will not come for it.
                pending.answer.exception()
        self._pending.clear()


logger = logging.getLogger("kunicorn.wire.connection")

_CLIENT_SOFTWARE: Fields = {"client_software_name": "kunicorn", "client_software_version": __version__}
"""KIP-511. Letters, digits, dots and dashes only: brokers answer anything else with INVALID_REQUEST (42)."""

_RENEW_FROM, _RENEW_UNTIL = 0.85, 0.95
"""When a session is renewed, by its length; as in `SaslClientAuthenticator.java`, at random, so that the connections of
a restarted service do not all come at once."""
_RENEW_PAUSE = 1.1
"""A broker takes a renewal within a second for an error (`KafkaChannel.java`, MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS); a
session that is shorter ends, and another connection follows."""

_LOGIN_BYTES = 64 * 1024
"""The longest answer until we are logged in, and while we log in anew: nobody has shown yet that it is a broker. Its
words are kept, and told: a hundred megabytes of them on each connection would fill the memory, and the log."""

_LONGEST_MUTE = 60.0
"""Seconds for which a broker over quota is believed: a wrong number would silence the connection for weeks."""


class Connection:
    """An open, negotiated connection. Made by `open`; belongs to the event loop that opened it."""

    def __init__(self, address: Address, client_id: str) -> None:
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
        self._loop = asyncio.get_running_loop()
        self._versions = Negotiated({Api.API_VERSIONS: OURS[Api.API_VERSIONS]}, str(address))
        self._pending = InFlight()
        self._sending = asyncio.Lock()
        self._muted_until = 0.0
        self._opened = self._proven = False
        self._frames = Frames(self._pending.deliver, self._end)
        self._frames.most_bytes = _LOGIN_BYTES
        self._renewing: asyncio.Task[None] | None = None
        self._renewal_waits = False
        """For nothing to be in flight."""

    @classmethod
    async def open(cls, address: Address, security: Security, client_id: str, timeout: float) -> Connection:
        """Connect, negotiate versions and authenticate, in `timeout` seconds altogether.

        Raises `AuthenticationFailed`, and other `PeerError`s.
        """
        try:
            async with asyncio.timeout(timeout):
                connection = cls(address, client_id)
                await connect(address, security, lambda: connection._frames)
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
                connection._frames.most_bytes = codec.MAX_FRAME_BYTES
                return connection
        except TimeoutError as error:
            raise RequestTimedOut(f"{address} did not answer as a broker does within {timeout:g} s") from error
        except (OSError, UnicodeError, OverflowError) as error:
            # The last two: a host name or a port that is none, as a broken advertised.listeners hands them out.
            raise ConnectionLost(f"cannot connect to {address}: {error}") from error

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer."""
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
        frame = await self._exchange(api, self._encoded(api, version, fields), timeout)
        try:
            with self._named():
                answer = codec.decode_response(api, version, bytes(frame))
        except ProtocolError as error:
            self._distrust(error)
            raise
        self._proven = True
        throttled: timedelta = getattr(answer, "throttle_time", timedelta())
        self.mute(throttled.total_seconds())
        return answer

    async def exchange(self, api: Api, frame_of: Callable[[int, str], bytes], silence: float) -> memoryview:
        """Send a request that the caller has written (`frame_of` a correlation id and a client id), and wait for the
        answer: from behind its correlation id, where it was received. It is valid until the next request is sent here,
        and until the caller awaits anything, as a log-in may be renewed then.

        Given up once nothing has arrived for `silence` seconds. What a quota holds back is not counted. Raises as
        `request`.
        """
        pending: Pending | None = None
        try:
            await self._after_renewal()
            async with self._sending:
                await self.unmuted()
                pending = self._send(api, lambda number: frame_of(number, self._client_id), in_place=True)
                async with asyncio.timeout(silence):
                    await self._flush(api)
            frame = await self._arrival(pending, silence)
        except TimeoutError as error:
            late = RequestTimedOut(f"{self.address} did not answer {api.title}: nothing came for {silence:g} s")
            self._shut(late)
            raise late from error
        finally:
            if pending is not None:
                self._pending.taken(pending)
        self._proven = True
        return memoryview(frame)[codec.CORRELATION_BYTES :]

    def mute(self, seconds: float) -> None:
        """Send nothing for so long: over quota the broker has stopped reading from this connection for as long as it
        says (KIP-219)."""
        self._muted_until = max(self._muted_until, self._loop.time() + min(seconds, _LONGEST_MUTE))

    async def unmuted(self) -> None:
        """Wait for what `mute` has said."""
        if (muted := self._muted_until - self._loop.time()) > 0:
            await asyncio.sleep(muted)

    def distrust(self, error: ProtocolError) -> None:
        """Close: the caller of `exchange` cannot read an answer."""
        self._distrust(error)

    def close(self) -> None:
        """Close at once; requests in flight end with `ConnectionLost`."""
        self._shut(ConnectionLost(f"the connection to {self.address} was closed on our side"))

    async def wait_closed(self) -> None:
        """Wait until the connection's tasks have ended. Caller: after `close`."""
        await asyncio.wait({self._frames.closed} if self._renewing is None else {self._frames.closed, self._renewing})

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What cannot be read names the broker that has said it."""
        try:
            yield
        except ProtocolError as error:
            raise ProtocolError(f"{self.address}: {error}") from error

    async def _negotiate(self) -> None:
        version = OURS[Api.API_VERSIONS].high
        while True:
            frame = await self._converse(Api.API_VERSIONS, version, _CLIENT_SOFTWARE)
            with self._named():
                outcome = read_api_versions(version, frame)
            if not isinstance(outcome, RetryWith):
                self._versions = Negotiated(outcome, str(self.address))
                return
            version = outcome.version

    async def _authenticate(self, sasl: Sasl, timeout: float) -> None:
        """Authenticate, and schedule the renewals, each within `timeout` seconds."""

        async def ask(api: Api, fields: Fields) -> Any:
            version = self.version(api)
            frame = await self._converse(api, version, fields)
            with self._named():
                return codec.decode_response(api, version, frame)

        lifetime = await authenticate(ask, sasl, str(self.address))
        if lifetime is not None:
            self._renewing = self._loop.create_task(
                self._renew(lifetime, lambda: authenticate(ask, sasl, str(self.address)), timeout),
                name=f"authenticate anew with {self.address}",
            )

    async def _renew(
        self, lifetime: float | None, authenticate_anew: Callable[[], Awaitable[float | None]], timeout: float
    ) -> None:
        """Authenticate anew on the same connection before each session's end."""
        try:
            while lifetime is not None:
                await asyncio.sleep(max(_RENEW_PAUSE, lifetime * random.uniform(_RENEW_FROM, _RENEW_UNTIL)))
                async with self._quiet(), asyncio.timeout(timeout):
                    self._frames.most_bytes = _LOGIN_BYTES
                    lifetime = await authenticate_anew()
                    self._frames.most_bytes = codec.MAX_FRAME_BYTES
                logger.debug("authenticated anew with %s", self.address)
        except TimeoutError:
            self._lose_session(AuthenticationFailed(f"{self.address} did not answer within {timeout:g} s"))
        except PeerError as error:
            self._lose_session(error)

    @asynccontextmanager
    async def _quiet(self) -> AsyncIterator[None]:
        """Hold back other requests, from a moment on when nothing is in flight."""
        self._renewal_waits = True
        try:
            while True:
                await self._pending.idle.wait()
                async with self._sending:
                    if self._pending.idle.is_set():
                        yield
                        return
        finally:
            self._renewal_waits = False

    async def _after_renewal(self) -> None:
        """Let a renewal that waits for the connection to be at rest go first. Else the next request of whoever has just
        got its answer is sent within the same turn of the loop, and that moment never comes."""
        if self._renewal_waits and self._pending.idle.is_set():
            await asyncio.sleep(0)

    def _lose_session(self, failure: PeerError) -> None:
        """Close the connection, if it is open: at the session's end the broker would hang up without a word."""
        if not self.closed:
            logger.warning("authenticating anew failed, the connection is closed: %s", failure)
            self.failure = failure
            self._shut(failure)

    async def _converse(self, api: Api, version: int, fields: Fields) -> bytes:
        """Send one request on a connection that nobody else uses now; the caller sets the time limit."""
        pending = self._send(api, self._encoded(api, version, fields))
        await self._flush(api)
        return bytes(await pending.answer)

    def _encoded(self, api: Api, version: int, fields: Fields) -> Callable[[int], bytes]:
        return lambda number: codec.encode_request(api, version, number, self._client_id, fields)

    async def _exchange(self, api: Api, frame_of: Callable[[int], bytes], timeout: float) -> bytes | memoryview:
        """Send one request; the frame that answers it, undecoded."""
        pending: Pending | None = None
        try:
            async with asyncio.timeout(timeout):
                await self._after_renewal()
                async with self._sending:
                    await self.unmuted()
                    pending = self._send(api, frame_of)
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

    async def _arrival(self, pending: Pending, silence: float) -> bytes | memoryview:
        """The answer. Raises `TimeoutError` once nothing has arrived here for so many seconds."""
        sent = self._loop.time()
        while not pending.answer.done():
            left = max(sent, self._frames.heard_at) + silence - self._loop.time()
            if left <= 0:
                raise TimeoutError
            await asyncio.wait({pending.answer}, timeout=left)
        return pending.answer.result()

    async def _flush(self, api: Api) -> None:
        try:
            await self._frames.drain()
        except OSError as error:
            lost = ConnectionLost(f"{api.title}: {self.address} closed the connection: {error}")
            self._shut(lost)
            raise lost from error

    def _send(self, api: Api, frame_of: Callable[[int], bytes], *, in_place: bool = False) -> Pending:
        if self.closed:
            why = f": {self.failure}" if self.failure is not None else ""
            raise ConnectionLost(f"{api.title}: the connection to {self.address} is closed{why}")
        frame = frame_of(self._pending.next_id)
        pending = self._pending.add(api.title, in_place=in_place)
        self._frames.transport.write(frame)
        return pending

    def _end(self, why: ProtocolError | Exception | None) -> None:
        """Close: no frame comes any more."""
        if isinstance(why, ProtocolError):
            hint = "" if self._proven else "; check security_protocol"
            self._distrust(ProtocolError(f"{self.address}: {why}{hint}"))
            return
        if why is not None and (refusal := refused_by_alert(why, str(self.address))) is not None:
            self._shut(refusal)
            return
        reason = "" if why is None else f" ({why})"
        # A listener that wants TLS or SASL hangs up on the first plain request, without a word.
        hint = "" if self._proven else " at the first request; if it always does, check security_protocol"
        self._shut(ConnectionLost(f"{self.address} closed the connection{reason}{hint}"))

    def _distrust(self, error: ProtocolError) -> None:
        """Close, and log the reason unless somebody opens it, who tells of it: later there may be no caller, or one
        that has another broker to ask."""
        if not self.closed:
            self.failure = error
            if self._opened:
                logger.warning(
                    "a connection is closed, and another one takes its place: %s; if that goes on, look for what "
                    "answers in the broker's place, or report it with the brokers' version",
                    error,
                )
        self._shut(error)

    def _shut(self, failure: PeerError) -> None:
        """Close, and end all requests with this failure. The first reason counts."""
        if self.closed:
            return
        self.closed = True
        if self._pending:
            self.failure = failure
        self._pending.fail(failure)
        if self._renewing is not None and self._renewing is not asyncio.current_task():
            self._renewing.cancel()
        self._frames.transport.abort()
