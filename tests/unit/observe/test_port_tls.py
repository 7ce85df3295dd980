"""The HTTP port with a certificate, beside real sockets and on both event loops: who is answered, who holds nothing up,
and that a renewed certificate is shown without a restart.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from pydantic import SecretStr

from kunicorn.commands import status as status_command
from kunicorn.commands.control import RunningService
from kunicorn.errors import ConfigError
from kunicorn.observe.http import Server
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.port import MOST_HANDSHAKES, Port, ServerCertificate
from kunicorn.settings import HttpSettings
from kunicorn.supervisor.credentials import watch_certificate
from tests.kafka.certificates import Certificates, make_certificates
from tests.unit.observe.serving import TOKEN, Service, serving
from tests.unit.settings.files import LEAST, problem, problems

WITHIN = 60.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"), "hunter2")


@pytest.fixture
def mounted(made: Certificates, tmp_path: Path) -> Path:
    """A directory as a Secret is mounted: tls.crt and tls.key."""
    put(made, "server", tmp_path)
    return tmp_path


def put(made: Certificates, name: str, directory: Path) -> None:
    shutil.copy(made.certificate(name), directory / "tls.crt")
    shutil.copy(made.key(name), directory / "tls.key")


def files(directory: Path) -> dict[str, str]:
    return {"tls_certificate_file": str(directory / "tls.crt"), "tls_key_file": str(directory / "tls.key")}


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run on that loop: the service has uvloop, tests and Python's own server have asyncio."""

    def run(work: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work)

    return run


async def page(server: Server, path: str, trusted: ssl.SSLContext, scheme: str = "https") -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=WITHIN)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{scheme}://127.0.0.1:{server.port}{path}", ssl=trusted) as answer,
    ):
        return answer.status, await answer.text()


def shake_hands(port: int, context: ssl.SSLContext) -> None:
    """Blocks. Not over the loop: of a client that fails before it has sent anything uvloop leaves a socket whose
    descriptor is closed, and once that is somebody else's, the collector closes it again."""
    with socket.create_connection(("127.0.0.1", port), WITHIN) as plain:
        context.wrap_socket(plain, server_hostname="127.0.0.1").close()


async def shown(port: int) -> bytes:
    """The certificate that a new connection is shown."""

    def look() -> bytes:
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=WITHIN))

    return await asyncio.to_thread(look)


@asynccontextmanager
async def serving_at(directory: Path) -> AsyncIterator[tuple[int, ServerCertificate]]:
    """The number of a port that shows the certificate there, and that certificate."""
    port = Port(HttpSettings.model_validate({"host": "127.0.0.1", "port": 0, **files(directory)}))
    assert port.certificate is not None
    server = Server(HttpSettings(), Service().status, Metrics(), port=port)
    await server.start()
    try:
        yield port.number, port.certificate
    finally:
        await server.stop()


