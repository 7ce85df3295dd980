"""`python -m kunicorn.clients.oauth FD`: reads one `FetchToken` from the socket at that descriptor, answers it, exits.
The entry point alone: `fetch` has the work.

One process for each token: whatever a user's function leaks, breaks or blocks ends with it, far from the supervisor's
event loop.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import traceback

from kunicorn.clients.oauth import fetch
from kunicorn.clients.oauth.fetch import TokenError
from kunicorn.ipc.messages import FetchToken, FromTokenHelper, TokenFailed, decode, encode

_MAX_PACKET = 1 << 17
_ALONE_S = 30
"""So long after its time-out a helper ends by itself. With a second alone it did so before a busy machine had told the
asker that the time was over, who then blamed a process that had died."""


def main(fd: int) -> None:
    """Serve one request, then leave by `_exit`: threads of the user's function must not keep the process."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=fd) as sock:
        request: FetchToken = decode(sock.recv(_MAX_PACKET), FetchToken)
        # The asker kills a helper that is late; this ends one whose asker is gone.
        signal.alarm(math.ceil(request.timeout) + _ALONE_S)
        sys.path[:] = request.path + [entry for entry in sys.path if entry not in request.path]
        sock.send(encode(_fetch(request)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _fetch(request: FetchToken) -> FromTokenHelper:
    try:
        token = fetch.call_provider(request) if request.provider is not None else fetch.ask_endpoint(request)
    except TokenError as error:
        return TokenFailed(str(error))
    except BaseException as error:
        # The user's own code, or a bug of ours: the supervisor logs one line, the place is told here.
        traceback.print_exc()
        return TokenFailed(f"{request.provider or request.endpoint_url}: {type(error).__name__}: {error}")
    return token


if __name__ == "__main__":
    main(int(sys.argv[1]))
