"""One connection: negotiation, pipelining, and every way in which it can break."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from kunicorn.kafka import auth, codec
from kunicorn.kafka.auth import Address, Security
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.coordinator import heartbeat
from kunicorn.kafka.errors import ConnectionLost, ProtocolError, RequestTimedOut, UnsupportedByBroker
from kunicorn.kafka.versions import RESPONSES, Api
from tests.fakes.broker import Asked, FakeBroker, HangUp, Reply, Silence, Slowly, connect
from tests.fakes.messages import blank_response, nested, response_frame
from tests.fakes.virtual_loop import virtual_time

HINT = "at the first request; if it always does, check security_protocol"


@pytest.fixture
async def connection(broker: FakeBroker) -> AsyncIterator[Connection]:
    connection = await connect(broker)
    yield connection
    connection.close()
    await connection.wait_closed()


async def beat(connection: Connection, timeout: float = 60.0, generation: int = 1) -> Any:
    return await connection.request(Api.HEARTBEAT, heartbeat("g", generation, "m", None), timeout)


def echo(asked: Asked) -> Reply:
    """Answers a heartbeat with its own generation as the error, so that answers can be told apart."""
    return blank_response(Api.HEARTBEAT, asked.version, error_code=asked.message.generation_id)


# -- negotiation ---------------------------------------------------------------------------------------------


async def test_the_first_request_tells_who_we_are(broker: FakeBroker, connection: Connection) -> None:
    first = broker.asked[0]
    assert (first.api, first.version, first.client_id) == (Api.API_VERSIONS, 4, "the-client")
    assert first.message.client_software_name == "kunicorn"
    assert connection.version(Api.JOIN_GROUP) == 9


@pytest.mark.parametrize(("offered", "asked"), [([0, 2], [4, 2]), (None, [4, 0])])
async def test_an_older_broker_is_asked_again_in_its_own_version(
    broker: FakeBroker, offered: list[int] | None, asked: list[int]
) -> None:
    def refuse_above_2(request: Asked) -> Reply:
        if request.version <= 2:
            return broker.api_versions(request)
        if offered is None:
            return b"\0\0\0\0\x00\x23\xff"
        row = nested(RESPONSES[Api.API_VERSIONS, 0], "api_keys")
        rows = (row(api_key=18, min_version=offered[0], max_version=offered[1]),)
        return response_frame(0, blank_response(Api.API_VERSIONS, 0, error_code=35, api_keys=rows))

    broker.script[Api.API_VERSIONS] = refuse_above_2
    connection = await connect(broker)
    assert [each.version for each in broker.asked] == asked
    assert connection.version(Api.HEARTBEAT) == 4
    connection.close()


async def test_requests_use_the_version_that_was_negotiated() -> None:
    async with FakeBroker(versions={Api.HEARTBEAT: (0, 3)}) as broker:
        connection = await connect(broker)
        await beat(connection)
        assert broker.asked[-1].version == 3
        connection.close()


async def test_an_api_that_the_broker_lacks_is_refused_before_anything_is_sent(broker: FakeBroker) -> None:
    broker.versions[Api.HEARTBEAT] = (9, 9)
    connection = await connect(broker)
    with pytest.raises(UnsupportedByBroker, match="offers Heartbeat in versions 9-9"):
        await beat(connection)
    assert broker.apis() == []
    connection.close()


async def test_a_connection_that_is_silent_is_looked_after(connection: Connection) -> None:
    """What forgets silent connections on the way says nothing of it."""
    sock = connection._frames.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_nobody_listening_is_a_lost_connection(broker: FakeBroker) -> None:
    await broker.stop()
    with pytest.raises(ConnectionLost, match=f"cannot connect to {broker.address}"):
        await connect(broker)


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Address]]:
    """A name for any port: at its first address nobody answers, not even to refuse; the other is this machine's."""
    monkeypatch.setattr(auth, "_EACH_SECONDS", 0.05)
    with contextlib.ExitStack() as sockets:

        def named(port: int) -> Address:
            silent = sockets.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
            for _ in range(4):
                # Nobody accepts: once there is no room for more, the system leaves out who comes.
                waits = sockets.enter_context(socket.socket())
                waits.setblocking(False)
                waits.connect_ex(silent.getsockname())
            there = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]

            async def getaddrinfo(host: str, *_: Any, **__: Any) -> Any:
                assert host == "broker.test"
                return there

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
            return Address("broker.test", port)

        yield named


