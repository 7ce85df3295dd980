"""HTTP with credentials, by Python's own client: they go to the address that was named, and to none that it names.
Small, as the token helper and the commands that ask a service share it, and load nothing else of one another.

`requests` in the export of metrics and `httpx` in the schema registry's client are told the same where they are used.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import IO

from kunicorn.text import printable

_SHOWN = 200


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An answer that sends us elsewhere is an error, as any other that is no success. urllib would go there with every
    header, the Authorization included, to whatever host and from https to http.
    """

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Caller: urllib, for an answer with a Location. None: there is no further request."""


def opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """What opens URLs and follows no redirect: `open` raises `HTTPError` for one. `handlers` replace urllib's own, such
    as a `ProxyHandler`.
    """
    return urllib.request.build_opener(_NoRedirects, *handlers)


def elsewhere(error: urllib.error.HTTPError) -> str:
    """Where the answer sends us, for a message; empty where it sends nobody anywhere."""
    to = error.headers.get("Location") if 300 <= error.code < 400 and error.headers else None
    return f"it sends us to {printable(to[:_SHOWN])}, which is not followed" if to else ""
