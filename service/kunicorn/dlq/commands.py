"""The command line of `kunicorn dlq`. Imports what a command needs when it runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from kunicorn.confirming import check_confirmable
from kunicorn.tables import as_json_text

app = typer.Typer(
    name="dlq", help="Look into the dead-letter topic, and send letters back.", no_args_is_help=True,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


Config = Annotated[Path, typer.Option("--config", "-c", metavar="PATH", help="The settings' TOML file.")]


@app.command("list", short_help="Count letters by error and by where they came from.")
def list_letters(
    config: Config = Path("config.toml"),
    latest: Annotated[int, typer.Option(min=0, help="How many of the latest letters to name.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; the latest letters whole.")] = False,
) -> None:
    """Count all letters by error type, topic and partition, and name the latest. Changes nothing."""
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.dlq.listing import summary, summary_json
    from kunicorn.dlq.topic import opened

    with opened(settings) as topic:
        if as_json:
            typer.echo(summary_json(topic.name, topic.letters(), latest))
            return
        for line in summary(topic.name, topic.letters(), latest):
            typer.echo(line)


@app.command(short_help="Show one letter whole.")
def show(
    place: Annotated[str, typer.Argument(metavar="PARTITION@OFFSET", help="As `kunicorn dlq list` names it.")],
    config: Config = Path("config.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="For a program; nothing is cut.")] = False,
) -> None:
    """Show where a letter came from, why, and its key, headers and value. Changes nothing."""
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.dlq import listing
    from kunicorn.dlq.topic import opened

    with opened(settings) as topic:
        letter = listing.one(topic, place)
        for line in [listing.as_json(letter)] if as_json else listing.whole(letter):
            typer.echo(line)


@app.command(short_help="Send letters back to the topics they came from.")
def replay(  # noqa: PLR0913 - each is an option
    *,
    config: Config = Path("config.toml"),
    since: Annotated[str | None, typer.Option(help="Given up then or later: a time with zone, or an age: 2h.")] = None,
    until: Annotated[str | None, typer.Option(help="Given up before then.")] = None,
    error: Annotated[str | None, typer.Option(help="Error type, with or without its module.")] = None,
    key: Annotated[str | None, typer.Option(help="The record's key, as text.")] = None,
    topic: Annotated[str | None, typer.Option(help="The topic they came from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    from_beginning: Annotated[bool, typer.Option(help="Those that were replayed before, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; required where there is no terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; with --yes.")] = False,
) -> None:
    """Send letters back with their key, value, headers and timestamp, and count the replay in a header.

    Shows what would be sent, and asks. What was delivered is remembered: a second replay does not repeat it. The
    letters stay in the dead-letter topic.

    Exits 0 if all were delivered, 2 if nobody confirmed or a topic is missing, 6 if some were refused.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    check_confirmable(yes=yes, as_json=as_json)
    from kunicorn.dlq.selection import Selection
    from kunicorn.moments import moment

    now_ms = time.time_ns() // 1_000_000
    chosen = Selection(
        moment("--since", since, now_ms) if since is not None else None,
        moment("--until", until, now_ms) if until is not None else None,
        error,
        key.encode() if key is not None else None,
        topic,
    )
    from kunicorn.dlq.session import run

    sent = run(
        settings,
        chosen,
        limit,
        from_beginning=from_beginning,
        confirm=lambda: yes or typer.confirm("Send them back?"),
        say=(lambda _: None) if as_json else typer.echo,
    )
    if as_json:
        typer.echo(as_json_text(sent))
