"""The command line: `run`, `check`, `status`, `lag`, `leave`, `demo`, `broker`, `config` and `completion`. Declarations
only: a command imports what it needs when it runs, so that `kunicorn --version` loads no Kafka client.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kunicorn import __version__
from kunicorn.commands.cli_group import dlq_commands as dlq
from kunicorn.commands.cli_group import offsets_commands as offsets
from kunicorn.commands.cli_group import register_control as add_control
from kunicorn.commands.cli_group import register_replay_one as add_desk
from kunicorn.commands.cli_group import topics_commands as topics
from kunicorn.commands.cli_options import DEFAULT_CONFIG, Config, Json, confirmed
from kunicorn.commands.cli_pipeline import app as pipeline
from kunicorn.errors import ServiceError
from kunicorn.linux import need_linux
from kunicorn.text import as_json_text, check_confirmable

config_commands = typer.Typer(
    name="config", help="Show the settings in force, or their JSON schema.", no_args_is_help=True,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@config_commands.command(short_help="Show the settings in force: file, environment, defaults; secrets hidden.")
def show(
    config: Config = DEFAULT_CONFIG,
    every: Annotated[bool, typer.Option("--all", help="Those at their default, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; always all of them.")] = False,
) -> None:
    """Show the settings that `run` would go by, each with where it comes from. Secrets are hidden.

    Exits 0, or 2 with every problem there is in the settings.
    """
    from kunicorn.settings import load, shown
    from kunicorn.settings.generate.pages import listed
    from kunicorn.text import as_json_text

    settings = load(config, os.environ)
    if as_json:
        typer.echo(as_json_text(shown(settings)))
    else:
        for line in listed(config, os.environ, settings, every=every):
            typer.echo(line)


@config_commands.command(short_help="Print the JSON schema of the settings' file.")
def schema() -> None:
    """Print the JSON schema (2020-12) of the settings' file, for editors and for charts."""
    from kunicorn.settings.generate.pages import json_schema
    from kunicorn.text import as_json_text

    typer.echo(as_json_text(json_schema()))


_COMPLETING = "_KUNICORN_COMPLETE"
"""Set by the shell's script when it asks what may follow."""


class Shell(StrEnum):
    """Shells for which there is a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register_completion(app: typer.Typer) -> None:
    """Add `completion` to the application."""
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
    """Enable answers to a shell's completion requests. Caller: `main`, before the application runs."""
    if _COMPLETING in os.environ:
        # Typer's own way in would add options that write into the user's shell profile.
        from typer._completion_classes import completion_init

        completion_init()


_EPILOG = """\b
Examples:
  kunicorn demo                         see it work, without a Kafka of your own
  kunicorn broker --seed 1000           a Kafka to try things out with, until Ctrl-C
  kunicorn check --config config.toml   is everything there that the service needs?
  kunicorn run --config config.toml     the service, until SIGTERM or Ctrl-C
  kunicorn status --watch               what does the service on this machine do?
  kunicorn lag                          how far behind is the group?
  kunicorn offsets reset --to-datetime 2h    what would it mean to go back two hours?
  kunicorn seek orders:7 --to-offset 1234    what would it mean to go on there, while it runs?
  kunicorn replay-one orders 7 1234     that record through the handler, here; --pdb debugs it
  kunicorn dlq list                     what is in the dead-letter topic?
  kunicorn leave --instance orders-3    remove a static member that will not come back
  kunicorn pipeline backfill --from 2h  handle history again, on Spark

\b
Exit codes:
  0 stopped as asked, all that was handled is committed; with [assign] all in hand is finished;
    with assign.stop = "end" or --until-end: the end, or a limit that options name, is reached
  1 a bug; the log has the traceback
  2 a setting is wrong
  3 the handler cannot be loaded
  4 the group refuses this member for good
  5 workers die again and again with nothing in hand
  6 stopped, but something handled is not committed and will be handled again;
    with assign.stop = "end" or --until-end: stopped before the end, or not all is finished
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
app.add_typer(offsets, name="offsets")
app.add_typer(topics, name="topics")
app.add_typer(config_commands, name="config")
app.add_typer(pipeline, name="pipeline")


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
def run(
    config: Config = DEFAULT_CONFIG,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: reload when the handler's files or the settings change.")
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="For jobs: exit when all is handled that there is at the start.")
    ] = False,
    max_records: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Exit when about so many records are handled, or given up.")
    ] = None,
    run_for: Annotated[str | None, typer.Option("--for", metavar="TIME", help="Exit after so long: 90s, 2h.")] = None,
    stop_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Exit at this time, such as 2026-01-31T06:00:00Z.")
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C; then drain, commit, leave the group.

    Or until one of the ends that options name, for jobs; the exit code is 0 if that is reached, with all committed.

    Variables KUNICORN_<SECTION>__<NAME> go before the file, such as KUNICORN_WORKERS__COUNT=8.
    A second signal stops at once, without waiting for records in hand. SIGHUP reads the settings again, imports the
    handler anew and replaces one worker after the other, without a rebalance.
    """
    need_linux()
    # Imports leave nothing to collect, and looking for it again and again takes a tenth of the start.
    gc.disable()
    from kunicorn.settings import Settings, at_a_desk, load

    def read() -> Settings:
        settings = load(config, os.environ)
        return at_a_desk(settings) if reload else settings

    settings = read()
    from kunicorn.supervisor.limits import until_of

    until = until_of(settings, end=until_end, max_records=max_records, run_for=run_for, stop_at=stop_at)
    watched: Sequence[Path] = ()
    if reload:
        from kunicorn.supervisor.workers.rolling import places_of

        entrypoints = [handler.entrypoint for handler in settings.every_handler]
        watched = places_of(entrypoints, config)
    from kunicorn.supervisor.workers.spawn import hold_signals, preload, spawn

    hold_signals()
    try:
        template = spawn(preload(settings))
    except OSError as error:
        raise ServiceError(
            f"no process can be started with {sys.executable}: {error.strerror}; workers need one each: see that this "
            f"user may execute it, and that limits of processes and memory leave room"
        ) from error
    from kunicorn.supervisor.service import run as run_service

    # What there is now stays: no collection needs to look at it again.
    gc.freeze()
    gc.enable()
    run_service(settings, template, read, watched, until)


