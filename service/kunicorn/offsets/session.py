"""One command about offsets with a person or a script before it: look, plan, and only with --execute act."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.offsets import plan
from kunicorn.offsets.plan import Move, planned
from kunicorn.offsets.standing import GroupStanding, Standing, at_time, look
from kunicorn.offsets.targets import FromFile, Options, Target, ToDatetime, chosen
from kunicorn.settings import Settings
from kunicorn.tables import as_json_text, printable, table
from kunicorn.topics import TopicPartition
from kunicorn.visits import Visit, visiting
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.group_admin import DescribedMember

Say = Callable[[str], None]
_METADATA = "kunicorn offsets reset"
"""Stored beside the offsets, for whoever wonders later."""


class NotAllReset(ServiceError):
    """Some partitions keep their offset."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


def show(settings: Settings, say: Say, *, as_json: bool) -> None:
    """Print where the group stands. Raises `ConfigError`, `FatalGroupError`."""
    with visiting(settings) as visit:
        group = look(visit)
    if as_json:
        say(as_json_text(_group_json(group)))
        return
    for line in _shown(group):
        say(line)


def export(settings: Settings, say: Say) -> None:
    """Print the committed offsets as `--from-file` reads them."""
    with visiting(settings) as visit:
        group = look(visit)
    for each in group.partitions:
        if each.committed is not None:
            say(f"{each.tp.topic},{each.tp.partition},{each.committed}")


def reset(
    settings: Settings, options: Options, topics: Sequence[str], say: Say, *, execute: bool, as_json: bool
) -> None:
    """Show the plan; with `execute` commit it.

    Raises `ConfigError` for options that mean nothing and for a group that has members, `NotAllReset` where the broker
    refuses single partitions.
    """
    target = options.target(time.time_ns() // 1_000_000)
    with visiting(settings, "look at the offsets, then try again") as visit:
        group = look(visit)
        moves = _moves(visit, target, group, topics)
        if not as_json:
            say(f"group {group.group_id}: {group.state}, {len(group.members)} members")
            for line in plan.lines(moves):
                say(line)
            if kept := settings.retry_topics.keys() - {move.tp.topic for move in moves}:
                # Going back would repeat retries, going on would lose records that wait for theirs.
                say(f"retry topics stay where they are unless --topic names them: {', '.join(sorted(kept))}")
        if execute:
            _refuse_while_alive(group)
            _commit(visit, moves)
    if as_json:
        say(as_json_text({"group": group.group_id, "executed": execute, "partitions": [_move_json(m) for m in moves]}))
    elif execute:
        say(f"done: {len(moves)} offsets are committed; the group goes on there when it is started")
    else:
        say("nothing was changed; --execute does it" + (_warning(group) if group.members else ""))


def _moves(visit: Visit, target: Target, group: GroupStanding, topics: Sequence[str]) -> list[Move]:
    known = {each.tp: each for each in group.partitions}
    named = bool(topics) or isinstance(target, FromFile)
    wanted = chosen([tp for tp in known if named or tp.topic not in visit.settings.retry_topics], topics)
    if isinstance(target, FromFile):
        if strangers := sorted(tp for tp in target.offsets if tp not in known):
            raise ConfigError(
                f"--from-file names {strangers[0]}, which the group does not consume; correct group.topics"
            )
        wanted = [tp for tp in wanted if tp in target.offsets]
    found = at_time(visit, wanted, target.timestamp_ms) if isinstance(target, ToDatetime) else {}
    moves = planned(target, [known[tp] for tp in wanted], found)
    if not moves:
        raise ConfigError("this means no partition of the group; correct --topic or --from-file")
    return moves


def _refuse_while_alive(group: GroupStanding) -> None:
    """A running consumer would go on where it is and commit over the reset."""
    if group.members:
        named = "; ".join(_member(member) for member in group.members[:5])
        more = f" and {len(group.members) - 5} more" if len(group.members) > 5 else ""
        raise ConfigError(f"nothing was changed: group {group.group_id!r} has members, stop them first: {named}{more}")


def _member(member: DescribedMember) -> str:
    name = member.instance_id or member.member_id
    return printable(
        f"{name} ({member.client_id} at {member.host.removeprefix('/')}, {len(member.partitions)} partitions)"
    )


def _warning(group: GroupStanding) -> str:
    return f", once its {len(group.members)} members are stopped: {'; '.join(map(_member, group.members[:5]))}"


def _commit(visit: Visit, moves: Sequence[Move]) -> None:
    answers = visit.ask(lambda: visit.group.reset({move.tp: move.then for move in moves}, _METADATA))
    refused = {move.tp: answers.get(move.tp, ErrorCode.UNKNOWN_SERVER_ERROR) for move in moves}
    refused = {tp: error for tp, error in refused.items() if error}
    if not refused:
        return
    tp, error = next(iter(refused.items()))
    if error == ErrorCode.UNKNOWN_MEMBER_ID:
        raise ConfigError(f"group {visit.group_id!r} has got members meanwhile and refuses: stop them first")
    if error == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        raise visit.refused(error, "its offsets may not be changed")
    raise NotAllReset(
        f"{len(refused)} of {len(moves)} offsets were refused, {tp}: {describe(error)}; the others are set"
    )


# -- what is printed -------------------------------------------------------------------------------------------------


def _shown(group: GroupStanding) -> Iterator[str]:
    yield f"group {group.group_id}: {group.state}, {len(group.members)} members"
    head = ("topic", "partition", "committed", "log start", "log end", "lag", "member", "note")
    yield from table(head, map(_row, group.partitions))


def _row(each: Standing) -> tuple[str | int | None, ...]:
    owner = each.member.instance_id or each.member.client_id if each.member is not None else None
    offsets = (each.committed, each.first, each.end, each.lag)
    return (each.tp.topic, each.tp.partition, *offsets, owner, each.problem or _note(each))


def _note(each: Standing) -> str:
    if each.committed is not None and each.first is not None and each.committed < each.first:
        return f"{each.first - each.committed:,} offsets are not in the log any more"
    if each.committed is not None and each.end is not None and each.committed > each.end:
        return "beyond the end: the log was truncated, or the topic created anew"
    return " "


def _group_json(group: GroupStanding) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "members": [member_json(member) for member in group.members],
        "partitions": [standing_json(each) for each in group.partitions],
    }


def member_json(member: DescribedMember) -> dict[str, Any]:
    """One member for a program."""
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host.removeprefix("/"),
        "partitions": [str(tp) for tp in member.partitions],
    }


def standing_json(each: Standing) -> dict[str, Any]:
    """One partition for a program."""
    return {
        **_tp_json(each.tp),
        "committed": each.committed,
        "log_start": each.first,
        "log_end": each.end,
        "lag": each.lag,
        "member_id": each.member.member_id if each.member is not None else None,
        "problem": each.problem,
    }


def _move_json(move: Move) -> dict[str, Any]:
    return {**_tp_json(move.tp), "committed": move.now, "then": move.then, "note": move.note}


def _tp_json(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}
