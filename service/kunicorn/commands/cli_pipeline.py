"""The commands of `kunicorn pipeline`. Declarations only: a command imports what it needs when it runs, so that help
needs no Spark.
"""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kunicorn.commands.cli_options import DEFAULT_CONFIG, Config
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.handler.extras import install_extra
from kunicorn.ipc.clock import wall_ms
from kunicorn.pipeline import DEFAULT_MASTER

if TYPE_CHECKING:
    from kunicorn.pipeline.report import Finished, Say
    from kunicorn.pipeline.tasks.executor_process import SettingsFile
    from kunicorn.settings import Settings
    from kunicorn.text import Answer

app = typer.Typer(
    name="pipeline", help="The same handler on Spark: reprocess history, catch up, stream, export.",
    no_args_is_help=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Master = Annotated[
    str, typer.Option("--master", metavar="URL", help=f"Where Spark runs: {DEFAULT_MASTER}, spark://…, k8s://…, yarn.")
]
RunId = Annotated[str | None, typer.Option("--run", metavar="ID", help="The run's name; made up if left out.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and end.")]
Json = Annotated[bool, typer.Option("--json", help="For a program: what came of it, or the plan of a --dry-run.")]


@app.callback()
def _heed_sigterm(context: typer.Context) -> None:
    from kunicorn.commands.sigterm import ending_at_sigterm

    context.with_resource(ending_at_sigterm())


@app.command(short_help="Handle history again; the live group's offsets stay as they are.")
def backfill(  # noqa: PLR0913 - each is an option
    *,
    config: Config = DEFAULT_CONFIG,
    master: Master = DEFAULT_MASTER,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="First record: a time with its zone, or an age: 2h.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End, not included; else now.")] = None,
    slack: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Read to the first record so long behind --to, and not to the log's end: 1h."),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Instead: {"orders": {"0": [100, 200]}}; -2 is the earliest, -1 the latest.'),
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Only these of group.topics.")] = None,
    run: RunId = None,
    resume: Annotated[str | None, typer.Option(metavar="ID", help="Go on with a run that was cut off.")] = None,
    begin_or_resume: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Begin the run of that name, or go on with it: for what starts a job again by itself."
        ),
    ] = None,
    dry_run: Dry = False,
    as_json: Json = False,
) -> None:
    """Handle the records between two times again, with the live service's rules.

    Safe beside the live service: this joins no group and commits nothing. Each record has an idempotency_key, the same
    in every try, for handlers whose effects must not add up. A run that was killed repeats what was underway.

    Exits 0 if everything was handled, 6 if something is left: stopped, or halted by its handler.
    """
    _check_extra()
    from kunicorn.pipeline import backfill as job
    from kunicorn.text import span

    settings, file = _read(config, master)
    if resume is not None:
        if any(each is not None for each in (since, until, slack, offsets, topic, run, begin_or_resume)):
            raise ConfigError("--resume goes on with what the run was asked for; leave out the rest but --master")
        if dry_run:
            return _tell(job.dry_run_of_resumed(settings, resume), as_json=as_json)
        raise typer.Exit(_told(job.resume(settings, file, resume, master, _saying(as_json)), as_json))
    if begin_or_resume is not None and run is not None:
        raise ConfigError("--begin-or-resume names the run itself; leave out --run")
    slack_ms = None if slack is None else round(span("--slack", slack) * 1000)
    request = job.Request(_time("--from", since), _time("--to", until), offsets, tuple(topic or ()), slack_ms)
    if dry_run:
        named = begin_or_resume
        plan = job.dry_run(settings, request, run) if named is None else job.dry_run_of_named(settings, request, named)
        return _tell(plan, as_json=as_json)
    said = _saying(as_json)
    if begin_or_resume is not None:
        done = job.begin_or_resume(settings, file, request, master, begin_or_resume, said)
    else:
        done = job.backfill(settings, file, request, master, run, said)
    raise typer.Exit(_told(done, as_json))


@app.command(short_help="Handle records as they come, with Structured Streaming.")
def stream(
    *,
    config: Config = DEFAULT_CONFIG,
    master: Master = DEFAULT_MASTER,
    run: Annotated[
        str, typer.Option("--run", metavar="ID", help="The stream's name; its checkpoint goes by it.")
    ] = "stream",
    starting_offsets: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Where a new stream begins: earliest, latest, or offsets as Spark's JSON."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Pace of micro-batches.")] = 10.0,
    available_now: Annotated[bool, typer.Option("--available-now", help="End when all of now is handled.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: what came of it.")] = False,
) -> None:
    """Handle micro-batch after micro-batch until SIGTERM or Ctrl-C; Spark's checkpoint knows where it is.

    Joins no group. The offsets are committed for a group of the stream's own, pipeline.stream_group_id, so that
    dashboards show its lag. The outcome table has every offset once, whatever is killed.

    Exits 0 if everything was handled (--available-now), 6 if something is left: stopped, or halted by a record.
    """
    _check_extra()
    from kunicorn.pipeline import stream as job

    settings, file = _read(config, master)
    pace = job.Pace(every, available_now)
    raise typer.Exit(_told(job.stream(settings, file, master, run, starting_offsets, pace, _saying(as_json)), as_json))


