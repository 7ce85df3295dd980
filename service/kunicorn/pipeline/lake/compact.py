"""`kunicorn pipeline compact`: the small files of incremental exports made fewer and larger.

1. A Parquet directory has no log that says which files count: so a merged file names its sources itself, in its
   footer. It is there whole before they are deleted.
2. A source that is still there, or there again, is covered: what a compaction that was killed has left, or a task that
   ended too late has written once more. Compactions and exports remove such files first, and those of ranges that an
   export has given up. So a kill at any moment loses nothing, and what was doubled by it is not after the next command.
3. Only files that the manifest counts are touched, never those of a round underway. A compaction is a version of the
   manifest, so that of an export and a compaction at once, or of two compactions, the earlier one ends.
4. Behind a truncation a file of other records may have a source's name. So before an export goes on there, merged
   files forget the sources that end behind it.
5. In a Delta table the table's own log does all that, in one transaction.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from kunicorn.errors import ConfigError, ExitCode
from kunicorn.pipeline.lake.by_bytes import joined
from kunicorn.pipeline.lake.columns import kinds, kinds_changed
from kunicorn.pipeline.lake.files import OWN, log_name, parquet_writer
from kunicorn.pipeline.lake.tables import delta_table
from kunicorn.pipeline.state import RunState, state_in
from kunicorn.pipeline.storage import Directory, Manifest, Overtaken

F = TypeVar("F")

_NAME = re.compile(r"(?P<log>.+)-(?P<start>\d{20})-(?P<stop>\d{20})(?P<merged>-merged)?\.parquet")
GIVEN_UP_FILES = "given_up"
"""Key in an export's manifest: names of files that do not count, wherever a late task writes them."""
_SOURCES = b"kunicorn.sources"
"""Key in the footer of a merged file: JSON, a list of its sources' names."""
_ROW_GROUP_BYTES = 32 * 1024 * 1024
_ROW_GROUP_ROWS = 100_000
_ROWS = 16 * 1024
"""Read at once."""


class Piece(NamedTuple):
    """One file of a lake."""

    directory: str
    log: str
    """Topic, partition, and the topic's id, as file names have them."""
    start: int
    stop: int
    merged: bool
    size: int

    @property
    def name(self) -> str:
        """Its name in the directory."""
        return f"{self.log}-{self.start:020}-{self.stop:020}{'-merged' if self.merged else ''}.parquet"

    @property
    def path(self) -> str:
        """Its name below the target."""
        return f"{self.directory}/{self.name}" if self.directory else self.name


