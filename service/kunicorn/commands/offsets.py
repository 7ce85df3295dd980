"""`kunicorn offsets`: shows where a group stands, and resets it: the plan first, and only with --execute the commit.

The targets of a reset have the names of Kafka's own `kafka-consumer-groups.sh --reset-offsets`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, assert_never

from kunicorn.clients.session import ClusterSession, cluster_session
from kunicorn.commands.embedded import is_embedded
from kunicorn.commands.group_lag import GroupStanding, Standing, look
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.ipc.clock import wall_ms
from kunicorn.kafka.admin import KEPT_FOR_GOOD, DescribedMember
from kunicorn.kafka.stored_positions import resolve
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.positions import EARLIEST, LATEST, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.settings.assign import partitions_named
from kunicorn.text import moment, printable, table, tell


@dataclass(frozen=True, slots=True)
class ToDatetime:
    """Target: the first record that is not older."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Target: so many records on from where the group would go on, or back where it is negative."""

    records: int


@dataclass(frozen=True, slots=True)
class ToOffset:
    """Target: the same offset in every partition, or where each log begins (`EARLIEST`) or ends (`LATEST`)."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromFile:
    """Target: an offset of its own for each partition."""

    offsets: Mapping[TopicPartition, int]


Target = ToDatetime | ShiftBy | ToOffset | FromFile


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `offsets reset`; exactly one names the target."""

    to_earliest: bool = False
    to_latest: bool = False
    to_datetime: str | None = None
    shift_by: int | None = None
    to_offset: int | None = None
    from_file: Path | None = None

    def target(self, now_ms: int) -> Target:
        """The given target. Raises `ConfigError` for none, for several, and for values that mean nothing."""
        values = {name: getattr(self, name) for name in _NAMES}
        # By identity: 0 equals False, and is an offset.
        given = [name for name, value in values.items() if value is not None and value is not False]
        if len(given) != 1:
            said = " and ".join(map(_NAMES.__getitem__, given)) or "nothing"
            raise ConfigError(f"say exactly one of {', '.join(_NAMES.values())} (given: {said})")
        if self.to_datetime is not None:
            return ToDatetime(moment("--to-datetime", self.to_datetime, now_ms))
        if self.shift_by is not None:
            return ShiftBy(self.shift_by)
        if self.to_offset is not None:
            return ToOffset(self.to_offset)
        if self.from_file is not None:
            return FromFile(read_file(self.from_file))
        return ToOffset(EARLIEST if self.to_earliest else LATEST)


_NAMES: Mapping[str, str] = {
    "to_earliest": "--to-earliest",
    "to_latest": "--to-latest",
    "to_datetime": "--to-datetime",
    "shift_by": "--shift-by",
    "to_offset": "--to-offset",
    "from_file": "--from-file",
}


def chosen(partitions: Collection[TopicPartition], named: Sequence[str]) -> list[TopicPartition]:
    """Those of `partitions` that "orders", "orders:7" or "orders:0-3" name; all, where nothing is named.

    Raises `ConfigError` for a name that matches none.
    """
    if not named:
        return sorted(partitions)
    found: set[TopicPartition] = set()
    for item in named:
        try:
            topic, numbers = partitions_named(item)
        except ValueError as error:
            raise ConfigError(f"--topic {item!r}: {error}") from None
        meant = {tp for tp in partitions if tp.topic == topic and (numbers is None or tp.partition in numbers)}
        if not meant or (numbers is not None and len(meant) < len(numbers)):
            there_are = ", ".join(_spans(partitions))
            raise ConfigError(f"--topic {item!r} names partitions that the group does not consume; it has {there_are}")
        found |= meant
    return sorted(found)


def _spans(partitions: Collection[TopicPartition]) -> Iterator[str]:
    """Each topic with its first and last partition, as --topic takes it."""
    for topic, of_it in groupby(sorted(partitions), lambda tp: tp.topic):
        numbers = [tp.partition for tp in of_it]
        yield f"{topic}:{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{topic}:{numbers[0]}"


