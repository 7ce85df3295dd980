"""Credentials that change while the service runs.

`Tokens` has the service's OAUTHBEARER token: fetched by a helper process, renewed before it expires, shared with every
worker. There is one for the whole service: its provider is called once a lifetime, not once for every connection.

Passwords are rotated by writing the new one into its file: the workers' clients learn of it here. Certificates
likewise: a client reads them once, so the workers are replaced; the HTTP port shows the new one by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kunicorn.backoff import Backoff, Retries
from kunicorn.clients.config import tls_of
from kunicorn.clients.oauth.request import answered
from kunicorn.errors import ConfigError, PeerError
from kunicorn.ipc import clock
from kunicorn.ipc.messages import FetchToken, Password, Token, encode
from kunicorn.kafka import tls
from kunicorn.kafka.auth import BearerToken
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.observe import logs
from kunicorn.settings import KafkaSettings
from kunicorn.settings.security import without_secrets
from kunicorn.supervisor.workers.process import Child, kill_group, watch_exit

log = logs.get("kunicorn.tokens")

_RENEW_AT = 0.7
"""Part of a token's life after which the next is fetched: the workers' clients ask for it after 0.8."""
_SHORTEST_PAUSE = 1.0
_LOOK_AT_CLOCKS = 10.0
"""Seconds; a token that expires while the machine is suspended is missed for so long after it."""
_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=30.0)
_CHILD_FD = 3
_MAX_PACKET = 1 << 17


class NoToken(PeerError):
    """The helper came back without a token; the message says why."""


class Tokens:
    """The service's OAUTHBEARER token, or why there is none. Runs on the loop, but for `bearer`."""

    def __init__(self, request: Callable[[], FetchToken]) -> None:
        """`request` is called for each token, as the client's secret may be rotated: in a thread, may block on the
        disk, raises `ConfigError`.
        """
        self.latest: Token | None = None
        self._request = request
        self._failure = "none has come yet"
        self._arrived = asyncio.Event()
        self._helper: int | None = None

    @property
    def problem(self) -> str | None:
        """Why there is no valid token now; None if there is one."""
        if self.latest is not None and self.latest.expires_at > time.time():
            return None
        return f"no valid OAUTHBEARER token: {self._failure}"

    def bearer(self) -> BearerToken:
        """The token to authenticate with; called from any thread. Raises `AuthenticationFailed`."""
        token, problem = self.latest, self.problem
        if token is None or problem is not None:
            raise AuthenticationFailed(problem or "no OAUTHBEARER token")
        return BearerToken(token.value, token.extensions)

    async def first(self) -> None:
        """Wait for the first token, however long it takes."""
        await self._arrived.wait()

    def owns(self, pid: int) -> bool:
        """Whether the process is the helper that fetches tokens, whose exit is watched here."""
        return pid == self._helper

    async def keep(self, share: Callable[[Token], None]) -> None:
        """Renew the token before it expires, for ever; `share` is called with each new one. A failure is logged once,
        not at every try."""
        retries, told = Retries(_BACKOFF), ""
        while True:
            try:
                token = await self.fetch()
            except PeerError as error:
                self._failure = str(error)
                if told != str(error):
                    log.error(f"no OAUTHBEARER token: {error}; tried again until there is one")
                told = str(error)
                await asyncio.sleep(retries.failed())
                continue
            retries.succeeded()
            told, self._failure = "", "the last one has expired"
            life = token.expires_at - time.time()
            log.info(f"OAUTHBEARER token of {token.principal!r}, valid for {life:.0f} s")
            self.latest = token
            self._arrived.set()
            share(token)
            await _until_renewal(life, token.expires_at)

    async def fetch(self) -> Token:
        """The token of one run of the helper. Raises `NoToken` where there is nothing to ask by or no answer comes,
        other `PeerError`s where it is no token."""
        try:
            request = await asyncio.to_thread(self._request)
        except ConfigError as error:
            raise NoToken(str(error)) from error
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            ours, pid = self._start(ended)
        except OSError as error:
            # No descriptor or no process is to be had: a limit of the container's, which may pass.
            raise NoToken(f"the process that fetches it cannot be started: {error}") from error
        with ours:
            try:
                return await _ask(ours, request, ended)
            finally:
                # Before anything is awaited: until the helper is reaped, the process group's number is its own.
                if not ended.done():
                    kill_group(pid)

    def _start(self, ended: asyncio.Future[str]) -> tuple[socket.socket, int]:
        """Our end of a new helper's socket, and its pid; `ended` is told how it ends. Raises `OSError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def exited(how: str) -> None:
            if self._helper == pid:
                self._helper = None  # Its pid may be a stranger's from now on.
            if not ended.done():
                ended.set_result(how)

        with contextlib.ExitStack() as undone:
            undone.enter_context(ours)
            with theirs:
                self._helper = pid = _start_helper(theirs)
            undone.callback(self._abandon, pid)
            watch_exit(Child(pid, os.pidfd_open(pid)), exited, with_group=True)
            undone.pop_all()
        return ours, pid

    def _abandon(self, pid: int) -> None:
        """Kill a helper that cannot be watched; whoever reaps strangers' children reaps it."""
        kill_group(pid)
        self._helper = None


async def _until_renewal(life: float, expires_at: float) -> None:
    """Until `_RENEW_AT` of the token's life is over by the wall's clock, or as much time has passed.

    The first comes sooner where the clock was put forward or the machine was suspended, which a sleep does not notice:
    the token would have expired meanwhile, and no connection could be made. The second, where it was put back.
    """
    due = clock.now() + max(_SHORTEST_PAUSE, life * _RENEW_AT)
    due_on_the_wall = expires_at - life * (1 - _RENEW_AT)
    pause = _SHORTEST_PAUSE
    while pause > 0:
        await asyncio.sleep(pause)
        pause = min(due - clock.now(), due_on_the_wall - time.time(), _LOOK_AT_CLOCKS)


