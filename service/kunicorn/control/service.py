"""Asking a running service to act. Blocks for as long as the action takes."""

from __future__ import annotations

import getpass
import json
import os
import platform
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunicorn.errors import ConfigError
from kunicorn.settings import Settings
from kunicorn.settings.security import file_content
from kunicorn.watch import DIRECTLY, address

_SPARE = 30.0
"""Seconds beside those that the service may take to drain and to commit."""
_LONGEST_ANSWER = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RunningService:
    """Where it answers, and what it is to be shown."""

    url: str
    token: str = field(repr=False)
    patience: float
    """Seconds."""

    @classmethod
    def of(cls, settings: Settings, url: str | None, token_file: Path | None) -> RunningService:
        """The one with these settings, or at `url`. Raises `ConfigError` where it cannot be asked."""
        if token_file is not None:
            try:
                token = file_content(str(token_file)).get_secret_value()
            except ValueError as error:
                raise ConfigError(f"--token-file {str(token_file)!r} {error}") from error
        elif settings.http.acts:
            token = settings.http.secret_token()
        else:
            raise ConfigError("the service takes no orders: set http.token or http.token_file for it and for this")
        waits = (settings.group.drain_timeout_ms + settings.group.commit_timeout_ms) / 1000 + _SPARE
        return cls(url.rstrip("/") if url is not None else address(settings), token, waits)

    def ask(self, action: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer: `ok`, `said`, and `partitions` of a seek. One that refuses is an answer, too (409).

        Raises `ConfigError` where nobody answers, or not to us.
        """
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {self.url!r} is no address of a service; write it such as http://127.0.0.1:9400")
        request = urllib.request.Request(  # noqa: S310 - the scheme has just been looked at
            f"{self.url}/actions/{action}",
            json.dumps({**body, "by": _who()}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        try:
            with DIRECTLY.open(request, timeout=self.patience) as answer:
                return _read(self.url, answer.read(_LONGEST_ANSWER))
        except urllib.error.HTTPError as error:
            refused = _read(self.url, error.read(_LONGEST_ANSWER))
            if error.code == 409:
                return refused
            raise ConfigError(f"{self.url} refuses: {refused['said']}") from error
        except OSError as error:
            why = getattr(error, "reason", error)
            raise ConfigError(
                f"no service answers at {self.url}: {why}; is it running here? --url says another place"
            ) from error


def _read(url: str, body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "said" not in found:
        raise ConfigError(f"what answers at {url} is not kunicorn, or an older one; correct --url")
    return found


def _who() -> str:
    """For the service's log."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container's user need not have a name.
        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node()}"[:200]
