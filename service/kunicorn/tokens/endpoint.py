"""The client credentials grant (RFC 6749, section 4.4), as Kafka's clients do it (KIP-768). Blocks on the network."""

from __future__ import annotations

import base64
import binascii
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from kunicorn.pipes.logins import FetchToken, Token
from kunicorn.tokens.errors import TokenError

_MOST_BYTES = 1 << 20
_SHOWN = 200


def ask(request: FetchToken) -> Token:
    """One token from the endpoint. Raises `TokenError`."""
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
        with urllib.request.urlopen(post, timeout=request.timeout) as response:  # noqa: S310
            answer = json.loads(response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        said = error.read(_SHOWN).decode(errors="replace")
        raise TokenError(
            f"{url} answered {error.code} {error.reason}: {said}; check kafka.sasl_oauthbearer_client_id, "
            f"sasl_oauthbearer_client_secret and sasl_oauthbearer_scope"
        ) from error
    except OSError as error:
        why = getattr(error, "reason", error)
        raise TokenError(f"{url} does not answer: {why}; check kafka.sasl_oauthbearer_token_endpoint_url") from error
    except ValueError as error:
        raise TokenError(f"{url} answered no JSON; check kafka.sasl_oauthbearer_token_endpoint_url") from error
    if not isinstance(answer, dict):
        raise TokenError(f"{url} answered no JSON object; check kafka.sasl_oauthbearer_token_endpoint_url")
    return answer


def _claims(token: str) -> dict[str, Any]:
    """What a JWT says of itself (RFC 7519), unverified: that is for the broker. Empty for other kinds of token."""
    payload = token.partition(".")[2].partition(".")[0]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def _expiry(url: str, answer: dict[str, Any], claims: dict[str, Any]) -> float:
    """Seconds since 1970. `expires_in` first: it does not depend on the two clocks."""
    for value, since in ((answer.get("expires_in"), time.time()), (claims.get("exp"), 0.0)):
        try:
            if value is not None:
                return since + float(value)
        except (TypeError, ValueError):
            continue
    raise TokenError(f"{url} does not say when the token expires: neither expires_in nor a claim exp")


def _principal(request: FetchToken, claims: dict[str, Any]) -> str:
    subject = claims.get("sub")
    return subject if isinstance(subject, str) and subject else request.client_id or "unknown"