async def test_of_a_name_with_two_addresses_the_one_that_answers_is_connected_to(
    broker: FakeBroker, two_addresses: Callable[[int], Address]
) -> None:
    connection = await Connection.open(two_addresses(broker.port), Security(), "kunicorn", timeout=60)
    connection.close()


async def test_a_name_of_which_no_address_answers_is_told_with_each_of_them(
    broker: FakeBroker, two_addresses: Callable[[int], Address]
) -> None:
    address = two_addresses(broker.port)
    await broker.stop()
    with pytest.raises(
        ConnectionLost, match=r"broker\.test:\d+: 127\.0\.0\.2: no answer within 0\.05 s; 127\.0\.0\.1: .*"
    ):
        await Connection.open(address, Security(), "kunicorn", timeout=60)


async def test_a_broker_that_hangs_up_on_the_versions_has_another_security_protocol(broker: FakeBroker) -> None:
    broker.script[Api.API_VERSIONS] = lambda _: HangUp
    with pytest.raises(ConnectionLost, match=HINT):
        await connect(broker)


async def test_a_broker_that_never_answers_costs_the_time_out(broker: FakeBroker) -> None:
    broker.script[Api.API_VERSIONS] = lambda _: Silence
    with pytest.raises(RequestTimedOut, match=f"{broker.address} did not answer as a broker does within 0.05 s"):
        await connect(broker, timeout=0.05)


async def test_a_tls_alert_is_no_answer(broker: FakeBroker) -> None:
    async def alert(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("15030300020246"))
        writer.close()

    async with await asyncio.start_server(alert, "127.0.0.1", 0) as server:
        broker.port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProtocolError, match=r"its listener speaks TLS: set kafka.security_protocol"):
            await connect(broker)


# -- requests and answers ------------------------------------------------------------------------------------


@pytest.mark.scenario("NetworkClientDelegateTest")
async def test_requests_are_pipelined_and_each_gets_its_own_answer(broker: FakeBroker, connection: Connection) -> None:
    release = asyncio.Event()

    async def hold(asked: Asked) -> Reply:
        await release.wait()
        return echo(asked)

    broker.script[Api.HEARTBEAT] = hold
    beats = [asyncio.create_task(beat(connection, generation=number)) for number in range(5)]
    await broker.wait_for(Api.HEARTBEAT)
    assert connection.in_flight == 5
    release.set()
    assert [answer.error_code for answer in await asyncio.gather(*beats)] == [0, 1, 2, 3, 4]
    assert connection.in_flight == 0


async def test_an_answer_to_another_request_ends_the_connection(broker: FakeBroker, connection: Connection) -> None:
    broker.script[Api.HEARTBEAT] = lambda asked: response_frame(999, echo(asked))
    with pytest.raises(ProtocolError, match="an answer to request 999, which is not the next to be answered"):
        await beat(connection)
    assert connection.closed


async def test_swapped_answers_are_given_to_nobody(broker: FakeBroker, connection: Connection) -> None:
    broker.script[Api.HEARTBEAT] = lambda _: Silence
    beats = [asyncio.create_task(beat(connection, generation=number)) for number in (22, 25, 27)]
    await broker.wait_for(Api.HEARTBEAT, 3)
    for asked in reversed(broker.asked[1:]):
        broker.send(response_frame(asked.correlation_id, echo(asked)))
    outcomes = await asyncio.gather(*beats, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ProtocolError] * 3
    assert connection.closed


