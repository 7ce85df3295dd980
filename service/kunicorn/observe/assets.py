"""The status page's own files, read once: it works without a network, so nothing of it comes from elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources

from aiohttp import web

_PAGE_HEADERS = {
    # Nothing but our own files; no inline script, so that no text in a status can ever become one.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: bytes
    content_type: str
    etag: str

    def answer(self, request: web.BaseRequest) -> web.Response:
        """The file, or that it has not changed."""
        headers = {**_PAGE_HEADERS, "ETag": self.etag}
        if request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(body=self.body, content_type=self.content_type, charset="utf-8", headers=headers)


def load() -> dict[str, Asset]:
    """The files by path. Blocks on the disk; called before anything is served."""
    return {path: _asset(name) for path, name in _PATHS.items()}


_PATHS = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}


def _asset(name: str) -> Asset:
    body = resources.files("kunicorn.observe").joinpath(name).read_bytes()
    return Asset(body, _TYPES[name.rpartition(".")[2]], f'"{hashlib.sha256(body).hexdigest()[:20]}"')
