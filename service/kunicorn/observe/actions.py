"""Actions over HTTP (pause, resume, recycle, reload, drain, seek): who may ask, what is asked, and the answer.

1. Without `[http] token` there are none, except for the service's own user on its machine
   (`kunicorn.observe.requests`).
2. The token comes in a header that a browser never adds by itself and that no other site's page may set without our
   consent (no CORS answer is ever given): a person who is logged in elsewhere cannot be made to act here.
3. It is compared in constant time, and a wrong one is answered late: guessing is slow, and says nothing.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Literal, Protocol

import msgspec
from aiohttp import web

from kunicorn.errors import ConfigError
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.requests import Done, Goal
from kunicorn.settings import HttpSettings
from kunicorn.text import printable

log = logs.get("kunicorn.http")

PREFIX = "/actions/"
_LONGEST_BODY = 64 * 1024
_BODY_SECONDS = 10.0
_DENIED_SECONDS = 0.5
_MOVES_LOGGED = 20
_OF_KAFKA = msgspec.Meta(ge=0, le=2**63 - 1)
"""Offsets and times: 64 bits, signed."""
_OWN_SITE = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of requests from our own page, and of those that a person typed (W3C Fetch Metadata)."""


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a request; fields that the action does not need must be absent."""

    partitions: list[str] = []
    """As in [assign]: orders, orders:7, orders:0-3. Empty: all there are."""
    worker: int | None = None
    to: Literal["earliest", "latest"] | None = None
    to_offset: Annotated[int, _OF_KAFKA] | None = None
    to_time_ms: Annotated[int, _OF_KAFKA] | None = None
    """Milliseconds since 1970: the first record that is not older."""
    execute: bool = False
    """A seek without it only tells what it would do."""
    by: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Who asks, for the log; whoever has the token may say anything here."""

    def goal(self) -> Goal:
        """Target of a seek. Raises `Denied`."""
        given = [each for each in (self.to, self.to_offset, self.to_time_ms) if each is not None]
        if len(given) != 1 or not self.partitions:
            raise Denied(HTTPStatus.BAD_REQUEST, "a seek names partitions, and one of to, to_offset and to_time_ms")
        return Goal(self.to, self.to_offset, self.to_time_ms)


class Actions(Protocol):
    """Actions of the service, carried out on the loop. None blocks; what takes time goes on after the call returns."""

    def pause(self, partitions: Sequence[str]) -> Done:
        """Stop fetching these partitions (all, if none is named), once the records in hand are finished."""

    def resume(self, partitions: Sequence[str]) -> Done:
        """Fetch those of these partitions again that are paused or halted."""

    def recycle(self, worker: int | None) -> Done:
        """Replace that worker in order, without a rebalance."""

    async def reload(self) -> Done:
        """Read the settings again, import the handler anew and replace every worker, as SIGHUP does. Takes as long as
        that; refused where not all workers run the new code."""

    def drain(self) -> Done:
        """Drain, commit, leave the group, exit, as SIGTERM does."""

    async def seek(self, partitions: Sequence[str], goal: Goal, *, execute: bool) -> Done:
        """Plan of moving these partitions to `goal`; with `execute` also do it. Takes as long as records in hand do."""


async def _at_once(done: Done) -> Done:
    return done


_DO: dict[str, Callable[[Actions, Ask], Awaitable[Done]]] = {
    "pause": lambda actions, ask: _at_once(actions.pause(ask.partitions)),
    "resume": lambda actions, ask: _at_once(actions.resume(ask.partitions)),
    "recycle": lambda actions, ask: _at_once(actions.recycle(ask.worker)),
    "reload": lambda actions, _: actions.reload(),
    "drain": lambda actions, _: _at_once(actions.drain()),
    "seek": lambda actions, ask: actions.seek(ask.partitions, ask.goal(), execute=ask.execute),
}