def read_file(path: Path) -> Mapping[TopicPartition, int]:
    """Offsets in a file: lines of topic,partition,offset as Kafka's `--export` writes them, or the JSON of `kunicorn
    offsets show --json`.

    Raises `ConfigError` naming the line. Blocks on the disk.
    """
    try:
        # Excel begins what it exports with a byte order mark, which would be part of the first topic's name.
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--from-file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--from-file {path} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    offsets = _from_json(path, text) if text.lstrip().startswith("{") else _from_csv(path, text.splitlines())
    if not offsets:
        raise ConfigError(f"--from-file {path} names no partition; write lines such as orders,0,1234")
    return offsets


def _from_csv(path: Path, lines: Iterable[str]) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for number, row in enumerate(_rows(path, lines), 1):
        cells = [cell.strip().strip('"') for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        if len(cells) != 3 or not all(map(_is_number, cells[1:])):
            raise ConfigError(f"--from-file {path}, line {number}: not topic,partition,offset, such as orders,0,1234")
        tp = TopicPartition(cells[0], int(cells[1]))
        if tp in offsets:
            raise ConfigError(f"--from-file {path}, line {number}: {tp} is named twice")
        offsets[tp] = int(cells[2])
    return offsets


def _is_number(cell: str) -> bool:
    return cell.isdecimal() and len(cell) < 20  # Those of Kafka have 19 digits at most, and Python refuses thousands.


def _rows(path: Path, lines: Iterable[str]) -> Iterator[list[str]]:
    reader = csv.reader(lines)
    try:
        yield from reader
    except csv.Error as error:
        # A field that is longer than the module takes: a quote that is not closed, or another file.
        raise ConfigError(
            f"--from-file {path}, line {reader.line_num}: {error}; write lines such as orders,0,1"
        ) from error


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise ValueError(f"partition {number!r}")
    return int(number)


def _from_json(path: Path, text: str) -> dict[TopicPartition, int]:
    try:
        rows = json.loads(text)["partitions"]
        found = [(TopicPartition(str(row["topic"]), _whole(row["partition"])), row["committed"]) for row in rows]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--from-file {path} is not what `kunicorn offsets show --json` writes ({error}); save that, or lines such "
            f"as orders,0,1234"
        ) from error
    offsets: dict[TopicPartition, int] = {}
    for tp, offset in found:
        if offset is None:
            continue  # Nothing was committed.
        if type(offset) is not int or offset < 0:
            raise ConfigError(f"--from-file {path}: {tp}: {offset!r} is no offset; write a whole number from 0 on")
        if tp in offsets:
            raise ConfigError(f"--from-file {path}: {tp} is named twice")
        offsets[tp] = offset
    return offsets


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's committed offset, now and after the reset."""

    tp: TopicPartition
    now: int | None
    start: int | None
    """Where the group would go on without the reset: at another offset than `now`, where that is no place in the log.
    None: nothing is committed, or with `auto_offset_reset = "none"` it would not go on."""
    then: int
    note: str = ""

    @property
    def effect(self) -> str:
        """Effect in records: those that would be handled again, or never."""
        if self.start is None or self.start == self.then:
            return "" if self.start is None else "stays"
        records = abs(self.then - self.start)
        return f"{records:,} {'skipped' if self.then > self.start else 'again'}"


def planned(target: Target, standings: Sequence[Standing], found: Mapping[TopicPartition, int]) -> list[Move]:
    """A move for each of `standings`. `found`: the offsets at the time of `ToDatetime`. Pure.

    An offset outside of the log is kept within it: a consumer would be reset from there by its policy. Raises
    `ConfigError` where a partition's log is not known.
    """
    moves = []
    for standing in standings:
        if (log := standing.log) is None:
            why = standing.problem or "its leader does not answer"
            raise ConfigError(f"{standing.tp}: {why}; leave it out with --topic, or try again")
        wanted = _wanted(target, standing, found)
        if wanted is None:
            continue
        wanted = log.placed(wanted)
        then, loss, _ = resolve(standing.tp, Position(wanted), log)
        assert then is not None
        outside = None if loss is None else f"{wanted:,} is not in the log ({log.first:,} to {log.end:,})"
        note = "; ".join(filter(None, (standing.loss, outside)))
        moves.append(Move(standing.tp, standing.committed, standing.goes_on, then, note))
    return moves


