"""Loading the HTTP server into a process that has no use for an HTTP client."""

from __future__ import annotations

import asyncio  # noqa: F401 - this and urllib would do without TLS for ever, were aiohttp the first to import them
import ssl
import sys
import urllib.request  # noqa: F401
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kunicorn.observe.http import Server


def load_server() -> type[Server]:
    """`kunicorn.observe.http.Server`. Takes a tenth of a second, on the loop.

    aiohttp has no server without its client, and that reads this machine's certificates while it is imported, twice,
    which takes as long again and keeps memory for connections that nobody makes. Where Python has no TLS it does not.
    Caller: the supervisor alone, from its only thread that imports: nobody else looks for `ssl` meanwhile.
    """
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        import aiohttp.web  # noqa: F401
    finally:
        sys.modules["ssl"] = ssl
    from kunicorn.observe.http import Server

    return Server
