"""The command line of `kunicorn pause`, `resume` and `seek`. Imports what a command needs when it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kunicorn.errors import ConfigError

Partitions = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC[:N[-M]]...", help="Such as orders:7, orders:0-3, or orders.")
]
Config = Annotated[Path, typer.Option("--config", "-c", metavar="PATH", help="The settings' TOML file.")]
Url = Annotated[str | None, typer.Option(metavar="URL", help="Where it answers, such as http://pod:9400.")]
TokenFile = Annotated[Path | None, typer.Option(metavar="PATH", help="In place of the settings' [http] token.")]
Json = Annotated[bool, typer.Option("--json", help="For a program.")]
Every = Annotated[bool, typer.Option("--all", help="All partitions of this member.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Have a running service fetch some partitions no more.")(pause)
    app.command(short_help="Have a running service go on with paused or halted partitions.")(resume)
    app.command(short_help="Put partitions of a running service at another offset.")(seek)


def pause(
    partitions: Partitions = None,
    every: Every = False,
    config: Config = Path("config.toml"),
    url: Url = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Pause partitions in the service on this machine, or at --url; what is in hand is finished.

    A pause is this member's own: when the partition leaves it, or the service restarts, it is over. With --url
    it takes [http] token; here, as the service's user, it takes none.

    Exits 0 if they are paused, 2 if not.
    """
    _act("pause", _named(partitions, every=every), config, url, token_file, as_json=as_json)


def resume(
    partitions: Partitions = None,
    every: Every = False,
    config: Config = Path("config.toml"),
    url: Url = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Resume partitions that are paused or halted; a record that halted its partition gets as many tries as a new one.

    With --url it takes [http] token; here, as the service's user, it takes none.

    Exits 0 if they go on, 2 if not.
    """
    _act("resume", _named(partitions, every=every), config, url, token_file, as_json=as_json)


def seek(  # noqa: PLR0913 - each is an option
    *,
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC:N...", help="Such as orders:7 or orders:0-3.")],
    to_offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="To the first record not older: 2026-01-31T12:00:00Z, or an age: 2h.")
    ] = None,
    earliest: Annotated[bool, typer.Option("--earliest", help="To where the log begins.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="To where it ends: skips what is there.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without, only the plan is shown.")] = False,
    config: Config = Path("config.toml"),
    url: Url = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Show what putting partitions elsewhere would mean; with --execute have the running service do it.

    It finishes what is in hand, commits the new offset and goes on there, without a rebalance. A partition that is
    halted goes on from there, one that is paused stays so. An offset outside of the log is refused. With --url
    it takes [http] token; here, as the service's user, it takes none.

    Exits 0 if the plan was shown or done; 2 if it cannot be, or no service answers.

    \b
    Examples:
      kunicorn seek orders:7 --to-offset 1234            the plan: what would be skipped, or handled again
      kunicorn seek orders:7 --to-offset 1234 --execute
      kunicorn seek orders:0-3 --to-datetime 2h --execute --url http://orders-2:9400
    """
    body = {**_target(to_offset, to_datetime, earliest=earliest, latest=latest), "execute": execute}
    answer = _act("seek", {"partitions": partitions, **body}, config, url, token_file, as_json=as_json)
    if not execute and not as_json and answer["ok"]:
        typer.echo("--execute does it")


def _target(
    to_offset: int | None, to_datetime: str | None, *, earliest: bool, latest: bool
) -> Mapping[str, str | int | None]:
    """Raises `ConfigError` unless one is given."""
    from kunicorn.moments import moment

    given: list[Mapping[str, str | int | None]] = []
    if to_offset is not None:
        given.append({"to_offset": to_offset})
    if to_datetime is not None:
        given.append({"to_time_ms": moment("--to-datetime", to_datetime, time.time_ns() // 1_000_000)})
    given += [{"to": name} for name, wanted in (("earliest", earliest), ("latest", latest)) if wanted]
    if len(given) != 1:
        raise ConfigError("say exactly one of --to-offset, --to-datetime, --earliest, --latest")
    return given[0]


def _named(partitions: list[str] | None, *, every: bool) -> Mapping[str, Any]:
    if bool(partitions) == every:
        raise ConfigError("name partitions, such as orders:7, or say --all")
    return {"partitions": partitions or []}


def _act(
    action: str, body: Mapping[str, Any], config: Path, url: str | None, token_file: Path | None, *, as_json: bool
) -> Mapping[str, Any]:
    """Ask, and print the answer. Raises `ConfigError` for one that refuses."""
    from kunicorn.control.plan import lines
    from kunicorn.control.service import RunningService
    from kunicorn.settings import load
    from kunicorn.tables import as_json_text

    answer = RunningService.of(load(config, os.environ), url, token_file).ask(action, body)
    if as_json:
        typer.echo(as_json_text(answer))
    else:
        for line in lines(answer.get("partitions", ())):
            typer.echo(line)
    if not answer["ok"]:
        raise ConfigError(f"{answer['said']}{_hint(answer['said'])}")
    if not as_json:
        typer.echo(answer["said"])
    return answer


def _hint(said: str) -> str:
    if "is not assigned to this member" not in said:
        return ""
    return "; `kunicorn offsets show` says which member has it, and --url is where that one answers"
