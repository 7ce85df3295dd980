"""The commands about a group: `offsets`, `topics`, `pause`, `resume`, `seek`, `dlq` and `replay-one`. Declarations
only: a command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kunicorn.commands.cli_options import DEFAULT_CONFIG, Config, Json, confirmed
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.ipc.clock import wall_ms
from kunicorn.text import as_json_text, check_confirmable, tell

offsets_commands = typer.Typer(
    name="offsets", help="Show where the group stands, and put it elsewhere.", no_args_is_help=True,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@offsets_commands.command("show", short_help="Show committed offsets beside the logs' starts and ends.")
def show_offsets(
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="topic,partition,offset, as --from-file reads it.")] = False,
) -> None:
    """Show committed offsets, log starts, log ends, lag and who owns each partition. Changes nothing.

    Exits 0; 2 if no broker answers or a topic is missing; 4 if the group may not be read.
    """
    from kunicorn.settings import load

    if as_csv and as_json:
        raise ConfigError("--csv and --json both say how to answer: choose one")
    settings = load(config, os.environ)
    from kunicorn.commands import offsets

    if as_csv:
        offsets.export(settings, typer.echo)
    else:
        tell(offsets.show(settings), typer.echo, as_json=as_json)


@offsets_commands.command("reset", short_help="Plan a reset of committed offsets; --execute does it.")
def reset_offsets(  # noqa: PLR0913 - each is an option
    *,
    config: Config = DEFAULT_CONFIG,
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
    from kunicorn.commands.offsets import Options
    from kunicorn.commands.offsets import reset as reset_offsets

    options = Options(to_earliest, to_latest, to_datetime, shift_by, to_offset, from_file)
    reset_offsets(settings, options, topic or (), typer.echo, execute=execute, as_json=as_json)


topics_commands = typer.Typer(
    name="topics", help="Compare the topics that the settings need with those there are, and create them.",
    no_args_is_help=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@topics_commands.command("plan", short_help="Show what would be created or changed.")
def plan_topics(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Show what `apply` would create or change: dead-letter, retry and output topics, and inputs that are missing.
    Changes nothing.

    Nothing is ever deleted or lowered, and partitions are not added: keys would move.

    Exits 0; 2 if no broker answers, one refuses, or a missing topic cannot be planned.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.commands import topics

    tell(topics.show(settings), typer.echo, as_json=as_json)


@topics_commands.command("check", short_help="Fail unless every topic is as the settings need it.")
def check_topics(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Show the plan, and fail where there is anything in it: for a pipeline that deploys. Changes nothing.

    Exits 0 if there is nothing to do; 2 if there is, or no broker answers.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.commands import topics

    topics.check(settings, typer.echo, as_json=as_json)


@topics_commands.command("apply", short_help="Create and change topics, after the plan was shown.")
def apply_topics(
    config: Config = DEFAULT_CONFIG,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; required where there is no terminal.")] = False,
    as_json: Json = False,
) -> None:
    """Show the plan, ask, and carry it out. Nothing is ever deleted or lowered.

    A change that brokers refuse does not hold up the others.

    Exits 0 if everything is done, or there was nothing to do; 2 if a change was refused, nobody confirmed, or no broker
    answers.

    \b
    Examples:
      kunicorn topics plan
      kunicorn topics apply --yes
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    check_confirmable(yes=yes, as_json=as_json)
    from kunicorn.commands import topics

    topics.apply(settings, typer.echo, lambda: yes or confirmed("Do it?"), as_json=as_json)


Partitions = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC[:N[-M]]...", help="Such as orders:7, orders:0-3, or orders.")
]
Url = Annotated[str | None, typer.Option(metavar="URL", help="Where it answers, such as http://pod:9400.")]
TokenFile = Annotated[Path | None, typer.Option(metavar="PATH", help="In place of the settings' [http] token.")]
Every = Annotated[bool, typer.Option("--all", help="All partitions of this member.")]


def register_control(app: typer.Typer) -> None:
    """Add `pause`, `resume`, `seek`, `recycle` and `reload` to the application."""
    pause, resume = _for_some("pause"), _for_some("resume")
    app.command("pause", help=_PAUSE, short_help="Have a running service fetch some partitions no more.")(pause)
    app.command("resume", help=_RESUME, short_help="Have a running service go on with paused or halted partitions.")(
        resume
    )
    app.command(short_help="Put partitions of a running service at another offset.")(seek)
    app.command(short_help="Have a running service replace a worker, without a rebalance.")(recycle)
    app.command(short_help="Have a running service read settings and handler anew, without a rebalance.")(reload)


_PAUSE = """Pause partitions in the service on this machine, or at --url; what is in hand is finished.

A pause is this member's own: when the partition leaves it, or the service restarts, it is over. With --url
it takes [http] token; here, as the service's user, it takes none.

Exits 0 if they are paused, 2 if not.
"""
_RESUME = """Resume partitions that are paused or halted; a record that halted its partition gets as many tries as a
new one.

With --url it takes [http] token; here, as the service's user, it takes none.

Exits 0 if they go on, 2 if not.
"""