class Merge(NamedTuple):
    """Files of one directory and log, in the order of their ranges, and the one that is to stand for them."""

    sources: Sequence[Piece]
    into: Piece


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction has done, or would do."""

    files: int
    """Before it, of those that may be merged."""
    merged: int
    """Files that are gone, or would be, as larger ones stand for them."""
    made: int
    covered: int
    """Files removed, or to be removed, as another one has their records already, or an export is to write them."""
    bytes: int
    """Of the files that were merged."""
    dry: bool = False
    unlike: Sequence[str] = ()
    """Of neighbours with different columns, which stay as they are: in words, a line for each group."""

    code = ExitCode.CLEAN

    def as_json(self) -> dict[str, object]:
        """For a program."""
        return {
            "files": self.files, "merged": self.merged, "made": self.made, "covered": self.covered, "bytes": self.bytes,
            "unlike": list(self.unlike),
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """For a person."""
        verb = "would become" if self.dry else "have become"
        if self.covered:
            removed = "would be removed" if self.dry else "were removed"
            yield f"{self.covered:,} files {removed}: others have their records already, or are to have them"
        if self.merged:
            yield f"{self.merged:,} of {self.files:,} files {verb} {self.made:,} ({self.bytes / 1e6:,.1f} MB)"
        else:
            yield f"nothing to merge among {self.files:,} files"
        yield from (f"warning: {each}" for each in self.unlike)
        if self.unlike:
            yield f"{len(self.unlike):,} groups of files {'would stay' if self.dry else 'stay'} as they are"


def pieces_of(sizes: Mapping[str, int]) -> list[Piece]:
    """The files that an export has named, of these paths. Pure."""
    found = []
    for path, size in sizes.items():
        directory, _, name = path.rpartition("/")
        if (told := _NAME.fullmatch(name)) is not None:
            merged = told["merged"] is not None
            found.append(Piece(directory, told["log"], int(told["start"]), int(told["stop"]), merged, size))
    return sorted(found)


Sources = Mapping[Piece, frozenset[str]]
"""Names of the files whose records a merged file has."""


def covered(pieces: Iterable[Piece], sources: Sources) -> list[Piece]:
    """The files whose records another one of their directory has, too. Pure."""
    by_directory: dict[str, set[str]] = {}
    for merged, names in sources.items():
        # One that took the place of a source has its name among them.
        by_directory.setdefault(merged.directory, set()).update(names - {merged.name})
    return [each for each in pieces if each.name in by_directory.get(each.directory, ())]


def merges(pieces: Iterable[Piece], target_bytes: int) -> list[Merge]:
    """What is merged: neighbours, as many as come to the target at most, two or more. Pure."""
    found = []
    for _, group in groupby(sorted(pieces), key=lambda each: each[:2]):
        for some in _neighbours(group, lambda each: each.size, target_bytes):
            size, stop = sum(each.size for each in some), max(each.stop for each in some)
            found.append(Merge(tuple(some), some[0]._replace(stop=stop, merged=True, size=size)))
    return found


def _neighbours(files: Iterable[F], size_of: Callable[[F], int], target_bytes: int) -> Iterator[list[F]]:
    """The files cut into neighbours that come to the target at most, without those that are alone. Pure."""
    some, size = list[F](), 0
    for each in files:
        if some and size + size_of(each) > target_bytes:
            if len(some) > 1:
                yield some
            some, size = [], 0
        some.append(each)
        size += size_of(each)
    if len(some) > 1:
        yield some


def settled(pieces: Iterable[Piece], state: RunState) -> list[Piece]:
    """The files that no round will write again: what the manifest counts, and all of topics that are gone. Pure."""
    ends = {
        log_name(each.tp, state.topics.get(each.topic)): state.positions.get(each.tp, each.start)
        for each in state.ranges
    }
    return [each for each in pieces if each.stop <= ends.get(each.log, each.stop)]


def remove(target: Directory, pieces: Iterable[Piece]) -> None:
    """Delete the files."""
    for each in pieces:
        target.delete(each.path)


def sources_in(target: Directory, pieces: Iterable[Piece], ends: Mapping[str, int] = MappingProxyType({})) -> Sources:
    """Sources of the merged files that may have some among the pieces, or behind `ends`, as `forget_sources` has them;
    by their footers. Raises `ConfigError`.
    """
    wanted = {*_around_others(pieces), *(each for each in pieces if each.stop > ends.get(each.log, each.stop))}
    return _told(target, (each for each in pieces if each in wanted))


def _told(target: Directory, pieces: Iterable[Piece]) -> Sources:
    """What merged files tell of their sources."""
    footers = {each: target.footer(each.path).metadata or {} for each in pieces if each.merged}
    return {each: frozenset(json.loads(told.get(_SOURCES, b"[]"))) for each, told in footers.items()}


def _around_others(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The files within whose offsets others of their directory and log lie, as sources do. Pure.

    Footers are read of these alone: in a lake that is compacted there are none, and it may have a file for each
    partition and day of years.
    """
    for _, group in groupby(sorted(pieces), key=lambda each: each[:2]):
        some = list(group)
        starts = [each.start for each in some]
        for each in some:
            within = some[bisect_left(starts, each.start) : bisect_left(starts, each.stop)]
            if any(other != each and other.stop <= each.stop for other in within):
                yield each


@contextmanager
def overtaken_first(check: Callable[[], None]) -> Iterator[None]:
    """Have whoever cannot go on say that it is overtaken, where that is why: files that it has listed are gone then.
    `check` raises `Overtaken`.
    """
    try:
        yield
    except ConfigError:
        check()
        raise


def forget_sources(
    target: Directory, pieces: Iterable[Piece], sources: Sources, ends: Mapping[str, int], check: Callable[[], None]
) -> None:
    """Have merged files tell of no source that ends beyond `ends`: where logs were truncated, by their names in files.

    Caller: an export, once what is covered is removed. `check` raises where the target is another's now. Raises
    `ConfigError`.
    """
    for each in pieces:
        if (end := ends.get(each.log)) is None or each not in sources:
            continue
        names = sources[each] - {each.name}
        kept = frozenset(name for name in names if (told := _NAME.fullmatch(name)) and int(told["stop"]) <= end)
        if kept != names:
            _merge(target, Merge((each,), each), {each: kept}, check)


def compact_files(target: Directory, target_bytes: int, *, dry: bool) -> Compacted:
    """Merge the files of an export to Parquet. Raises `ConfigError`, and `Overtaken` where an export or another
    compaction has begun meanwhile. Blocks.
    """
    manifest = Manifest(target / OWN)
    if (told := manifest.read()) is None:
        raise ConfigError(f"{target.url} is no target of kunicorn pipeline export: it has no {OWN}/manifest-*.json")
    with overtaken_first(manifest.check):
        return _compacted(target, target_bytes, manifest, told, dry=dry)