def _wanted(target: Target, standing: Standing, found: Mapping[TopicPartition, int]) -> int | None:
    """Offset, `EARLIEST` or `LATEST`; None: the partition is not meant."""
    match target:
        case ToDatetime():
            return found[standing.tp]
        case ToOffset(offset):
            return offset
        case FromFile(offsets):
            return offsets.get(standing.tp)
        case ShiftBy(records):
            onward = standing.start if standing.goes_on is None else standing.goes_on
            if onward is None:
                raise ConfigError(f"{standing.tp} has no committed offset to shift; use --to-earliest or --to-offset")
            return max(0, onward + records)
        case _:
            assert_never(target)


def lines(moves: Sequence[Move]) -> Iterator[str]:
    """The plan for the person who decides."""
    head = ("partition", "committed", "then", "records", "note")
    yield from table(head, [(str(move.tp), move.now, move.then, move.effect, move.note or " ") for move in moves])
    again = sum(max(0, move.start - move.then) for move in moves if move.start is not None)
    skipped = sum(max(0, move.then - move.start) for move in moves if move.start is not None)
    yield f"{len(moves)} partitions: {again:,} offsets would be handled again, {skipped:,} never"


Say = Callable[[str], None]
_METADATA = "kunicorn offsets reset"
"""Stored beside the offsets, for whoever wonders later."""


