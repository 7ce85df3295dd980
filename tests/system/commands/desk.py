"""A person with the service's configuration at a command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kunicorn.commands.cli import app


class Desk:
    """The commands, by one configuration."""

    def __init__(self, config: Path) -> None:
        self.config = config

    def said(self, *arguments: str) -> str:
        """What a command printed; it has to succeed."""
        result = CliRunner().invoke(app, [*arguments, "--config", str(self.config)])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    def told(self, *arguments: str) -> Any:
        """The same for a program."""
        return json.loads(self.said(*arguments, "--json"))
