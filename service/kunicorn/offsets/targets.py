"""Where `kunicorn offsets reset` is to put a group, as the command line says it. Pure.

The names are those of Kafka's own `kafka-consumer-groups.sh --reset-offsets`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunicorn.errors import ConfigError
from kunicorn.moments import moment
from kunicorn.settings.assign import partitions_named
from kunicorn.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """Where the log begins."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """Where the log ends."""


@dataclass(frozen=True, slots=True)
class ToDatetime:
    """The first record that is not older."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many records on, or back where it is negative."""

    records: int


@dataclass(frozen=True, slots=True)
class ToOffset:
    """The same offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromFile:
    """An offset of its own for each partition."""

    offsets: Mapping[TopicPartition, int]


Target = ToEarliest | ToLatest | ToDatetime | ShiftBy | ToOffset | FromFile


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; exactly one says where to."""

    to_earliest: bool = False
    to_latest: bool = False
    to_datetime: str | None = None
    shift_by: int | None = None
    to_offset: int | None = None
    from_file: Path | None = None

    def target(self, now_ms: int) -> Target:
        """The one that is given. Raises `ConfigError` for none, for several, and for values that mean nothing."""
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
        return ToEarliest() if self.to_earliest else ToLatest()


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

    Raises `ConfigError` for a name that means none of them.
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
            there_are = ", ".join(sorted({tp.topic for tp in partitions}))
            raise ConfigError(f"--topic {item!r} names partitions that the group does not consume; it has {there_are}")
        found |= meant
    return sorted(found)


def read_file(path: Path) -> Mapping[TopicPartition, int]:
    """Lines of topic,partition,offset as Kafka's `--export` writes them, or the JSON of `kunicorn offsets show --json`.

    Raises `ConfigError` naming the line. Blocks on the disk.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--from-file {path} cannot be read: {error}") from error
    offsets = _from_json(path, text) if text.lstrip().startswith("{") else _from_csv(path, text.splitlines())
    if not offsets:
        raise ConfigError(f"--from-file {path} names no partition; write lines such as orders,0,1234")
    return offsets


def _from_csv(path: Path, lines: Iterable[str]) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(lines), 1):
        cells = [cell.strip().strip('"') for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        if len(cells) != 3 or not (cells[1].isdecimal() and cells[2].isdecimal()):
            raise ConfigError(f"--from-file {path}, line {number}: not topic,partition,offset, such as orders,0,1234")
        tp = TopicPartition(cells[0], int(cells[1]))
        if tp in offsets:
            raise ConfigError(f"--from-file {path}, line {number}: {tp} is named twice")
        offsets[tp] = int(cells[2])
    return offsets


def _from_json(path: Path, text: str) -> dict[TopicPartition, int]:
    try:
        rows = json.loads(text)["partitions"]
        found = {TopicPartition(str(row["topic"]), int(row["partition"])): row["committed"] for row in rows}
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--from-file {path} is not what `kunicorn offsets show --json` writes: {error}") from error
    return {tp: offset for tp, offset in found.items() if isinstance(offset, int) and offset >= 0}
