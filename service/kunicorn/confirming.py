"""Commands that change what cannot be changed back ask first."""

from __future__ import annotations

import sys

from kunicorn.errors import ConfigError


def check_confirmable(*, yes: bool, as_json: bool) -> None:
    """Raises `ConfigError` where a person is to be asked and nobody can be."""
    if yes:
        return
    if as_json:
        raise ConfigError("--json is for programs, which cannot be asked: look first, then say --yes")
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for a confirmation: look first, then say --yes")