async def test_an_answer_that_nobody_asked_for_ends_the_connection_and_it_is_logged_why(
    broker: FakeBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    broker.send(response_frame(7, blank_response(Api.HEARTBEAT, 4)))
    await connection.wait_closed()
    assert connection.closed
    assert f"another one takes its place: {broker.address}: an answer to request 7" in caplog.text
    with pytest.raises(ConnectionLost, match=r"is closed: .* an answer to request 7, which is not the next"):
        await beat(connection)


async def test_an_unreadable_answer_ends_the_connection_and_it_is_logged_why(
    broker: FakeBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    broker.script[Api.HEARTBEAT] = lambda asked: response_frame(1, echo(asked))[:6]
    with pytest.raises(ProtocolError, match=f"{broker.address}: the answer to Heartbeat v4"):
        await beat(connection)
    assert connection.closed
    assert f"another one takes its place: {broker.address}: the answer to Heartbeat v4" in caplog.text


@pytest.mark.scenario("NetworkClientDelegateTest")
async def test_a_time_out_ends_the_connection_and_whoever_waits_behind_hears_of_it(
    broker: FakeBroker, connection: Connection
) -> None:
    broker.script[Api.HEARTBEAT] = lambda _: Silence
    behind = asyncio.create_task(beat(connection, timeout=60.0))
    with pytest.raises(RequestTimedOut, match=f"{broker.address} did not answer Heartbeat within 0.05 s"):
        await beat(connection, timeout=0.05)
    with pytest.raises(ConnectionLost, match=r"Heartbeat: .* did not answer Heartbeat within 0.05 s"):
        await behind
    assert connection.closed
    assert isinstance(connection.failure, RequestTimedOut)


async def test_a_cancelled_request_keeps_its_place_and_its_answer_goes_to_nobody_else(
    broker: FakeBroker, connection: Connection
) -> None:
    release = asyncio.Event()

    async def hold(asked: Asked) -> Reply:
        await release.wait()
        return echo(asked)

    broker.script[Api.HEARTBEAT] = hold
    cancelled = asyncio.create_task(beat(connection, generation=22))
    await broker.wait_for(Api.HEARTBEAT)
    cancelled.cancel()
    again = asyncio.create_task(beat(connection, generation=27))
    release.set()
    assert (await again).error_code == 27
    assert [asked.message.generation_id for asked in broker.asked[1:]] == [22, 27]
    assert not connection.closed


async def test_a_broker_over_quota_is_left_alone_as_long_as_it_says(broker: FakeBroker, connection: Connection) -> None:
    throttled, loop = timedelta(milliseconds=150), asyncio.get_running_loop()
    answered: list[float] = []

    def over_quota(asked: Asked) -> Reply:
        answered.append(loop.time())
        return blank_response(Api.HEARTBEAT, asked.version, throttle_time=throttled)

    broker.script[Api.HEARTBEAT] = over_quota
    await beat(connection)
    broker.script[Api.HEARTBEAT] = echo
    await beat(connection)
    assert loop.time() - answered[0] >= throttled.total_seconds()


async def test_waiting_for_the_quota_counts_as_waiting_and_breaks_nothing(
    broker: FakeBroker, connection: Connection
) -> None:
    throttled = timedelta(seconds=60)
    broker.script[Api.HEARTBEAT] = lambda asked: blank_response(Api.HEARTBEAT, asked.version, throttle_time=throttled)
    await beat(connection)
    with pytest.raises(RequestTimedOut, match=r"Heartbeat to .* not sent within 0.05 s"):
        await beat(connection, timeout=0.05)
    assert not connection.closed
    assert len(broker.apis()) == 1


@virtual_time()
async def test_a_quota_of_weeks_is_taken_for_a_mistake_and_a_minute_waited() -> None:
    async with FakeBroker(1) as broker:
        connection = await connect(broker)
        weeks = timedelta(days=24)
        broker.script[Api.HEARTBEAT] = lambda _: blank_response(Api.HEARTBEAT, 4, throttle_time=weeks)
        await beat(connection)
        broker.script[Api.HEARTBEAT] = echo
        await beat(connection, timeout=70.0)
        connection.close()
        await connection.wait_closed()


# -- large answers over slow lines ----------------------------------------------------------------------------


def exchange(connection: Connection, silence: float) -> Awaitable[memoryview]:
    """A request that the caller writes, and whose answer it reads in place."""

    def frame(number: int, client_id: str) -> bytes:
        return codec.encode_request(Api.HEARTBEAT, 4, number, client_id, heartbeat("g", 1, "m", None))

    return connection.exchange(Api.HEARTBEAT, frame, silence)


@virtual_time()
async def test_an_answer_that_goes_on_arriving_is_waited_for_and_one_that_stands_still_is_given_up() -> None:
    async with FakeBroker(1) as broker:
        connection, now = await connect(broker), asyncio.get_running_loop().time
        body = bytes(range(100))
        broker.script[Api.HEARTBEAT] = lambda asked: Slowly(asked.frame[4:8] + body, most=8, pause=6.0)
        began = now()
        assert bytes(await exchange(connection, silence=10.0)) == body
        assert now() - began > 60
        broker.script[Api.HEARTBEAT] = lambda asked: Slowly(asked.frame[4:8] + body, most=8, pause=6.0, is_cut=True)
        with pytest.raises(RequestTimedOut, match=f"{broker.address} did not answer Heartbeat: nothing came for 10 s"):
            await exchange(connection, silence=10.0)
        assert connection.closed


@virtual_time()
async def test_what_a_quota_holds_back_is_not_given_up_by_whoever_minds_silence_alone() -> None:
    async with FakeBroker(1) as broker:
        connection = await connect(broker)
        broker.script[Api.HEARTBEAT] = echo
        connection.mute(30.0)
        assert await exchange(connection, silence=10.0)
        connection.close()
        await connection.wait_closed()


# -- endings -------------------------------------------------------------------------------------------------


async def test_hanging_up_at_the_first_request_points_to_the_security_protocol(
    broker: FakeBroker, connection: Connection
) -> None:
    """A listener that wants SASL answers ApiVersions and hangs up on everything else."""
    broker.script[Api.HEARTBEAT] = lambda _: HangUp
    with pytest.raises(ConnectionLost, match=f"Heartbeat: {broker.address} closed the connection {HINT}"):
        await beat(connection)


async def test_hanging_up_later_points_to_nothing(broker: FakeBroker, connection: Connection) -> None:
    await beat(connection)
    broker.script[Api.HEARTBEAT] = lambda _: HangUp
    with pytest.raises(ConnectionLost) as lost:
        await beat(connection)
    assert "security_protocol" not in str(lost.value)
    assert isinstance(connection.failure, ConnectionLost)


async def test_an_idle_connection_that_the_broker_closes_is_no_failure(
    broker: FakeBroker, connection: Connection
) -> None:
    broker.hang_up()
    await connection.wait_closed()
    assert connection.closed
    assert connection.failure is None
    with pytest.raises(ConnectionLost, match=f"Heartbeat: the connection to {broker.address} is closed"):
        await beat(connection)


@pytest.mark.scenario("NetworkClientDelegateTest")
async def test_closing_tells_all_who_wait(broker: FakeBroker, connection: Connection) -> None:
    broker.script[Api.HEARTBEAT] = lambda _: Silence
    waiting = [asyncio.create_task(beat(connection)) for _ in range(3)]
    await broker.wait_for(Api.HEARTBEAT, 3)
    connection.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3
    await connection.wait_closed()


def test_it_goes_as_well_on_uvloop() -> None:
    async def whole_life() -> None:
        async with FakeBroker() as broker:
            broker.script[Api.HEARTBEAT] = echo
            connection = await Connection.open(broker.address, Security(), "c", 10.0)
            assert (await beat(connection, generation=25)).error_code == 25
            broker.script[Api.HEARTBEAT] = lambda _: Silence
            with pytest.raises(RequestTimedOut):
                await beat(connection, timeout=0.05)
            await connection.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole_life())