class NotAllReset(ServiceError):
    """Some partitions keep their offset."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


def show(settings: Settings) -> GroupStanding:
    """Ask the brokers. Blocks. Raises `ConfigError`, `FatalGroupError`."""
    with cluster_session(settings) as session:
        return look(session)


def export(settings: Settings, say: Say) -> None:
    """Print the committed offsets in the format of `--from-file`."""
    with cluster_session(settings) as session:
        group = look(session)
    for each in group.partitions:
        if each.committed is not None:
            say(f"{each.tp.topic},{each.tp.partition},{each.committed}")


@dataclass(frozen=True, slots=True)
class Reset:
    """The plan of a reset, and whether it was carried out."""

    group: GroupStanding
    moves: Sequence[Move]
    kept: Collection[str] = ()
    """Retry topics that stay where they are."""
    executed: bool = False

    def lines(self) -> Iterator[str]:
        yield self.group.head
        yield from lines(self.moves)
        if self.kept:
            # Going back would repeat retries, going on would lose records that wait for theirs.
            yield f"retry topics stay where they are unless --topic names them: {', '.join(sorted(self.kept))}"

    @property
    def outcome(self) -> str:
        """What became of it, for people."""
        if self.executed:
            return f"done: {len(self.moves)} offsets are committed; the group goes on there when it is started"
        return "nothing was changed; --execute does it" + (_warning(self.group) if self.group.members else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group.group_id,
            "members": self.group.count,
            "executed": self.executed,
            "kept": sorted(self.kept),
            "partitions": [
                {
                    "topic": each.tp.topic,
                    "partition": each.tp.partition,
                    "committed": each.now,
                    "start": each.start,
                    "then": each.then,
                    "note": each.note,
                }
                for each in self.moves
            ],
        }


def reset(
    settings: Settings, options: Options, topics: Sequence[str], say: Say, *, execute: bool, as_json: bool
) -> None:
    """Show the plan; with `execute` commit it.

    Raises `ConfigError` for options that mean nothing and for a group that has members, `NotAllReset` where the broker
    refuses single partitions; with `as_json` the answer names them, too.
    """
    refused: Mapping[TopicPartition, int] = {}
    target = options.target(wall_ms())
    with cluster_session(settings, when_lost="look at the offsets, then try again") as session:
        group = look(session)
        moves = _moves(session, target, group, topics)
        plan = Reset(group, moves, settings.retry_topics.keys() - {move.tp.topic for move in moves})
        if not as_json:
            tell(plan, say, as_json=False)
        if execute:
            _refuse_while_alive(group)
            refused = _commit(session, moves)
            plan = replace(plan, moves=[_noted(move, refused) for move in moves], executed=len(refused) < len(moves))
    if as_json:
        tell(plan, say, as_json=True)
    if refused:
        tp, error = next(iter(refused.items()))
        why = f"{describe(error)}: {_remedy(error)}"
        others = "the others are set" if len(refused) < len(moves) else "nothing was changed"
        raise NotAllReset(f"{len(refused)} of {len(moves)} offsets were refused, {tp}: {why}; {others}")
    if not as_json:
        say(plan.outcome)


def _remedy(error: int) -> str:
    # Of a commit in several pieces the first were taken, and then the group has got members.
    came = error == ErrorCode.UNKNOWN_MEMBER_ID
    return fault(ErrorCode.NON_EMPTY_GROUP).remedy() if came else fault(error).remedy(rights="READ")


def _noted(move: Move, refused: Mapping[TopicPartition, int]) -> Move:
    error = refused.get(move.tp)
    return move if error is None else replace(move, note=f"refused: {describe(error)}")


def _moves(session: ClusterSession, target: Target, group: GroupStanding, topics: Sequence[str]) -> list[Move]:
    known = {each.tp: each for each in group.partitions}
    named = bool(topics) or isinstance(target, FromFile)
    wanted = chosen([tp for tp in known if named or tp.topic not in session.settings.retry_topics], topics)
    if isinstance(target, FromFile):
        if strangers := sorted(tp for tp in target.offsets if tp not in known):
            raise ConfigError(
                f"--from-file names {strangers[0]}, which the group does not consume; correct group.topics"
            )
        wanted = [tp for tp in wanted if tp in target.offsets]
    found = session.at_or_end(dict.fromkeys(wanted, target.timestamp_ms)) if isinstance(target, ToDatetime) else {}
    moves = planned(target, [known[tp] for tp in wanted], found)
    if not moves:
        raise ConfigError("this means no partition of the group; correct --topic or --from-file")
    return moves


def _refuse_while_alive(group: GroupStanding) -> None:
    """Raise `ConfigError` for a group with members: a running consumer would go on where it is and commit over the
    reset.
    """
    if group.members:
        named = "; ".join(_member(member) for member in group.members[:5])
        more = f" and {len(group.members) - 5} more" if len(group.members) > 5 else ""
        raise ConfigError(f"nothing was changed: group {group.group_id!r} has members, stop them first: {named}{more}")


def _member(member: DescribedMember) -> str:
    name = member.instance_id or member.member_id
    return printable(f"{name} ({member.client_id} at {member.address}, {len(member.partitions)} partitions)")


def _warning(group: GroupStanding) -> str:
    return f", once its {len(group.members)} members are stopped: {'; '.join(map(_member, group.members[:5]))}"


def _commit(session: ClusterSession, moves: Sequence[Move]) -> Mapping[TopicPartition, int]:
    """Commit; the errors of single partitions. Raises where the group as a whole refuses."""

    async def committed() -> Mapping[TopicPartition, int]:
        kept = KEPT_FOR_GOOD if await session.group.takes_retention() else None
        return await session.group.commit({m.tp: Position(m.then) for m in moves}, _METADATA, kept)

    answers = session.ask(committed)
    refused = {move.tp: answers.get(move.tp, ErrorCode.UNKNOWN_SERVER_ERROR) for move in moves}
    refused = {tp: error for tp, error in refused.items() if error}
    error = next(iter(refused.values()), ErrorCode.NONE)
    if len(refused) < len(moves):
        return refused
    if error == ErrorCode.UNKNOWN_MEMBER_ID and is_embedded(session.cluster.metadata):
        raise ConfigError(
            f"nothing was changed: the embedded broker moves no group that has had members since it began, and "
            f"{session.group_id!r} has: start the broker again, which forgets everything, or use a real Kafka"
        )
    if error == ErrorCode.UNKNOWN_MEMBER_ID:
        raise ConfigError(f"group {session.group_id!r} has got members meanwhile and refuses: {_remedy(error)}")
    if error == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        raise session.refused(error, "its offsets may not be changed")
    return refused
