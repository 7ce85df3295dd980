"""The user's own function: called without arguments, returns `(token, expires_at, principal, extensions)`.

The last two may be left out. `expires_at` is in seconds since 1970, `extensions` a mapping of texts (KIP-342).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from kunicorn.pipes.logins import FetchToken, Token
from kunicorn.tokens.errors import TokenError

_CONTRACT = "it is to return (token, expires_at in seconds since 1970, principal, extensions), the last two optional"


def call(request: FetchToken) -> Token:
    """One token from the function. Raises `TokenError`, and whatever the function raises."""
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