def in_file(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_every_page_is_served_over_tls_and_nothing_in_the_clear(
    made: Certificates, mounted: Path, on_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def work() -> None:
        async with serving(Service(), **files(mounted)) as server:
            trusted = ssl.create_default_context(cafile=str(made.ca))
            for path in ("/livez", "/readyz", "/metrics", "/status", "/"):
                assert (await page(server, path, trusted))[0] == 200, path
            with pytest.raises(aiohttp.ClientError):
                await page(server, "/livez", trusted, scheme="http")
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await page(server, "/livez", ssl.create_default_context(cafile=str(made.other_ca)))
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.load_verify_locations(made.ca)
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(shake_hands, server.port, old)

    with pytest.warns(DeprecationWarning, match=r"TLSv1_1"):
        on_loop(work())


def test_clients_that_do_not_end_their_handshake_shut_nobody_out(
    made: Certificates, mounted: Path, on_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def work() -> None:
        idle: list[socket.socket] = []
        async with serving(Service(), **files(mounted)) as server:
            try:
                for _ in range(3 * MOST_HANDSHAKES):
                    idle.append(socket.create_connection(("127.0.0.1", server.port), WITHIN))
                    # Half of a ClientHello's header.
                    idle[-1].sendall(b"\x16\x03\x01")
                    await asyncio.sleep(0)
                trusted = ssl.create_default_context(cafile=str(made.ca))
                assert (await page(server, "/livez", trusted)) == (200, "ok\n")
                idle[0].settimeout(WITHIN)
                assert await asyncio.to_thread(_ended, idle[0]), "the first one holds its descriptor"
            finally:
                for each in idle:
                    each.close()

    on_loop(work())


def _ended(sock: socket.socket) -> bool:
    """Whether the other end closes; blocks until then."""
    with suppress(ConnectionError):
        return sock.recv(1) == b""
    return True


def test_a_renewed_certificate_is_shown_and_half_of_one_is_not(
    made: Certificates, mounted: Path, on_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def work() -> None:
        told: asyncio.Queue[float] = asyncio.Queue()
        async with serving_at(mounted) as (port, certificate):
            watching = asyncio.create_task(watch_certificate(certificate, told.put_nowait, interval=0.01))
            try:
                async with asyncio.timeout(WITHIN):
                    assert 0 < await told.get() - time.time() < 3 * 86_400
                    before = await shown(port)
                    assert before == in_file(made.certificate("server"))
                    shutil.copy(made.certificate("misnamed"), mounted / "tls.crt")
                    for _ in range(5):
                        await told.get()
                    assert await shown(port) == before, "a certificate beside the key of another one"
                    shutil.copy(made.key("misnamed"), mounted / "tls.key")
                    while await shown(port) == before:
                        await told.get()
                    assert await shown(port) == in_file(made.certificate("misnamed"))
            finally:
                watching.cancel()

    on_loop(work())


def test_nobody_is_refused_while_a_certificate_is_renewed(
    made: Certificates, mounted: Path, on_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def work() -> None:
        async with serving_at(mounted) as (port, certificate):
            for name in ("misnamed", "server") * 50:
                looking = [asyncio.ensure_future(shown(port)) for _ in range(3)]
                put(made, name, mounted)
                await certificate.renew()
                assert set(await asyncio.gather(*looking)) <= both
                assert await shown(port) == in_file(made.certificate(name))

    both = {in_file(made.certificate(name)) for name in ("server", "misnamed")}
    on_loop(work())


def test_a_port_that_is_closed_lets_go_whoever_is_in_a_handshake(
    mounted: Path, on_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def work() -> None:
        async with serving(Service(), **files(mounted)) as server:
            port = server.port
            idle = socket.create_connection(("127.0.0.1", port), WITHIN)
            await shown(port)
        assert await asyncio.to_thread(_ended, idle)
        idle.close()
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", port), WITHIN)

    on_loop(work())


async def test_the_commands_of_this_machine_believe_the_certificate_of_the_settings(
    made: Certificates, mounted: Path, tmp_path: Path
) -> None:
    own = str(mounted / "tls.crt")
    async with serving(Service(), token=SecretStr(TOKEN), **files(mounted)) as server:
        url = f"https://127.0.0.1:{server.port}"
        told = await asyncio.to_thread(status_command.ask, url, own)
        assert told["partitions"]
        running = RunningService(url, TOKEN, WITHIN, own_certificate=own)
        assert (await asyncio.to_thread(running.ask, "reload", {}))["said"] == "reload is done"
        with pytest.raises(ConfigError, match=r"shows a certificate that does not verify: .*SSL_CERT_FILE"):
            await asyncio.to_thread(status_command.ask, url)
        with pytest.raises(ConfigError, match="shows a certificate that does not verify"):
            await asyncio.to_thread(status_command.ask, url, str(made.certificate("client")))
        with pytest.raises(ConfigError, match="no service answers at http://"):
            await asyncio.to_thread(status_command.ask, f"http://127.0.0.1:{server.port}", own)


async def test_what_speaks_no_tls_is_named() -> None:
    async with serving(Service()) as server:
        with pytest.raises(ConfigError, match=r"does not speak TLS: .*it is http://"):
            await asyncio.to_thread(status_command.ask, f"https://127.0.0.1:{server.port}")


async def test_a_key_that_is_another_ones_or_encrypted_ends_the_start(made: Certificates, tmp_path: Path) -> None:
    for certificate, key in (("server", "client"), ("client", "client-encrypted")):
        port = Port(
            HttpSettings(
                host="127.0.0.1",
                port=0,
                tls_certificate_file=str(made.certificate(certificate)),
                tls_key_file=str(made.key(key)),
            )
        )
        with pytest.raises(ConfigError, match=r"are not a certificate and its key in PEM .*must not be encrypted"):
            await port.bind()


def test_half_of_the_settings_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    name = str(tmp_path / "a.pem")
    assert problem(tmp_path, "http", f'tls_certificate_file = "{name}"').startswith(
        f"http.tls_key_file: not set beside tls_certificate_file = {name!r}; name its key"
    )
    assert problem(tmp_path, "http", f'tls_key_file = "{name}"').startswith(
        f"http.tls_certificate_file: not set beside tls_key_file = {name!r}; name the certificate"
    )
    both = f'{LEAST}[http]\ntls_certificate_file = "{name}"\ntls_key_file = "{tmp_path}/b.pem"\n'
    assert [each.partition("cannot")[2] for each in problems(tmp_path, both)] == [
        " be read: No such file or directory",
        " be read: No such file or directory",
    ]