@app.command(short_help="Say what is missing or wrong, without joining the group.")
def check(
    config: Config = DEFAULT_CONFIG,
    tries: Annotated[
        int,
        typer.Option("--try", min=0, max=10_000, metavar="N", help="Let the handler handle the latest N records."),
    ] = 0,
    waits: Annotated[
        bool, typer.Option("--wait", help="For a pod's start: wait for what may pass by itself, such as an outage.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check settings, handler, its setup, port, brokers, topics, rights and group, a line for each, without joining.

    Says what this member would be given beside those there are. Safe beside running members: setup and teardown are
    called in a process of its own. With --try the handler is, too, with the latest records: nothing is committed, but
    what the handler does is real. With --wait brokers that do not answer or refuse the login, a coordinator or schema
    registry that is away, a token that cannot be had and a topic that is just being made are waited for; all else that
    is wrong, such as a topic that is missing, ends it at once.

    Exits 0 if all is well, 2 if a setting or the cluster is not, 3 if the handler cannot be loaded or fails.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.commands.check.cluster import Finding
    from kunicorn.commands.check.session import check as check_service

    found = [Finding("settings", f"{config} is valid")]
    if as_json:
        code = check_service(settings, found.append, records=tries, waits=waits)
        typer.echo(as_json_text([finding.told() for finding in found]))
    else:
        typer.echo(str(found[0]))
        code = check_service(settings, lambda finding: typer.echo(str(finding)), records=tries, waits=waits)
    raise typer.Exit(code)


@app.command(short_help="Show what the service on this machine does.")
def status(
    config: Config = DEFAULT_CONFIG,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where it answers, such as http://pod:9400; no file is read then.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks of --watch.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Show member, workers, partitions and lag of a running service, as its /status tells them.

    Exits 0 if the service answered, 2 if not.
    """
    from kunicorn.commands.status import address, say_status

    own_certificate = None
    if url is None:
        from kunicorn.settings import load

        settings = load(config, os.environ)
        url, own_certificate = address(settings), settings.http.tls_certificate_file
    every = interval if watch else None
    with contextlib.suppress(KeyboardInterrupt):
        say_status(url, typer.echo, every=every, as_json=as_json, own_certificate=own_certificate)


@app.command(short_help="Show how far behind the group is, in records and in time.")
def lag(
    config: Config = DEFAULT_CONFIG,
    every: Annotated[bool, typer.Option("--all", help="All partitions that are behind, not only the worst.")] = False,
    as_json: Json = False,
) -> None:
    """Show the group's lag by topic and by partition, as the brokers know it; the service need not run.

    The age is that of the first record that is not committed. Joins nothing, changes nothing.

    Exits 0; 2 if no broker answers or a topic is missing; 4 if the group may not be read.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.commands.lag import lag as lag_of
    from kunicorn.text import tell

    tell(lag_of(settings, most=1_000_000 if every else 20), typer.echo, as_json=as_json)


@app.command(short_help="Remove a static member that will not come back from its group.")
def leave(
    instance: Annotated[
        str, typer.Option("--instance", metavar="ID", help="The member's group_instance_id, such as a pod's name.")
    ],
    config: Config = DEFAULT_CONFIG,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; required where there is no terminal.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a static member from its group, so that the others take its partitions over at once.

    A static member keeps them until its session times out, also when it is stopped: it is expected back. This is for
    one that is not. Shows the member first, and asks.

    Exits 0 if the member was removed; 2 if there is no such member or group, nobody confirmed, or no broker answers;
    4 if the group refuses, as where this user may not read it.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    check_confirmable(yes=yes, as_json=as_json)
    from kunicorn.commands.leave import leave as leave_group

    leave_group(settings, instance, typer.echo, lambda: yes or confirmed("Remove it?"), as_json=as_json)


@app.command(short_help="See it work, without a Kafka of your own.")
def demo(
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A broker of yours; without it a mock cluster is started and removed."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=5.0, max=3600.0, help="How long it lasts, about.")] = 25.0,
    arrow: Annotated[
        bool, typer.Option("--arrow", help="Its handler gets columns, pyarrow.RecordBatch, in place of records.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch a group of two members lose a worker, rebalance and stop, and an audit of every record.

    Needs nothing but this machine. Exits 0 if no record was lost and none was handled twice, 2 if the broker of
    --bootstrap does not answer or refuses. With --json the audit's result is printed for a program, and what happens
    meanwhile goes to standard error.

    \b
    Examples:
      kunicorn demo
      kunicorn demo --bootstrap 127.0.0.1:9092 --seconds 60
      kunicorn demo --arrow
    """
    from kunicorn.commands.demo.scenario import run_demo

    raise typer.Exit(run_demo(bootstrap=bootstrap, seconds=seconds, arrow=arrow, as_json=as_json))


@app.command(short_help="Serve an embedded Kafka for trying things out.")
def broker(
    config: Config = Path("config.toml"),
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:PARTITIONS]", help="This topic; no settings are read then. May be repeated."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="Its port: as kafka.bootstrap_servers says, or 9092; 0: any."),
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Partitions of each topic.")] = 8,
    seed: Annotated[
        int, typer.Option(min=0, max=100_000, metavar="N", help="Orders to put into each topic that is consumed.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Serve a Kafka on this machine until Ctrl-C: in memory, with the topics that the settings name.

    For trying things out. It is librdkafka's mock cluster, no Kafka: what it lacks is printed when it serves.

    Exits 0; 1 if it ends by itself; 2 if a setting is wrong, or the port is taken.

    \b
    Examples:
      kunicorn broker --seed 1000
      kunicorn broker --topic orders:8 --topic refunds --port 9092
    """
    from kunicorn.commands import broker as embedded

    if topic:
        topics, at = embedded.named(topic, partitions), 9092
    else:
        from kunicorn.settings import load

        settings = load(config, os.environ)
        topics, at = embedded.topics_of(settings, partitions), embedded.port_of(settings)
    embedded.serve(topics, at if port is None else port, seed, typer.echo, as_json=as_json)


# In the order in which --help lists them, behind those above.
add_control(app)
add_desk(app)
register_completion(app)


def _declare_only(named: Sequence[str]) -> None:
    """Declare only the named commands' options. Typer looks at every option of every command before it runs one, which
    is a tenth of a service's start. Anything that is not the name of a command needs them all, to list them.
    """
    commands = [
        each for each in app.registered_commands if [each.name or getattr(each.callback, "__name__", None)] == named
    ]
    groups = [each for each in app.registered_groups if [each.name] == named]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups


def open_standard_streams() -> None:
    """Put nothing (/dev/null) where whoever started the process has closed a standard stream: the next socket would get
    its number, and our log be written into it. Caller: `main`, before anything is opened.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is given: this one, as those below it are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            stream = os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def main() -> None:
    """The `kunicorn` command. An expected failure is its message on standard error and its exit code, nothing else."""
    open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has no such character is shown its number; the rest of the answer must not be lost for it.
        sys.stdout.reconfigure(errors="backslashreplace")
    prepare()
    _declare_only(sys.argv[1:2])
    try:
        app(prog_name="kunicorn")
    except ServiceError as error:
        print(f"kunicorn: {error}", file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from None