def _for_some(action: str) -> Callable[..., None]:
    """The command of an action on partitions that are named, or on all."""

    def command(
        partitions: Partitions = None,
        every: Every = False,
        config: Config = DEFAULT_CONFIG,
        url: Url = None,
        token_file: TokenFile = None,
        as_json: Json = False,
    ) -> None:
        if bool(partitions) == every:
            raise ConfigError("name partitions, such as orders:7, or say --all")
        _act(action, {"partitions": partitions or []}, (config, url, token_file), as_json=as_json)

    return command


def seek(  # noqa: PLR0913 - each is an option
    *,
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC:N...", help="Such as orders:7 or orders:0-3.")],
    to_offset: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, metavar="N", help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="To the first record not older: 2026-01-31T12:00:00Z, or an age: 2h.")
    ] = None,
    earliest: Annotated[bool, typer.Option("--earliest", help="To where the log begins.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="To where it ends: skips what is there.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without, only the plan is shown.")] = False,
    config: Config = DEFAULT_CONFIG,
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
    further = "" if execute else "--execute does it"
    _act("seek", {"partitions": partitions, **body}, (config, url, token_file), further, as_json=as_json)


def recycle(
    worker: Annotated[int, typer.Argument(min=0, metavar="WORKER", help="Its number, as `kunicorn status` says.")],
    config: Config = DEFAULT_CONFIG,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Have the running service replace a worker: its successor starts, then it finishes what it has and ends.

    No rebalance. A call that does not end within drain_timeout_ms is interrupted, and its record is handled again. With
    --url it takes [http] token; here, as the service's user, it takes none.

    Exits 0 if the replacement has begun, 2 if not.
    """
    _act("recycle", {"worker": worker}, (config, url, token_file), as_json=as_json)


def reload(
    config: Config = DEFAULT_CONFIG, url: Url = None, token_file: TokenFile = None, as_json: Json = False
) -> None:
    """Have the running service read its settings again and import its handler anew, and wait for what comes of it.

    All or nothing, as with SIGHUP: where the settings are refused, or the new code does not import or set up, nothing
    is changed. Else one worker after the other is replaced, without a rebalance. Settings that take effect with the
    next start only are named. With --url it takes [http] token; here, as the service's user, it takes none.

    Exits 0 if all workers run the new code, 2 if not.
    """
    _act("reload", {}, (config, url, token_file), as_json=as_json)


def _target(
    to_offset: int | None, to_datetime: str | None, *, earliest: bool, latest: bool
) -> Mapping[str, str | int | None]:
    """The given target of a seek. Raises `ConfigError` unless exactly one is given."""
    from kunicorn.text import moment

    given: list[Mapping[str, str | int | None]] = []
    if to_offset is not None:
        given.append({"to_offset": to_offset})
    if to_datetime is not None:
        given.append({"to_time_ms": moment("--to-datetime", to_datetime, wall_ms())})
    given += [{"to": name} for name, wanted in (("earliest", earliest), ("latest", latest)) if wanted]
    if len(given) != 1:
        raise ConfigError("say exactly one of --to-offset, --to-datetime, --earliest, --latest")
    return given[0]


def _act(
    action: str,
    body: Mapping[str, Any],
    place: tuple[Path, str | None, Path | None],
    further: str = "",
    *,
    as_json: bool,
) -> None:
    """Ask the running service, and print the answer. `place`: settings, URL and token's file. Raises `ConfigError`
    where it refuses.
    """
    from kunicorn.commands.control import Reply, RunningService
    from kunicorn.settings import load

    _refuse_unnamed(body.get("partitions", ()))
    config, url, token_file = place
    reply = Reply(RunningService.of(load(config, os.environ), url, token_file).ask(action, body), further)
    tell(reply, typer.echo, as_json=as_json)
    if not reply.ok:
        raise ConfigError(f"{reply.answer['said']}{_hint(reply.answer['said'])}")


def _refuse_unnamed(partitions: Sequence[str]) -> None:
    """Raise `ConfigError` for what names no partitions: the service would not say which of several it is."""
    from kunicorn.settings.assign import partitions_named

    for item in partitions:
        try:
            partitions_named(item)
        except ValueError as error:
            raise ConfigError(f"{item!r}: {error}") from error


def _hint(said: str) -> str:
    if "is not assigned to this member" not in said:
        return ""
    return "; `kunicorn offsets show` says which member has it and its address, and --url is where that one answers"


dlq_commands = typer.Typer(
    name="dlq", help="Look into the dead-letter topic, and send letters back.", no_args_is_help=True,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@dlq_commands.command("list", short_help="Count letters by error and by where they came from.")
def list_letters(
    config: Config = DEFAULT_CONFIG,
    latest: Annotated[int, typer.Option(min=0, help="How many of the latest letters to name.")] = 10,
    letters: Annotated[str | None, typer.Option(help="Another dead-letter topic than dead_letters.topic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; the latest letters whole.")] = False,
) -> None:
    """Count all letters by error type, topic and partition, and name the latest. Changes nothing."""
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.commands.dlq import summary
    from kunicorn.commands.dlq_topic import opened

    with opened(settings, letters) as topic:
        tell(summary(topic.name, topic.letters(), latest), typer.echo, as_json=as_json)


@dlq_commands.command("show", short_help="Show one letter whole.")
def show_letter(
    place: Annotated[str, typer.Argument(metavar="PARTITION@OFFSET", help="As `kunicorn dlq list` names it.")],
    config: Config = DEFAULT_CONFIG,
    letters: Annotated[str | None, typer.Option(help="Another dead-letter topic than dead_letters.topic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; nothing is cut.")] = False,
) -> None:
    """Show where a letter came from, why, and its key, headers and value. Changes nothing."""
    from kunicorn.settings import load

    settings = load(config, os.environ)
    from kunicorn.commands import dlq
    from kunicorn.commands.dlq_topic import opened

    with opened(settings, letters) as topic:
        tell(dlq.one(topic, place), typer.echo, as_json=as_json)


@dlq_commands.command("replay", short_help="Send letters back to the topics they came from.")
def replay_letters(  # noqa: PLR0913 - each is an option
    *,
    config: Config = DEFAULT_CONFIG,
    since: Annotated[str | None, typer.Option(help="Given up then or later: a time with zone, or an age: 2h.")] = None,
    until: Annotated[str | None, typer.Option(help="Given up before then.")] = None,
    error: Annotated[str | None, typer.Option(help="Error type, with or without its module.")] = None,
    key: Annotated[str | None, typer.Option(help="The record's key, as text.")] = None,
    topic: Annotated[str | None, typer.Option(help="The topic they came from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Letters of this group, if not of the settings' own; several may share the topic."),
    ] = None,
    from_beginning: Annotated[bool, typer.Option(help="Those that were replayed before, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; required where there is no terminal.")] = False,
    letters: Annotated[str | None, typer.Option(help="Another dead-letter topic than dead_letters.topic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; with --yes.")] = False,
) -> None:
    """Send the group's letters back with their key, value, headers and timestamp, and count the replay in a header.

    Shows what would be sent, and asks. What was delivered is remembered: a second replay does not repeat it. The
    letters stay in the dead-letter topic.

    Exits 0 if all were delivered, 2 if nobody confirmed or a topic is missing, 6 if some were not.
    """
    from kunicorn.settings import load

    settings = load(config, os.environ)
    check_confirmable(yes=yes, as_json=as_json)
    from kunicorn.commands.dlq_topic import Selection
    from kunicorn.text import moment

    now_ms = wall_ms()
    chosen = Selection(
        moment("--since", since, now_ms) if since is not None else None,
        moment("--until", until, now_ms) if until is not None else None,
        error,
        os.fsencode(key) if key is not None else None,  # The bytes as typed: a key need not be text.
        topic,
    )
    if chosen.nothing_between:
        raise ConfigError("--since is not before --until: exchange the two")
    from kunicorn.commands.dlq import run

    run(
        settings,
        chosen,
        limit,
        letters=letters,
        group=group,
        from_beginning=from_beginning,
        confirm=lambda: yes or confirmed("Send them back?"),
        say=(lambda _: None) if as_json else typer.echo,
        answer=(lambda told: typer.echo(as_json_text(told))) if as_json else (lambda _: None),
    )


def register_replay_one(app: typer.Typer) -> None:
    """Add `replay-one` to the application."""
    app.command("replay-one", short_help="One real record through the handler, at your desk.")(replay_record)


def replay_record(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(min=0, metavar="PARTITION")],
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET")],
    config: Config = DEFAULT_CONFIG,
    debug: Annotated[bool, typer.Option("--pdb", help="Stop in the debugger where the handler raises.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Fetch one record and let the handler handle it once, with its setup and teardown, in this process.

    Joins no group, commits nothing, sends nothing: dead letters, retries and outputs that it would have made are shown.
    What the handler itself does is real.

    Exits 0 if the handler returned or said an outcome, 2 if there is no such record or no broker answers, 3 if the
    handler cannot be loaded or raised.

    \b
    Examples:
      kunicorn replay-one orders 7 1234
      kunicorn replay-one orders 7 1234 --pdb
    """
    from kunicorn.commands import replay_one
    from kunicorn.positions import TopicPartition
    from kunicorn.settings import load

    if debug and (as_json or not sys.stdin.isatty()):
        raise ConfigError("--pdb needs a person at a terminal: leave --json out, and do not redirect the input")
    settings = load(config, os.environ)
    message = replay_one.find(settings, TopicPartition(topic, partition), offset)
    replayed = replay_one.replay(settings, message, debug=debug)
    tell(replayed, typer.echo, as_json=as_json)
    raise typer.Exit(ExitCode.HANDLER if replayed.error is not None else ExitCode.CLEAN)