async def _ask(sock: socket.socket, request: FetchToken, ended: asyncio.Future[str]) -> Token:
    sock.setblocking(False)
    with contextlib.suppress(BrokenPipeError):
        sock.send(encode(request))
    try:
        async with asyncio.timeout(request.timeout):
            body = await asyncio.get_running_loop().sock_recv(sock, _MAX_PACKET)
    except TimeoutError as error:
        asked = request.provider or request.endpoint_url
        raise NoToken(f"{asked} gave none within {request.timeout:g} s") from error
    except ConnectionResetError:
        body = b""
    if not body:
        raise NoToken(f"the process that fetches it ended without an answer ({await ended})")
    return answered(body)


def _start_helper(sock: socket.socket) -> int:
    """The pid of a new helper process, which inherits `sock` and nothing else. Takes milliseconds."""
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "kunicorn.clients.oauth", str(_CHILD_FD)],
        without_secrets(os.environ),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, sock.fileno(), _CHILD_FD),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        ],
        setpgroup=0,
        setsigdef=[signal.SIGPIPE],
    )


passwords_log = logs.get("kunicorn.passwords")

_INTERVAL = 3.0


async def watch_password(kafka: KafkaSettings, share: Callable[[Password], None], interval: float = _INTERVAL) -> None:
    """Look into the password's file every `interval` seconds, for ever; `share` a password that has changed.

    The supervisor's own connections read the file at each login, and new workers are told what is in it.
    """
    known = await asyncio.to_thread(kafka.secret, "sasl_password")
    while True:
        await asyncio.sleep(interval)
        password = await asyncio.to_thread(kafka.secret, "sasl_password")
        if password is not None and password != known:
            passwords_log.info(
                "kafka.sasl_password_file holds another password: the workers log in with it from now on"
            )
            known = password
            share(Password(kafka.sasl_username or "", password))


certificates_log = logs.get("kunicorn.certificates")

_LOOK_EVERY = 10.0


class WatchedCertificate(Protocol):
    """Files of TLS that may be renewed, and what it takes to have them used."""

    def files(self) -> Sequence[str | None]:
        """Their paths; None where there is none."""

    def ends(self) -> float | None:
        """When our own certificate among them ends, in seconds since 1970. Raises `ConfigError` where it is none.
        Called in a thread; may block on the disk."""

    async def renew(self, seen_at: float) -> bool:
        """Have what is in the files now used; whether everybody does. Otherwise it is called again. Whoever has started
        since `seen_at` (`kunicorn.ipc.clock`) has read it already. Raises `ConfigError` where the files do not fit
        together, and nothing is changed."""


async def watch_certificate(
    watched: WatchedCertificate, ends_at: Callable[[float], None], interval: float = _LOOK_EVERY
) -> None:
    """Look at the files every `interval` seconds, for ever. New ones that belong together are used. `ends_at` is told
    at every look when our own certificate ends.
    """
    known: list[bytes] | None = None
    seen, seen_at = known, 0.0
    complaint = ""
    while True:
        try:
            looked_at = clock.now()
            now = await asyncio.to_thread(_contents, watched)
            if now != seen:
                seen, seen_at = now, looked_at
            if known is None and not complaint:
                known = now
            if (ends := await asyncio.to_thread(watched.ends)) is not None:
                ends_at(ends)
            if now != known and await watched.renew(seen_at):
                known = now
            complaint = ""
        except ConfigError as error:
            # A renewal writes several files: what does not fit together yet will, or is told once.
            if str(error) != complaint:
                certificates_log.warning(f"{error}; what was read before is used until that is mended")
            complaint = str(error)
        await asyncio.sleep(interval)


def _contents(watched: WatchedCertificate) -> list[bytes]:
    """Raises `ConfigError`. A file that is not there is as one that is empty; a directory is what it lists."""
    return [b"" if path is None else _content(Path(path)) for path in watched.files()]


def _content(path: Path) -> bytes:
    try:
        if path.is_dir():
            return repr(sorted(_listed(path))).encode()
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""
    except OSError as error:
        # Whoever renews it may give it to us a moment later, as root's jobs do: no reason to end.
        raise ConfigError(f"{path} cannot be read ({tls.why(error)}): let kunicorn's user read it") from error


def _listed(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Name, time of change and size of each file there: a directory of CAs is read file by file, by the client, and
    only when it has to find one."""
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # Removed while we look, or a link to nothing.
            if path.is_file():
                stat = path.stat()
                yield path.name, stat.st_mtime_ns, stat.st_size


class ClientCertificate:
    """A `WatchedCertificate`: the files of TLS in [kafka]. The supervisor reads them at each connection, workers when
    they start."""

    def __init__(self, kafka: KafkaSettings, replace_workers: Callable[[float], Awaitable[bool]]) -> None:
        """`replace_workers` replaces those that have started before that time, and returns whether all were."""
        self._kafka = kafka
        self._replace_workers = replace_workers

    def files(self) -> Sequence[str | None]:
        kafka = self._kafka
        return (kafka.ssl_ca_location, kafka.ssl_certificate_location, kafka.ssl_key_location)

    def ends(self) -> float | None:
        certificate = self._kafka.ssl_certificate_location
        return None if certificate is None else tls.ends("kafka.ssl_certificate_location", certificate)

    async def renew(self, seen_at: float) -> bool:
        await asyncio.to_thread(tls.context, tls_of(self._kafka))
        certificates_log.info("the files of kafka.ssl_… are others: the workers are replaced, and read them")
        return await self._replace_workers(seen_at)
