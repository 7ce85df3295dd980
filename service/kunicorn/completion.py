"""`kunicorn completion`, and what a shell's script asks of us when somebody presses Tab."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

_COMPLETING = "_KUNICORN_COMPLETE"
"""Set by the shell's script when it asks what may follow."""


class Shell(StrEnum):
    """Those for which there is a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Print what makes a shell complete kunicorn's commands.")(completion)


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print a script that makes the shell complete commands and options.

    \b
    Examples:
      source <(kunicorn completion bash)                                    now
      kunicorn completion bash > ~/.local/share/bash-completion/completions/kunicorn
      kunicorn completion fish > ~/.config/fish/completions/kunicorn.fish
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="kunicorn", complete_var=_COMPLETING, shell=shell.value))


def prepare() -> None:
    """Before the application runs: be able to answer a shell that asks."""
    if _COMPLETING in os.environ:
        # Typer's own way in would add options that write into the user's shell profile.
        from typer._completion_classes import completion_init

        completion_init()