@app.command(short_help="Topics into a lake: Parquet, Delta, Iceberg; each record once.")
def export(  # noqa: PLR0913 - each is an option
    target: Annotated[str, typer.Argument(metavar="DIR", help="A directory, or a URL such as s3://bucket/orders.")],
    *,
    config: Config = DEFAULT_CONFIG,
    master: Master = DEFAULT_MASTER,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="parquet, delta or iceberg.")] = "parquet",
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of --to iceberg: namespace and table in the catalog: shop.orders."),
    ] = None,
    value: Annotated[
        str | None, typer.Option(metavar="TYPE", help="bytes, text or json; else as handler.value decodes it.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TYPE", help="As --value; else as handler.key decodes it.")] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="A schema or a model: values become a column of its fields."),
    ] = None,
    partition_by: Annotated[
        str, typer.Option(metavar="WHAT", help="Directories: day, hour, or a field of --columns: value.region.")
    ] = "day",
    merge_by: Annotated[
        str | None, typer.Option(metavar="key", help="A row for each key: its newest record's. With --to delta.")
    ] = None,
    dry_run: Dry = False,
    as_json: Json = False,
) -> None:
    """Write the topics' records to DIR/date=YYYY-MM-DD/, from where the last export ended to the ends of now.

    Calls no handler, joins no group. Killed anywhere, every record is there once: the next export repeats the round
    underway under the same names, or in a table commits it unless that has happened.
    """
    _check_extra()
    from kunicorn.pipeline import export as job
    from kunicorn.pipeline.lake.columns import Asked, form_asked
    from kunicorn.pipeline.state import place

    settings, file = _read(config, master)
    form = form_asked(settings, Asked(to, value, key, columns, partition_by, merge_by, table))
    if dry_run:
        return _tell(job.dry_run(settings, place(target), form), as_json=as_json)
    raise typer.Exit(_told(job.export(settings, file, place(target), master, form, _saying(as_json)), as_json))


@app.command(short_help="Make the small files of many exports fewer and larger.")
def compact(
    target: Annotated[str, typer.Argument(metavar="DIR", help="Where an export writes, as it was named there.")],
    *,
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, metavar="MB", help="Size of a file that is large enough.")
    ] = 256,
    dry_run: Dry = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: how many files became how many.")] = False,
) -> None:
    """Merge neighbouring files of each directory and partition, in this process: Spark is not started.

    Killed anywhere, nothing is lost; run again, it goes on, and removes what was there twice meanwhile. Not beside an
    export into DIR: the one that began later makes the other end. In a Delta table that is the table's own OPTIMIZE;
    Iceberg tables are refused.
    """
    _check_extra()
    from kunicorn.pipeline.lake import compact as job
    from kunicorn.pipeline.state import place

    _tell(job.compact(place(target), target_mb * 1_000_000, dry=dry_run), as_json=as_json)


@app.command(short_help="Compare a table of outcomes with the topic: what is missing, what is repeated?")
def reconcile(
    table: Annotated[str, typer.Argument(metavar="DIR", help="Parquet: topic, partition, offset; a run's outcomes.")],
    config: Config = DEFAULT_CONFIG,
    master: Master = DEFAULT_MASTER,
    as_json: Annotated[bool, typer.Option("--json", help="Ranges and sums, for a program.")] = False,
) -> None:
    """Name the ranges of offsets that no row of the table covers, and those that several do. Changes nothing.

    Exits 0 if there are none, 6 if there are.
    """
    _check_extra()
    from kunicorn.pipeline import reconcile as job
    from kunicorn.pipeline.state import place

    settings, _ = _read(config, master)
    raise typer.Exit(_told(job.reconcile(settings, place(table), master), as_json))


def _check_extra() -> None:
    """Raise `ConfigError` where the packages are missing that every job's module imports."""
    missing = [name for name in ("pyarrow", "pyspark") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} cannot be imported: {install_extra('pipeline')}")


def _read(config: Path, master: str) -> tuple[Settings, SettingsFile]:
    """The settings, and their description for executors. Raises `ConfigError`, also for a master that no job takes:
    before a run of the name is written down.
    """
    from kunicorn.pipeline.spark import check_installed, check_master
    from kunicorn.settings import load

    settings = load(config, os.environ)
    check_installed()
    check_master(master)
    from kunicorn.pipeline.tasks.executor_process import settings_file

    return settings, settings_file(config, settings)


def _saying(as_json: bool) -> Say:
    """Where a job reports its progress: with `--json` standard output is the program's."""
    return partial(typer.echo, err=as_json)


def _told(finished: Finished, as_json: bool) -> ExitCode:
    """Report a job's result; the exit code."""
    _tell(finished, as_json=as_json)
    return finished.code


def _tell(answer: Answer, *, as_json: bool) -> None:
    from kunicorn.text import tell

    tell(answer, typer.echo, as_json=as_json, in_one_line=True)


def _time(option: str, text: str | None) -> int | None:
    from kunicorn.text import moment

    return None if text is None else moment(option, text, wall_ms())


@app.command("catch-up", short_help="Take over a group that is far behind, bring it to its end, hand it back.")
def catch_up(
    *,
    config: Config = DEFAULT_CONFIG,
    master: Master = DEFAULT_MASTER,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for the group's members to leave.")
    ] = 0.0,
    run: RunId = None,
    dry_run: Dry = False,
    as_json: Json = False,
) -> None:
    """Handle what an empty group has left, from its committed offsets to the ends of now, and commit what is handled.

    Stop the live service first. Killed anywhere, what was not committed is handled again by the next catch-up or the
    live service; nothing is lost. A live member that joins meanwhile wins: the commit is refused, and the run ends.

    Exits 0 if the group is at the ends, 4 if it has members, 6 if something is left.
    """
    _check_extra()
    from kunicorn.pipeline import catch_up as job

    settings, file = _read(config, master)
    if dry_run:
        return _tell(job.dry_run(settings, run), as_json=as_json)
    raise typer.Exit(_told(job.catch_up(settings, file, master, run, wait, _saying(as_json)), as_json))
