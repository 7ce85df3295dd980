"""`kunicorn config`: the settings in force, and what settings there can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="config", help="Show the settings in force, or their JSON schema.", no_args_is_help=True,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.command(short_help="Show the settings in force: file, environment, defaults; secrets hidden.")
def show(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="PATH", help="The settings' TOML file.")] = Path(
        "config.toml"
    ),
    every: Annotated[bool, typer.Option("--all", help="Those at their default, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; always all of them.")] = False,
) -> None:
    """Show the settings that `run` would go by, each with where it comes from. Secrets are hidden.

    Exits 0, or 2 with every problem there is in the settings.
    """
    from kunicorn.settings import load, shown
    from kunicorn.settings.listing import listed
    from kunicorn.tables import as_json_text

    settings = load(config, os.environ)
    if as_json:
        typer.echo(as_json_text(shown(settings)))
    else:
        for line in listed(config, os.environ, settings, every=every):
            typer.echo(line)


@app.command(short_help="Print the JSON schema of the settings' file.")
def schema() -> None:
    """Print the JSON schema (2020-12) of the settings' file, for editors and for charts."""
    from kunicorn.settings.listing import json_schema
    from kunicorn.tables import as_json_text

    typer.echo(as_json_text(json_schema()))