def _compacted(
    target: Directory, target_bytes: int, manifest: Manifest, told: Mapping[str, Any], *, dry: bool
) -> Compacted:
    state, given_up = state_in(told, (target / OWN).url), frozenset(told.get(GIVEN_UP_FILES, ()))
    found = pieces_of(target.sizes(".parquet"))
    strays = [each for each in found if each.name in given_up]
    pieces = settled((each for each in found if each.name not in given_up), state)
    gone = [*strays, *covered(pieces, sources_in(target, pieces))]
    if not dry:
        # From here on whoever else works on the target finds out that it is overtaken.
        manifest.write(told)
        remove(target, gone)
    left = [each for each in pieces if each not in gone]
    done, unlike = list[Merge](), list[str]()
    for each in merges(left, target_bytes):
        if (why := _unlike(target, each)) is not None:
            unlike.append(why)
            continue
        done.append(each)
        if not dry:
            _merge(target, each, _told(target, each.sources), manifest.check)
    merged = sum(len(each.sources) for each in done)
    size = sum(piece.size for each in done for piece in each.sources)
    return Compacted(len(left), merged, len(done), len(gone), size, dry, unlike)


def _unlike(target: Directory, merge: Merge) -> str | None:
    """How the columns of the files differ, in words; None where they do not."""
    first, *others = merge.sources
    schema = _schema(target, first)
    for each in others:
        if not (found := _schema(target, each)).equals(schema):
            changed = kinds_changed(kinds(schema), kinds(found))
            return f"{each.path} has other columns than {first.path}: {changed}"
    return None


def _schema(target: Directory, piece: Piece) -> pa.Schema:
    return target.footer(piece.path).schema.to_arrow_schema().remove_metadata()


def _merge(target: Directory, merge: Merge, known: Sources, check: Callable[[], None]) -> None:
    schema = _schema(target, merge.sources[0])
    names = {each.name for each in merge.sources}.union(*(known.get(each, ()) for each in merge.sources))
    told = schema.with_metadata({_SOURCES: json.dumps(sorted(names)).encode()})
    with target.writing(merge.into.path) as stream:
        with parquet_writer(stream, told) as writer:
            for rows in _row_groups(target, merge.sources):
                writer.write_table(rows)
        check()
    for source in merge.sources:
        if source.path != merge.into.path:
            target.delete(source.path)


def _row_groups(target: Directory, sources: Sequence[Piece]) -> Iterator[pa.Table]:
    batches = (rows for source in sources for rows in target.batches(source.path, _ROWS))
    return joined(batches, _ROW_GROUP_BYTES, _ROW_GROUP_ROWS)


def compact_delta(target: Directory, target_bytes: int, *, dry: bool) -> Compacted:
    """Merge the files of a Delta table, by its own log. Files that count no more stay until VACUUM. Raises
    `ConfigError`, and `Overtaken` where somebody else has changed the same files meanwhile: nothing is merged then.
    """
    table = delta_table(target)
    from deltalake import WriterProperties
    from deltalake.exceptions import CommitFailedError, DeltaError

    if dry:
        # As the library plans it: neighbours in the order of the log.
        sizes: dict[str, list[int]] = {}
        for row in (files := pa.table(table.get_add_actions(flatten=True)).to_pylist()):
            sizes.setdefault(row["path"].rpartition("/")[0], []).append(row["size_bytes"])
        several = [some for each in sizes.values() for some in _neighbours(each, int, target_bytes)]
        return Compacted(len(files), sum(map(len, several)), len(several), 0, sum(map(sum, several)), dry)
    # A task of its own for each processor would hold as many row groups.
    written = WriterProperties(max_row_group_size=_rows_of_group(table))
    try:
        told = table.optimize.compact(target_size=target_bytes, max_concurrent_tasks=1, writer_properties=written)
    except CommitFailedError as error:
        raise Overtaken(
            f"the Delta table {target.url} was changed while its files were merged, and stays as it was changed: "
            f"{error}; start the command again when whoever writes there has ended"
        ) from error
    except (DeltaError, OSError) as error:
        raise ConfigError(f"the Delta table {target.url} is not merged, and stays as it is: {error}") from error
    removed = json.loads(told["filesRemoved"]).get("totalSize") or 0
    return Compacted(told["totalConsideredFiles"], told["numFilesRemoved"], told["numFilesAdded"], 0, removed)


def _rows_of_group(table: Any) -> int:
    """Rows of a row group, which the library holds until it is whole and bounds by rows alone: as many as have its
    bytes where the table's rows are largest, by the files' own sizes.
    """
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    largest = max((row["size_bytes"] / row["num_records"] for row in files if row.get("num_records")), default=1.0)
    return max(1, min(_ROW_GROUP_ROWS, int(_ROW_GROUP_BYTES / largest)))


def compact(target: Directory, target_bytes: int, *, dry: bool) -> Compacted:
    """Merge the small files of an export's target, whatever its form. Raises `ConfigError`, `Overtaken`. Blocks."""
    told = Manifest(target / OWN).read()
    if told is not None and (table := told.get("iceberg")):
        raise ConfigError(
            f"{target.url} is the Iceberg table {table}, whose files pyiceberg does not merge: let an engine with its "
            f"catalog do that, as Spark does by CALL system.rewrite_data_files('{table}') beside any export"
        )
    if told is not None and told.get("delta"):
        return compact_delta(target, target_bytes, dry=dry)
    return compact_files(target, target_bytes, dry=dry)
