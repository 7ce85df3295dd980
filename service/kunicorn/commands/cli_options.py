"""Options that commands share. Small, as every declaration of a command loads it.

`--config` has a variable, so that `kubectl exec POD -- kunicorn status` finds the settings that the pod runs with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_CONFIG = Path("config.toml")

Config = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        envvar="KUNICORN_CONFIG",
        metavar="PATH",
        help="The settings' TOML file; config.example.toml shows every setting.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For a program.")]


def confirmed(question: str) -> bool:
    """Ask whoever is at the terminal. Who ends the input (Ctrl-D) or interrupts (Ctrl-C) has not confirmed: typer would
    end the command by 1, as for a bug.
    """
    try:
        return typer.confirm(question)
    except typer.Abort:
        typer.echo(err=True)
        return False
