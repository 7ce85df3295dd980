"""One OAUTHBEARER token, from an endpoint or from the user's function. Runs in the token helper; blocks on the network.

An endpoint is asked by the client credentials grant (RFC 6749, section 4.4), as Kafka's clients do it (KIP-768). The
user's function is called without arguments and returns `(token, expires_at, principal, extensions)`, of which the last
two may be left out; `expires_at` is in seconds since 1970, `extensions` a mapping of strings (KIP-342).
"""

from __future__ import annotations

import base64
import binascii
import http.client
import importlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from kunicorn.clients.http import elsewhere, opener
from kunicorn.ipc.messages import FetchToken, Token
from kunicorn.text import without


class TokenError(Exception):
    """No token was to be had; the message says what happened, to what, and what to do. Holds no secret."""


_MOST_BYTES = 1 << 20
_SHOWN = 200
_LATEST = 253_402_300_800.0
"""Seconds from 1970 to the year 10000. An expiry behind it is infinite, or in milliseconds; a client's 64 bits of them
do not have the former, and with the latter the token would never be renewed."""


def ask_endpoint(request: FetchToken) -> Token:
    """Token from the endpoint. Raises `TokenError`."""
    url = request.endpoint_url or ""
    answer = _post(url, request)
    value = answer.get("access_token")
    if not isinstance(value, str) or not value:
        raise TokenError(f"{url} answered without an access_token: is it a token endpoint?")
    claims = _claims(value)
    return Token(value, _expiry(url, answer, claims), _principal(request, claims), request.extensions)


def _post(url: str, request: FetchToken) -> dict[str, Any]:
    fields = {"grant_type": "client_credentials", **({"scope": request.scope} if request.scope else {})}
    login = base64.b64encode(f"{request.client_id}:{request.client_secret}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
    post = urllib.request.Request(url, urllib.parse.urlencode(fields).encode(), headers)  # noqa: S310 - see is_http_url
    try:
        with opener().open(post, timeout=request.timeout) as response:
            answer = json.loads(response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        said = without([request.client_secret or "", login], error.read(_MOST_BYTES).decode(errors="replace"))[:_SHOWN]
        if moved := elsewhere(error):
            raise TokenError(
                f"{url} answered {error.code} {error.reason}: {moved}; name the endpoint itself in "
                f"kafka.sasl_oauthbearer_token_endpoint_url"
            ) from error
        raise TokenError(
            f"{url} answered {error.code} {error.reason}: {said}; check kafka.sasl_oauthbearer_client_id, "
            f"sasl_oauthbearer_client_secret and sasl_oauthbearer_scope"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise TokenError(f"{url} does not answer: {why}; check kafka.sasl_oauthbearer_token_endpoint_url") from error
    except ValueError as error:
        raise TokenError(f"{url} answered no JSON; check kafka.sasl_oauthbearer_token_endpoint_url") from error
    if not isinstance(answer, dict):
        raise TokenError(f"{url} answered no JSON object; check kafka.sasl_oauthbearer_token_endpoint_url")
    return answer


def _claims(token: str) -> dict[str, Any]:
    """Claims of a JWT (RFC 7519), unverified, as that is for the broker. Empty for other kinds of token."""
    payload = token.partition(".")[2].partition(".")[0]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def _expiry(url: str, answer: dict[str, Any], claims: dict[str, Any]) -> float:
    """Expiry in seconds since 1970. `expires_in` goes first: it does not depend on two clocks that agree."""
    for value, since in ((answer.get("expires_in"), time.time()), (claims.get("exp"), 0.0)):
        try:
            if value is not None and abs(expiry := since + float(value)) < _LATEST:
                return expiry
        except (TypeError, ValueError, OverflowError):
            continue
    raise TokenError(f"{url} does not say when the token expires: neither expires_in nor a claim exp")


def _principal(request: FetchToken, claims: dict[str, Any]) -> str:
    subject = claims.get("sub")
    return subject if isinstance(subject, str) and subject else request.client_id or "unknown"


_CONTRACT = "it is to return (token, expires_at in seconds since 1970, principal, extensions), the last two optional"


def call_provider(request: FetchToken) -> Token:
    """Token from the user's function. Raises `TokenError`, and whatever the function raises."""
    entrypoint = request.provider or ""
    returned = _load(entrypoint)()
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 4:
        raise TokenError(f"{entrypoint} returned {type(returned).__name__}: {_CONTRACT}")
    defaults: tuple[Any, ...] = (entrypoint, {})
    value, expires_at, principal, extensions = returned + defaults[len(returned) - 2 :]
    well = isinstance(value, str) and value and isinstance(expires_at, int | float) and isinstance(principal, str)
    if not well or not principal or not _texts(extensions):
        kinds = ", ".join(type(each).__name__ for each in returned)
        raise TokenError(f"{entrypoint} returned ({kinds}), or an empty text: {_CONTRACT}")
    # A number that is none is not below either.
    if not abs(expires_at) < _LATEST:
        raise TokenError(f"{entrypoint} returned {expires_at} for expires_at: {_CONTRACT}")
    return Token(value, float(expires_at), principal, {**request.extensions, **extensions})


def _texts(extensions: Any) -> bool:
    is_mapping = isinstance(extensions, Mapping)
    return is_mapping and all(isinstance(text, str) for pair in extensions.items() for text in pair)


def _load(entrypoint: str) -> Any:
    module, _, attribute = entrypoint.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise TokenError(f"kafka.sasl_oauthbearer_token_provider = {entrypoint!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise TokenError(f"kafka.sasl_oauthbearer_token_provider = {entrypoint!r} cannot be called")
    return found
