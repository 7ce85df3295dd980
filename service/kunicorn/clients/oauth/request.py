"""One OAUTHBEARER token for a command or a task of a pipeline, by way of a token helper process. Small, as the
supervisor loads it at its start to read a helper's answer; `fetch`, with its HTTP client, is for the helper alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from kunicorn.errors import PeerError, how_it_ended
from kunicorn.ipc.messages import FetchToken, FromTokenHelper, Token, TokenFailed, decode, encode
from kunicorn.linux import packet_pair
from kunicorn.settings.security import without_secrets

_MAX_PACKET = 1 << 17
_DYING = 5.0


def fetch(request: FetchToken) -> Token:
    """Start the token helper and wait for its answer. Blocks up to `request.timeout` seconds.

    Raises `PeerError` with the reason where there is no token.
    """
    ours, theirs = packet_pair()
    with ours, theirs:
        helper = subprocess.Popen(
            [sys.executable, "-m", "kunicorn.clients.oauth", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=without_secrets(os.environ),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        try:
            return _ask(ours, request, helper)
        finally:
            # Its whole group: what a user's function started must not outlive the answer.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(helper.pid, signal.SIGKILL)
            helper.wait()


def _ask(sock: socket.socket, request: FetchToken, helper: subprocess.Popen[bytes]) -> Token:
    asked = request.provider or request.endpoint_url
    sock.settimeout(request.timeout)
    try:
        sock.send(encode(request))
        body = sock.recv(_MAX_PACKET)
    except TimeoutError as error:
        raise PeerError(f"{asked} gave none within {request.timeout:g} s") from error
    except OSError:
        body = b""
    if not body:
        # It closed its end of the socket by dying, or is about to.
        with contextlib.suppress(subprocess.TimeoutExpired):
            helper.wait(_DYING)
        how = "still running" if helper.returncode is None else how_it_ended(helper.returncode)
        raise PeerError(f"the process that asks {asked} ended without an answer ({how})")
    return answered(body)


def answered(body: bytes) -> Token:
    """Token in the helper's answer. Raises `PeerError` where there is none, or it has expired."""
    answer: FromTokenHelper = decode(body, FromTokenHelper)
    if isinstance(answer, TokenFailed):
        raise PeerError(answer.error)
    if answer.expires_at <= time.time():
        raise PeerError(f"the one that came has expired already, {time.time() - answer.expires_at:.0f} s ago")
    return answer