class Denied(Exception):
    """Request that may not act, or makes no sense."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Desk:
    """HTTP entry point of actions. Caller: the HTTP server, on the loop."""

    def __init__(self, settings: HttpSettings, actions: Actions | None, metrics: Metrics) -> None:
        """`actions`: None where the service cannot act yet."""
        self._settings = settings
        self._actions = actions
        self._metrics = metrics

    async def answer(self, request: web.BaseRequest, *, here: bool = False) -> web.Response:
        """Carry out the request, or answer why not. `here`: it comes from our own user, who needs no token."""
        name = request.path.removeprefix(PREFIX)
        action = name if name in _DO else "unknown"
        try:
            await self._admit(request, here=here)
            if action == "unknown":
                raise Denied(HTTPStatus.NOT_FOUND, f"no such action; there are {', '.join(_DO)}")
            ask = await _asked(request)
            assert self._actions is not None
            # Whoever asked may hang up: what was begun is finished all the same.
            done = await asyncio.shield(asyncio.ensure_future(_DO[action](self._actions, ask)))
        except Denied as denied:
            self._metrics.count(catalogue.HTTP_ACTIONS, action=action, result="denied")
            headers = {"WWW-Authenticate": "Bearer"} if denied.status == HTTPStatus.UNAUTHORIZED else {}
            return _answer(denied.status, Done(ok=False, said=str(denied)), headers)
        except Exception:
            self._metrics.count(catalogue.HTTP_ACTIONS, action=action, result="failed")
            raise
        self._metrics.count(catalogue.HTTP_ACTIONS, action=action, result="done" if done.ok else "refused")
        where = "this machine" if here else request.remote
        who = f"{where} ({printable(ask.by)})" if ask.by else where
        goes = ", ".join(
            f"{m.topic}-{m.partition}: {m.position} → {m.then}" for m in (done.moves or ())[:_MOVES_LOGGED]
        )
        log.warning(
            f"{action} was asked for over HTTP by {who}: {done.said}" + (f" ({goes})" if goes else ""), action=action
        )
        return _answer(HTTPStatus.OK if done.ok else HTTPStatus.CONFLICT, done, {})

    async def _admit(self, request: web.BaseRequest, *, here: bool) -> None:
        if self._actions is None or not (self._settings.acts or here):
            raise Denied(HTTPStatus.FORBIDDEN, "actions are switched off: set [http] token or token_file, and restart")
        if request.method != "POST":
            raise Denied(HTTPStatus.METHOD_NOT_ALLOWED, "an action is a POST")
        if request.headers.get("Sec-Fetch-Site", "none") not in _OWN_SITE:
            raise Denied(HTTPStatus.FORBIDDEN, "asked for by another site's page")
        if not here:
            await self._check_token(request)

    async def _check_token(self, request: web.BaseRequest) -> None:
        try:
            token = await asyncio.to_thread(self._settings.secret_token)
        except ConfigError as error:
            raise Denied(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not _same(given.strip(), token):
            await asyncio.sleep(_DENIED_SECONDS)
            raise Denied(HTTPStatus.UNAUTHORIZED, "send the token of [http] as Authorization: Bearer <token>")


def _same(given: str, token: str) -> bool:
    # What is not UTF-8 comes as surrogates, which a plain encode() would raise for: at once, and with a traceback.
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


async def _asked(request: web.BaseRequest) -> Ask:
    if request.content_type != "application/json":
        raise Denied(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with Content-Type: application/json")
    if request.content_length is None or request.content_length > _LONGEST_BODY:
        raise Denied(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send a Content-Length of at most {_LONGEST_BODY}")
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return msgspec.json.decode(await request.read() or b"{}", type=Ask)
    except TimeoutError:
        raise Denied(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {_BODY_SECONDS:.0f} s") from None
    except web.RequestPayloadError:
        raise Denied(HTTPStatus.BAD_REQUEST, "the body is not encoded as its headers say") from None
    except msgspec.DecodeError as error:
        raise Denied(HTTPStatus.BAD_REQUEST, f"not what an action takes: {error}") from error


def _answer(status: HTTPStatus, done: Done, headers: dict[str, str]) -> web.Response:
    told: dict[str, object] = {"ok": done.ok, "said": done.said}
    if done.moves is not None:
        told["partitions"] = [asdict(move) for move in done.moves]
    body = msgspec.json.encode(told) + b"\n"
    uncached = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **headers}
    return web.Response(status=status, body=body, content_type="application/json", headers=uncached)
