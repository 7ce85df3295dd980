"""The command line of `kunicorn replay-one`. Imports what the command needs when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kunicorn.errors import ConfigError, ExitCode


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay-one", short_help="One real record through the handler, at your desk.")(replay_one)


def replay_one(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(min=0, metavar="PARTITION")],
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET")],
    config: Annotated[Path, typer.Option("--config", "-c", metavar="PATH", help="The settings' TOML file.")] = Path(
        "config.toml"
    ),
    debug: Annotated[bool, typer.Option("--pdb", help="Stop in the debugger where the handler raises.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Fetch one record and let the handler handle it once, with its setup and teardown, in this process.

    Joins no group, commits nothing, sends nothing: dead letters that it would have made are shown. What the handler
    itself does is real.

    Exits 0 if the handler returned or said an outcome, 2 if there is no such record or no broker answers, 3 if the
    handler cannot be loaded or raised.

    \b
    Examples:
      kunicorn replay-one orders 7 1234
      kunicorn replay-one orders 7 1234 --pdb
    """
    from kunicorn.desk import finding, replaying
    from kunicorn.settings import load
    from kunicorn.tables import as_json_text
    from kunicorn.topics import TopicPartition

    if debug and (as_json or not sys.stdin.isatty()):
        raise ConfigError("--pdb needs a person at a terminal: leave --json out, and do not redirect the input")
    settings = load(config, os.environ)
    message = finding.find(settings, TopicPartition(topic, partition), offset)
    replayed = replaying.replay(settings, message, debug=debug)
    if as_json:
        typer.echo(as_json_text(replaying.as_json(replayed)))
    else:
        for line in replaying.lines(replayed, settings):
            typer.echo(line)
    raise typer.Exit(ExitCode.HANDLER if replayed.error is not None else ExitCode.CLEAN)
