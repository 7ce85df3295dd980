"""The command line of `kunicorn offsets`. Imports what a command needs when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="offsets", help="Show where the group stands, and put it elsewhere.", no_args_is_help=True,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Config = Annotated[Path, typer.Option("--config", "-c", metavar="PATH", help="The settings' TOML file.")]
Json = Annotated[bool, typer.Option("--json", help="For a program.")]


@app.command(short_help="Show committed offsets beside the logs' starts and ends.")
def show(
    config: Config = Path("config.toml"),
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="topic,partition,offset, as --from-file reads it.")] = False,
) -> None:
    """Show committed offsets, log starts, log ends, lag and who owns each partition. Changes nothing.

    Exits 0; 2 if no broker answers or a topic is missing; 4 if the group may not be read.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.offsets import session

    if as_csv:
        session.export(settings, typer.echo)
    else:
        session.show(settings, typer.echo, as_json=as_json)


@app.command(short_help="Plan a reset of committed offsets; --execute does it.")
def reset(  # noqa: PLR0913 - each is an option
    *,
    config: Config = Path("config.toml"),
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To where the logs begin.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To where they end: skips what is there.")] = False,
    to_datetime: Annotated[
        str | None, typer.Option(help="To the first record not older: 2026-01-31T12:00:00Z, or an age: 2h.")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(metavar="N", help="So many on; back if negative.")] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="To this offset in each.")] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Lines of topic,partition,offset, or the JSON of show.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC[:N[-M]]", help="Only these: orders, orders:7, orders:0-3.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without, only the plan is shown.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a reset would do to each partition; with --execute commit it.

    Refused while the group has members: they would go on where they are, and commit over it. An offset outside of the
    log is kept within it.

    Exits 0 if the plan was shown or done; 2 if the group has members, an option is wrong or no broker answers; 4 if
    the group refuses; 6 if single partitions were refused.

    \b
    Examples:
      kunicorn offsets reset --to-datetime 2h
      kunicorn offsets reset --shift-by=-100 --topic orders:0-3 --execute
      kunicorn offsets show --csv > before.csv; kunicorn offsets reset --from-file before.csv
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.offsets.session import reset as reset_offsets
    from kunicorn.offsets.targets import Options

    options = Options(to_earliest, to_latest, to_datetime, shift_by, to_offset, from_file)
    reset_offsets(settings, options, topic or (), typer.echo, execute=execute, as_json=as_json)
