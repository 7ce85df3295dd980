"""SASL over a connection: the exchange, what a session's length leads to, and what must not be sent beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest

from kunicorn.kafka import codec
from kunicorn.kafka import connection as connections
from kunicorn.kafka.auth import BearerToken, Sasl, Security
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.coordinator import heartbeat
from kunicorn.kafka.errors import AuthenticationFailed, ConnectionLost, ProtocolError
from kunicorn.kafka.versions import Api
from tests.fakes.broker import Asked, FakeBroker, Reply
from tests.fakes.messages import blank_response, response_frame

PLAIN = Sasl("PLAIN", username="alice", password=lambda: "hunter2")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are renewed after a hundredth of their length."""
    monkeypatch.setattr(connections, "_RENEW_PAUSE", 0.0)
    monkeypatch.setattr(connections, "_RENEW_FROM", 0.009)
    monkeypatch.setattr(connections, "_RENEW_UNTIL", 0.01)


async def logged_in(broker: FakeBroker, sasl: Sasl = PLAIN) -> Connection:
    return await Connection.open(broker.address, Security("SASL_PLAINTEXT", sasl=sasl), "c", 60.0)


def lasting(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def sessions(broker: FakeBroker, *seconds: float) -> None:
    """The broker lets everybody in, for so long each time; the last one counts for all that follow."""
    left = list(seconds)

    def answer(asked: Asked) -> Reply:
        length = left.pop(0) if len(left) > 1 else left[0]
        return blank_response(Api.SASL_AUTHENTICATE, asked.version, session_lifetime=lasting(length))

    broker.script[Api.SASL_AUTHENTICATE] = answer


async def test_plain_sends_name_and_password_once_after_the_handshake(broker: FakeBroker) -> None:
    connection = await logged_in(broker)
    shake, login = (asked for asked in broker.asked if asked.api != Api.API_VERSIONS)
    assert (shake.api, shake.version, shake.message.mechanism) == (Api.SASL_HANDSHAKE, 1, "PLAIN")
    assert (login.api, login.version, login.message.auth_bytes) == (Api.SASL_AUTHENTICATE, 2, b"\0alice\0hunter2")
    connection.close()


async def test_a_token_is_sent_with_its_extensions(broker: FakeBroker) -> None:
    token = BearerToken("t0ken", {"logicalCluster": "lkc-1"})
    connection = await logged_in(broker, Sasl("OAUTHBEARER", token=lambda: token))
    assert broker.asked[-1].message.auth_bytes == b"n,,\x01auth=Bearer t0ken\x01logicalCluster=lkc-1\x01\x01"
    connection.close()


async def test_a_refused_token_is_acknowledged_and_told_with_the_brokers_reason(broker: FakeBroker) -> None:
    def refuse(asked: Asked) -> Reply:
        if asked.message.auth_bytes == b"\x01":
            return blank_response(Api.SASL_AUTHENTICATE, asked.version, error_code=58, error_message="no")
        return blank_response(Api.SASL_AUTHENTICATE, asked.version, auth_bytes=b'{"status":"invalid_token"}')

    broker.script[Api.SASL_AUTHENTICATE] = refuse
    with pytest.raises(AuthenticationFailed, match=r"SASL_AUTHENTICATION_FAILED \(58\) \(no\).*invalid_token"):
        await logged_in(broker, Sasl("OAUTHBEARER", token=lambda: BearerToken("t0ken")))


@pytest.mark.parametrize(
    ("names", "told"),
    [(b"\0\0\0\2\xff\xff\0\3GSS", "offers GSS;"), (b"\xff\xff\xff\xff", "offers none;")],
    ids=["one of two", "all"],
)
async def test_mechanisms_without_a_name_are_left_out_of_what_is_told(
    broker: FakeBroker, names: bytes, told: str
) -> None:
    broker.script[Api.SASL_HANDSHAKE] = lambda asked: asked.correlation_id.to_bytes(4, "big") + b"\0\x21" + names
    with pytest.raises(AuthenticationFailed, match=told):
        await logged_in(broker)


async def test_a_session_that_ends_is_renewed_before_on_the_same_connection(broker: FakeBroker, soon: None) -> None:
    sessions(broker, 5.0, 0.0)
    connection = await logged_in(broker)
    await broker.wait_for(Api.SASL_AUTHENTICATE, 2)
    assert broker.connections == 1
    await connection.request(Api.HEARTBEAT, heartbeat("g", 1, "m", None), 60.0)
    assert broker.apis().count(Api.SASL_HANDSHAKE) == 2, "a session without an end is not renewed"
    connection.close()
    await connection.wait_closed()


async def test_a_session_is_renewed_between_requests_that_follow_each_other_without_a_pause(
    broker: FakeBroker, soon: None
) -> None:
    sessions(broker, 5.0, 0.0)
    connection = await logged_in(broker)
    async with asyncio.timeout(60):
        while broker.apis().count(Api.SASL_HANDSHAKE) < 2:
            await connection.request(Api.HEARTBEAT, heartbeat("g", 1, "m", None), 60.0)
    assert broker.connections == 1
    connection.close()
    await connection.wait_closed()


async def test_a_session_of_the_greatest_length_there_is_has_no_end_that_matters(broker: FakeBroker) -> None:
    """Some brokers say "for ever" as the largest int64, which no timedelta holds."""

    def for_ever(asked: Asked) -> Reply:
        blank = blank_response(Api.SASL_AUTHENTICATE, asked.version)
        correlation_id = 2
        frame = response_frame(correlation_id, blank)
        return frame[:-9] + (2**63 - 1).to_bytes(8, "big") + frame[-1:]

    broker.script[Api.SASL_AUTHENTICATE] = for_ever
    connection = await logged_in(broker)
    assert not connection.closed
    connection.close()
    await connection.wait_closed()


async def test_nothing_is_in_flight_and_nothing_else_is_sent_while_a_session_is_renewed(
    broker: FakeBroker, soon: None
) -> None:
    """Between SaslHandshake and the end of the exchange, brokers take any other request for an attack."""
    joined, renewing, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def parked(asked: Asked) -> Reply:
        await joined.wait()
        return blank_response(Api.HEARTBEAT, asked.version)

    async def handshake(asked: Asked) -> Reply:
        if broker.apis().count(Api.SASL_HANDSHAKE) == 2:
            renewing.set()
            await go_on.wait()
        return blank_response(Api.SASL_HANDSHAKE, asked.version)

    sessions(broker, 10.0, 0.0)
    broker.script |= {Api.HEARTBEAT: parked, Api.SASL_HANDSHAKE: handshake}
    connection = await logged_in(broker)
    waiting = asyncio.create_task(connection.request(Api.HEARTBEAT, heartbeat("g", 1, "m", None), 60.0))
    await broker.wait_for(Api.HEARTBEAT)
    # Longer than the session's part after which it is renewed.
    _, still = await asyncio.wait({asyncio.create_task(renewing.wait())}, timeout=0.3)
    assert still
    assert connection.in_flight == 1, "renewed behind a request that is still to be answered"
    joined.set()
    await waiting
    await renewing.wait()
    next_one = asyncio.create_task(connection.request(Api.HEARTBEAT, heartbeat("g", 2, "m", None), 60.0))
    await asyncio.sleep(0)
    go_on.set()
    await next_one
    first, *_, last_login, last = broker.apis()
    assert (first, last_login, last) == (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.HEARTBEAT)
    connection.close()
    await connection.wait_closed()


def exchanged(connection: Connection) -> Coroutine[Any, Any, memoryview]:
    fields = heartbeat("g", 1, "m", None)
    return connection.exchange(
        Api.HEARTBEAT, lambda number, client: codec.encode_request(Api.HEARTBEAT, 4, number, client, fields), 60.0
    )


def held_back(broker: FakeBroker) -> asyncio.Event:
    """Heartbeats are answered once it is set."""
    due = asyncio.Event()

    async def late(asked: Asked) -> Reply:
        await due.wait()
        return blank_response(Api.HEARTBEAT, asked.version)

    broker.script[Api.HEARTBEAT] = late
    return due


async def test_a_session_is_not_renewed_before_an_answer_that_is_read_where_it_was_received_is_taken(
    broker: FakeBroker, soon: None
) -> None:
    """The broker's next word would be received there, too."""
    sessions(broker, 1.0, 0.0)
    due = held_back(broker)
    connection = await logged_in(broker)
    left: list[int] = []

    async def ask() -> None:
        await exchanged(connection)
        left.append(connection.in_flight)

    asking = asyncio.create_task(ask())
    await broker.wait_for(Api.HEARTBEAT)
    # Longer than the session's part after which it is renewed.
    await asyncio.wait({asking}, timeout=0.1)
    due.set()
    await asking
    assert left == [0], "the renewal was begun before"
    await broker.wait_for(Api.SASL_AUTHENTICATE, 2)
    connection.close()
    await connection.wait_closed()


async def test_an_exchange_whose_caller_has_gone_does_not_stop_renewals(broker: FakeBroker, soon: None) -> None:
    sessions(broker, 1.0, 0.0)
    due = held_back(broker)
    connection = await logged_in(broker)
    asking = asyncio.create_task(exchanged(connection))
    await broker.wait_for(Api.HEARTBEAT)
    asking.cancel()
    await asyncio.wait({asking})
    due.set()
    await broker.wait_for(Api.SASL_AUTHENTICATE, 2)
    connection.close()
    await connection.wait_closed()


async def test_a_session_that_cannot_be_renewed_closes_the_connection_with_the_reason(
    broker: FakeBroker, soon: None
) -> None:
    def second_time_refused(asked: Asked) -> Reply:
        error = 58 if broker.apis().count(Api.SASL_AUTHENTICATE) == 2 else 0
        return blank_response(Api.SASL_AUTHENTICATE, asked.version, error_code=error, session_lifetime=lasting(5.0))

    broker.script[Api.SASL_AUTHENTICATE] = second_time_refused
    connection = await logged_in(broker)
    async with asyncio.timeout(60):
        await connection.wait_closed()
    assert connection.closed
    assert isinstance(connection.failure, AuthenticationFailed)
    with pytest.raises(ConnectionLost, match=r"SASL_AUTHENTICATION_FAILED \(58\).*sasl_password"):
        await connection.request(Api.HEARTBEAT, heartbeat("g", 1, "m", None), 60.0)


async def test_a_request_whose_caller_has_gone_does_not_stop_renewals(broker: FakeBroker, soon: None) -> None:
    """It stays in the queue, answered or not yet."""
    sessions(broker, 10.0, 0.0)
    answer = held_back(broker)
    connection = await logged_in(broker)
    caller = asyncio.create_task(connection.request(Api.HEARTBEAT, heartbeat("g", 1, "m", None), 60.0))
    await broker.wait_for(Api.HEARTBEAT)
    caller.cancel()
    answer.set()
    await broker.wait_for(Api.SASL_AUTHENTICATE, 2)
    connection.close()
    await connection.wait_closed()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_password_is_read_beside_the_event_loop(broker: FakeBroker, mechanism: str) -> None:
    readers: list[int] = []

    def password() -> str:
        readers.append(threading.get_ident())
        raise AuthenticationFailed("no password today")

    with pytest.raises(AuthenticationFailed, match="no password today"):
        await logged_in(broker, Sasl(mechanism, username="alice", password=password))
    assert readers
    assert threading.get_ident() not in readers


async def test_a_signature_of_scram_that_is_not_ascii_is_told_with_the_broker_and_what_to_do(
    broker: FakeBroker,
) -> None:
    def answer(asked: Asked) -> Reply:
        sent: bytes = asked.message.auth_bytes
        first = b"r=" + sent.rpartition(b"r=")[2] + b"x,s=c2FsdA==,i=4096"
        said = first if sent.startswith(b"n,,") else "v=é".encode()
        return blank_response(Api.SASL_AUTHENTICATE, asked.version, auth_bytes=said)

    broker.script[Api.SASL_AUTHENTICATE] = answer
    with pytest.raises(AuthenticationFailed, match=rf"{broker.address} and SASL SCRAM.*kafka\.bootstrap_servers"):
        await logged_in(broker, Sasl("SCRAM-SHA-256", username="alice", password=lambda: "hunter2"))


async def test_an_answer_without_any_bytes_is_a_refusal_by_scram(broker: FakeBroker) -> None:
    def null(asked: Asked) -> Reply:
        blank = blank_response(Api.SASL_AUTHENTICATE, asked.version)
        frame = response_frame(2, blank)
        # No error, no message; then the length of what it says, whose 0 is null.
        return frame[:8] + b"\0" + frame[9:]

    broker.script[Api.SASL_AUTHENTICATE] = null
    with pytest.raises(AuthenticationFailed, match="nonce"):
        await logged_in(broker, Sasl("SCRAM-SHA-256", username="alice", password=lambda: "hunter2"))


@pytest.mark.parametrize("api", [Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.API_VERSIONS])
async def test_an_answer_of_a_hundred_kilobytes_before_the_log_in_is_not_received(broker: FakeBroker, api: Api) -> None:
    broker.script[api] = lambda asked: asked.correlation_id.to_bytes(4, "big") + bytes(100_000)
    with pytest.raises(ProtocolError, match=rf"{broker.address}.*announce 100004 bytes"):
        await logged_in(broker)


async def test_an_answer_of_a_hundred_kilobytes_is_received_after_the_log_in_and_not_in_a_renewal(
    broker: FakeBroker, soon: None
) -> None:
    def second_time_long(asked: Asked) -> Reply:
        if broker.apis().count(Api.SASL_AUTHENTICATE) == 2:
            return asked.correlation_id.to_bytes(4, "big") + bytes(100_000)
        return blank_response(Api.SASL_AUTHENTICATE, asked.version, session_lifetime=lasting(5.0))

    long = blank_response(Api.HEARTBEAT, 4)
    broker.script |= {
        Api.SASL_AUTHENTICATE: second_time_long,
        Api.HEARTBEAT: lambda asked: response_frame(asked.correlation_id, long) + bytes(100_000),
    }
    connection = await logged_in(broker)
    await connection.request(Api.HEARTBEAT, heartbeat("g", 1, "m", None), 60.0)
    async with asyncio.timeout(60):
        await connection.wait_closed()
    assert "announce 100004 bytes" in str(connection.failure)


def test_nothing_that_describes_a_login_shows_its_secrets() -> None:
    token = BearerToken("hunter2", {"key": "hunter2"})
    security = Security("SASL_PLAINTEXT", sasl=Sasl("PLAIN", username="alice", password=lambda: "hunter2"))
    assert "hunter2" not in f"{security!r} {token!r} {PLAIN!r}"
    assert "alice" in repr(security)
