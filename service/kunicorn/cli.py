"""The command line. Imports what a command needs when it runs: `kunicorn --version` loads no Kafka client."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kunicorn import __version__
from kunicorn.dlq.commands import app as dlq
from kunicorn.errors import ConfigError, ServiceError
from kunicorn.pipeline.commands import app as pipeline

_EPILOG = """\b
Examples:
  kunicorn demo                         see it work, without a Kafka of your own
  kunicorn check --config config.toml   is everything there that the service needs?
  kunicorn run --config config.toml     the service, until SIGTERM or Ctrl-C
  kunicorn dlq list                     what is in the dead-letter topic?
  kunicorn leave --instance orders-3    remove a static member that will not come back
  kunicorn pipeline backfill --from 2h  handle history again, on Spark

\b
Exit codes:
  0 stopped as asked, all that was handled is committed; with [assign] all in hand is finished
  1 a bug; the log has the traceback
  2 a setting is wrong
  3 the handler cannot be loaded
  4 the group refuses this member for good
  5 workers die again and again with nothing in hand
  6 stopped, but something handled is not committed and will be handled again;
    with [assign]: not all that was to be handled is finished
"""

app = typer.Typer(
    name="kunicorn",
    help="gunicorn for Kafka consumers: one group member, many worker processes.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    # Plain text: help is read in containers' logs and pipes as often as on terminals.
    rich_markup_mode=None,
    # A bug's traceback is for the log; the decorated one prints local variables, and secrets with them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(dlq, name="dlq")
app.add_typer(pipeline, name="pipeline")

Config = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="PATH", help="The settings' TOML file; config.example.toml shows every setting."
    ),
]


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kunicorn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(short_help="Run the service until SIGTERM or Ctrl-C.")
def run(config: Config = Path("config.toml")) -> None:
    """Run the service until SIGTERM or Ctrl-C; then drain, commit, leave the group.

    Variables KUNICORN_<SECTION>__<NAME> go before the file, such as KUNICORN_WORKERS__COUNT=8.
    A second signal stops at once, without waiting for records in hand. SIGHUP reads the settings again, imports the
    handler anew and replaces one worker after the other, without a rebalance.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.supervisor.app import run as run_service

    raise typer.Exit(run_service(settings, lambda: load(config, os.environ)))


@app.command(short_help="Say what is missing or wrong, without joining the group.")
def check(config: Config = Path("config.toml")) -> None:
    """Check settings, handler, brokers, topics and group, a line for each, without joining the group.

    Safe beside running members. Exits 0 if all is well, 2 if a setting or the cluster is not, 3 if the handler
    cannot be loaded.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.check import Finding
    from kunicorn.check import check as check_service

    typer.echo(str(Finding("settings", f"{config} is valid")))
    raise typer.Exit(check_service(settings, typer.echo))


@app.command(short_help="Remove a static member that will not come back from its group.")
def leave(
    instance: Annotated[
        str, typer.Option("--instance", metavar="ID", help="The member's group_instance_id, such as a pod's name.")
    ],
    config: Config = Path("config.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; required where there is no terminal.")] = False,
) -> None:
    """Remove a static member from its group, so that the others take its partitions over at once.

    A static member keeps them until its session times out, also when it is stopped: it is expected back. This is for
    one that is not. Shows the member first, and asks.

    Exits 0 if the member was removed; 2 if there is no such member or group, nobody confirmed, or no broker answers;
    4 if the group refuses, as where this user may not read it.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    if not yes and not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for a confirmation: look first, then say --yes")
    from kunicorn.leave import leave as leave_group

    leave_group(settings, instance, typer.echo, lambda: yes or typer.confirm("Remove it?"))


@app.command(short_help="See it work, without a Kafka of your own.")
def demo(
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A broker of yours; without it a mock cluster is started and removed."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=5.0, max=3600.0, help="How long it lasts, about.")] = 25.0,
) -> None:
    """Watch a group of two members lose a worker, rebalance and stop, and an audit of every record.

    Needs nothing but this machine. Exits 0 if no record was lost and none was handled twice.

    \b
    Examples:
      kunicorn demo
      kunicorn demo --bootstrap 127.0.0.1:9092 --seconds 60
    """
    from kunicorn.demo.scenario import run_demo

    raise typer.Exit(run_demo(bootstrap=bootstrap, seconds=seconds))


def main() -> None:
    """The `kunicorn` command. An expected failure is its message on standard error and its exit code, nothing else."""
    try:
        app(prog_name="kunicorn")
    except ServiceError as error:
        print(f"kunicorn: {error}", file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from None
