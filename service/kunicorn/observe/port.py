"""The port of [http], bound before anything else, so that one that is taken ends the start with no group joined. Apart
from the server that answers there (`observe.http`), for that start order: the server takes as long to load as all of
the rest, and is loaded after JoinGroup is sent.

With a certificate the port speaks TLS and nothing else (`ServerCertificate`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence

from kunicorn.errors import ConfigError
from kunicorn.kafka import tls
from kunicorn.observe import logs
from kunicorn.settings import HttpSettings

log = logs.get("kunicorn.http")

MOST_HANDSHAKES = 64
"""TLS handshakes in progress."""
_HANDSHAKE_SECONDS = 10.0
_GOODBYE_SECONDS = 1.0
_AFTER_FAILURE_SECONDS = 0.5


class ServerCertificate:
    """The certificate that the port shows, and its key, as they were read last. What a watch over certificates asks
    (`supervisor.credentials`)."""

    def __init__(self, certificate: str, key: str) -> None:
        """Reads nothing yet. Arguments: paths of PEM files."""
        self._files = (certificate, key)
        self._context: ssl.SSLContext | None = None

    def files(self) -> Sequence[str]:
        """Paths of the certificate and its key."""
        return self._files

    def ends(self) -> float:
        """When the certificate that is in its file now ends, in seconds since 1970. Raises `ConfigError`. Blocks on the
        disk."""
        return tls.ends("http.tls_certificate_file", self._files[0])

    async def renew(self, _seen_at: float = 0.0) -> bool:
        """Show what is in the files from now on; connections that are there keep theirs. Raises `ConfigError` where
        they are not a certificate and its key, and goes on with what was read before."""
        # Not into the context that is in use: clients that shake hands while it is loaded would be shown the new
        # certificate with the old key.
        self._context = await asyncio.to_thread(self._loaded)
        log.info("the files of http.tls_… are others: the port shows the new certificate")
        return True

    def context(self) -> ssl.SSLContext:
        """What the next connection is made with. Raises `ConfigError`. The first call blocks on the disk."""
        if self._context is None:
            self._context = self._loaded()
        return self._context

    def _loaded(self) -> ssl.SSLContext:
        certificate, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without a password given, OpenSSL would ask for that of an encrypted key at the terminal, and wait.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"http.tls_certificate_file = {certificate!r} and http.tls_key_file = {key!r} are not a certificate "
                f"and its key in PEM ({tls.why(error)}); the key must not be encrypted"
            ) from error
        return context


class Port:
    """One listening address; bound once, served once."""

    def __init__(self, settings: HttpSettings) -> None:
        self.host = settings.host
        self.number = settings.port
        """Once it is bound a real one where 0 was asked for."""
        self.scheme = settings.scheme
        self.certificate: ServerCertificate | None = None
        """None: the port speaks HTTP in the clear."""
        if settings.tls_certificate_file is not None and settings.tls_key_file is not None:
            self.certificate = ServerCertificate(settings.tls_certificate_file, settings.tls_key_file)
        self._bound: asyncio.Server | None = None
        self._connection: Callable[[], asyncio.BaseProtocol] | None = None
        self._secured: list[_SecuredListener] = []

    async def bind(self) -> None:
        """Bind the port; clients are refused until `serve`. Nothing if it is bound. Raises `ConfigError`."""
        if self._bound is not None:
            return
        if self.certificate is not None:
            await asyncio.to_thread(self.certificate.context)
        loop = asyncio.get_running_loop()
        try:
            self._bound = await loop.create_server(self._connect, self.host, self.number, start_serving=False)
        except OSError as error:
            raise ConfigError(_cannot_listen(self.host, self.number, error)) from error
        self.number = self._bound.sockets[0].getsockname()[1]

    async def serve(self, connection: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept clients, a `connection` for each. Raises `ConfigError`. Caller: after `bind`."""
        assert self._bound is not None
        self._connection = connection
        try:
            if self.certificate is None:
                await self._bound.start_serving()
            else:
                for bound in self._bound.sockets:
                    self._secured.append(_SecuredListener(bound.fileno(), connection, self.certificate))
        except OSError as error:
            raise ConfigError(_cannot_listen(self.host, self.number, error)) from error

    def close(self) -> None:
        """Close the port; connections stay, but for those that are not through their handshake."""
        for listener in self._secured:
            listener.close()
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    def _connect(self) -> asyncio.BaseProtocol:
        assert self._connection is not None
        return self._connection()


class _SecuredListener:
    """Accepts clients of a bound socket and shakes hands with them. `create_server(ssl=…)` does, too, but without a
    bound: clients that do not end their handshake would use up descriptors that brokers and workers need. Here the one
    beyond the bound takes the place of the one that came first."""

    def __init__(
        self, bound: int, connection: Callable[[], asyncio.BaseProtocol], certificate: ServerCertificate
    ) -> None:
        """Listens from now on. `bound`: a descriptor, which stays its owner's. Raises `OSError`."""
        self._connection = connection
        self._certificate = certificate
        self._socket = socket.socket(fileno=os.dup(bound))
        self._socket.setblocking(False)
        self._socket.listen(MOST_HANDSHAKES)
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """In the order of their arrival."""
        self._accepting = asyncio.ensure_future(self._accept())

    def close(self) -> None:
        """Accept nobody any more, and let go who is not through the handshake."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                # The client has hung up, or there is no descriptor to be had at the moment.
                log.debug(f"a connection could not be accepted: {error}")
                await asyncio.sleep(_AFTER_FAILURE_SECONDS)
                continue
            task = asyncio.ensure_future(self._shake_hands(client))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            if len(self._handshakes) > MOST_HANDSHAKES:
                next(iter(self._handshakes)).cancel()

    async def _shake_hands(self, client: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                client,
                ssl=self._certificate.context(),
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_GOODBYE_SECONDS,
            )
        except OSError as error:
            # A scanner, a client that speaks HTTP in the clear or trusts another CA: all of them come and go.
            log.debug(f"a TLS handshake has failed: {error}")


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        what = "another process listens there; stop it, or choose another port (0 takes a free one)"
    elif error.errno in {errno.EACCES, errno.EPERM}:
        what = "not permitted; ports below 1024 need a privilege, choose a higher one"
    else:
        what = f"{os.strerror(error.errno) if error.errno and error.errno > 0 else error}; correct http.host"
    return f"http.port = {port} on {host}: {what}"
