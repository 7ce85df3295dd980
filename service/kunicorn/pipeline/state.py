"""State of a run, and its directory `<pipeline.directory>/<run id>/` with manifest and outcomes.

1. The manifest has a new version before ranges are begun, and after some have ended: a run that was killed goes on with
   those that were underway, under the same names, and of two processes that go on with it one is refused (`Overtaken`).
2. A range without a failure has no file of its own: the manifest that counts it has its row, and once a minute the rows
   of the newest manifest become a file. The file's name and content follow from that manifest alone, so that whoever
   writes it again, late or after a crash, changes nothing.
"""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

from kunicorn import __version__
from kunicorn.errors import ConfigError
from kunicorn.handler.retry import End
from kunicorn.kafka.stored_positions import Loss, Lost, resolve_all
from kunicorn.pipeline.plan import as_json, from_json
from kunicorn.pipeline.storage import Directory, Manifest, Overtaken, Unreadable
from kunicorn.pipeline.tasks.outcomes import SCHEMA, table
from kunicorn.pipeline.tasks.range_outcomes import Summary, footer_of, publish
from kunicorn.positions import Edges, OffsetRange, Offsets, TopicPartition, largest_first


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of records by their outcome."""

    records: int = 0
    """Records that are done."""
    skipped: int = 0
    dead_letters: int = 0
    filtered: int = 0
    """Of `records`: those that filters passed by."""

    def plus(self, summaries: Iterable[Summary]) -> Counts:
        """Sum with what ranges came to."""
        every = list(summaries)
        return Counts(*(getattr(self, f.name) + sum(getattr(each, f.name) for each in every) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Tile:
    """Offsets that are handled without a failure: a row `done` of the outcome table, before a file has it."""

    topic: str
    partition: int
    start: int
    until: int
    records: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def tiles_of(summaries: Iterable[Summary]) -> list[Tile]:
    """Those of ranges that have no file. Pure."""
    return [Tile(*each.range.tp, each.start, each.until, each.records) for each in summaries if not each.file]


def joined(tiles: Iterable[Tile]) -> tuple[Tile, ...]:
    """The tiles, with neighbours of one partition joined. Pure."""
    found: list[Tile] = []
    for each in sorted(tiles, key=lambda tile: (tile.tp, tile.start)):
        if found and found[-1].tp == each.tp and found[-1].until == each.start:
            found[-1] = replace(found[-1], until=each.until, records=found[-1].records + each.records)
        else:
            found.append(each)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RunState:
    """Progress of a run: its ranges, what is handled, and the ranges underway. Pure; every method returns another
    state.

    1. Partitions move by themselves: one is counted when all its ranges underway have ended, whatever the others do.
    2. Of a partition one range is underway at a time, or where its order does not count the pieces of one.
    """

    ranges: Sequence[OffsetRange]
    """All that the run covers."""
    positions: Offsets = field(default_factory=dict)
    """The next offset to handle, for partitions that have moved."""
    halted: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Reasons of the partitions that halt."""
    underway: Sequence[OffsetRange] = ()
    """Ranges that were begun. After a crash the same ones run again, whatever the settings say then, so that files are
    replaced."""
    rounds: int = 0
    """How often progress was counted and saved: of an export, which counts a round at a time, its rounds."""
    counts: Counts = Counts()
    seconds: float = 0.0
    """Time that the run took so far."""
    last_offsets: int = 0
    """Offsets that were counted last."""
    last_seconds: float = 0.0
    """Time since the count before."""
    tiles: Sequence[Tile] = ()
    """Counted, and in no file of the outcome table yet."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Ids of the topics that the offsets are of, as far as they are known."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Leader epochs in which the ends of `ranges` were in the logs, as far as they are known (KIP-320)."""

    gone: Offsets = field(default_factory=dict)
    """Of an export: positions of partitions that it did not find, and was told to go on without. If they are found
    again, and their topic has the same id, it goes on from there."""

    @property
    def left(self) -> list[OffsetRange]:
        """Ranges still to be handled, without those of partitions that halt."""
        rest = (each._replace(start=self.positions.get(each.tp, each.start)) for each in self.ranges)
        return [each for each in rest if each.size > 0 and each.tp not in self.halted]

    @property
    def waiting(self) -> list[OffsetRange]:
        """Those of which nothing is underway, the largest first."""
        busy = {each.tp for each in self.underway}
        return largest_first(each for each in self.left if each.tp not in busy)

    @property
    def finished(self) -> bool:
        """Whether everything is handled."""
        return not self.left and not self.halted

    @property
    def done(self) -> int:
        """Number of offsets handled."""
        return sum(self.positions.get(each.tp, each.start) - each.start for each in self.ranges)

    @property
    def rate(self) -> float | None:
        """Offsets a second over the whole run; None before the first count."""
        return self.done / self.seconds if self.done and self.seconds else None

    def ids_of(self, topics: Collection[str]) -> dict[str, str]:
        """Ids of these topics, as far as they are known."""
        return {topic: known for topic, known in self.topics.items() if topic in topics}

    def begin(self, ranges: Iterable[OffsetRange]) -> RunState:
        """State with these ranges underway, too; each is the beginning of one that waits, or all pieces of that."""
        return replace(self, underway=(*self.underway, *ranges))

    def whole(self, summaries: Iterable[Summary]) -> tuple[list[Summary], list[Summary]]:
        """Those of partitions of which every range underway has ended, and the others, which are to wait for the
        rest."""
        every = list(summaries)
        ended = {each.range for each in every}
        open_ones = {each.tp for each in self.underway if each not in ended}
        whole = [each for each in every if each.range.tp not in open_ones]
        return whole, [each for each in every if each.range.tp in open_ones]

    def counting(self, summaries: Sequence[Summary]) -> list[Summary]:
        """Those that count: of a partition that was cut, pieces behind one that halts are handled again."""
        halted, found = set(self.halted), list[Summary]()
        for each in sorted(summaries, key=lambda summary: summary.range):
            if each.range.tp not in halted:
                found.append(each)
                if each.halted is not None:
                    halted.add(each.range.tp)
        return found

    def end(self, summaries: Sequence[Summary], seconds: float) -> RunState:
        """State with the ranges underway of these partitions ended, `seconds` after the last count. `summaries`: those
        that count.
        """
        positions, halted = dict(self.positions), dict(self.halted)
        ended = {each.range.tp for each in summaries}
        for each in summaries:
            positions[each.range.tp] = each.until
            if each.halted is not None:
                halted[each.range.tp] = each.halted
        return replace(
            self,
            positions=positions,
            halted=halted,
            underway=tuple(each for each in self.underway if each.tp not in ended),
            rounds=self.rounds + 1,
            counts=self.counts.plus(summaries),
            seconds=self.seconds + seconds,
            last_offsets=sum(each.until - each.start for each in summaries),
            last_seconds=seconds,
            tiles=joined([*self.tiles, *tiles_of(summaries)]),
        )

    def written(self) -> RunState:
        """State whose tiles are in a file of the outcome table."""
        return replace(self, tiles=())

    def in_logs(
        self, logs: Mapping[TopicPartition, Edges], anew: Collection[str]
    ) -> tuple[RunState, list[Loss], list[OffsetRange]]:
        """State without what the logs have lost, that, and the ranges underway that are not begun again: what was
        written of them does not count.

        `logs`: of the partitions that still exist, as far as they are those of `epochs` (`up_to_epochs`). `anew`:
        topics that were created anew, whose records are others. A range underway whose beginning was deleted keeps its
        name: its task passes over what is gone.
        """
        at = {each.tp: each.start for each in self.left}
        starts, lost = resolve_all(at, logs, anew)
        ended = {each.tp for each in lost if each.why is not Lost.DELETED}
        stops: dict[TopicPartition, int] = {}
        for each in self.left:
            if each.tp in ended:
                stops[each.tp] = each.start
            elif (end := logs[each.tp].end) < each.stop:
                stops[each.tp] = end
                ended.add(each.tp)
                lost.append(Loss(each.tp, Lost.TRUNCATED, each.stop, end))
        ranges = tuple(each._replace(stop=min(each.stop, stops.get(each.tp, each.stop))) for each in self.ranges)
        kept = tuple(each for each in self.underway if each.tp not in ended)
        begun = {each.tp for each in kept}
        last = {each.tp: each.stop for each in ranges}
        moved = {tp: min(start, last[tp]) for tp, start in starts.items() if start != at[tp] and tp not in begun}
        dropped = [each for each in self.underway if each.tp in ended]
        positions = {**self.positions, **{tp: to for tp, to in moved.items() if tp not in ended}}
        return replace(self, ranges=ranges, positions=positions, underway=kept), lost, dropped

    def released(self) -> RunState:
        """State for another try: the partitions that halt begin with the record they halt at."""
        return replace(self, halted={})

    def as_json(self) -> dict[str, Any]:
        """The state for the manifest."""
        return {
            "ranges": [list(each) for each in self.ranges],
            "positions": as_json(self.positions),
            "halted": [[*tp, why] for tp, why in sorted(self.halted.items())],
            "underway": [list(each) for each in self.underway],
            "rounds": self.rounds,
            "records": self.counts.records,
            "skipped": self.counts.skipped,
            "dead_letters": self.counts.dead_letters,
            "seconds": round(self.seconds, 3),
            "last_offsets": self.last_offsets,
            "last_seconds": round(self.last_seconds, 3),
            "filtered": self.counts.filtered,
            "tiles": [[*each.tp, each.start, each.until, each.records] for each in self.tiles],
            "topics": dict(self.topics),
            **({"epochs": as_json(self.epochs)} if self.epochs else {}),
            **({"gone": as_json(self.gone)} if self.gone else {}),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> RunState:
        """State in a manifest. Raises what `_readable` knows for anything else."""
        return cls(
            ranges=tuple(OffsetRange(*each) for each in told["ranges"]),
            positions=from_json(told["positions"]),
            halted={TopicPartition(topic, number): why for topic, number, why in told["halted"]},
            underway=tuple(OffsetRange(*each) for each in told["underway"]),
            rounds=told["rounds"],
            counts=Counts(told["records"], told["skipped"], told["dead_letters"], told.get("filtered", 0)),
            seconds=told["seconds"],
            last_offsets=told["last_offsets"],
            last_seconds=told["last_seconds"],
            tiles=tuple(Tile(*each) for each in told.get("tiles", ())),  # None in a run whose every range has a file.
            topics=dict(told["topics"]),
            epochs=from_json(told.get("epochs", {})),  # None in a run of a version that did not ask for them.
            gone=from_json(told.get("gone", {})),
        )


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Run:
    """One run with its state, as its manifest has it."""

    id: str
    job: str
    """"backfill", "catch-up" or "export"."""
    what: str
    """The handler's entry point, or where an export goes."""
    started: str
    state: RunState
    request: str = ""
    """What was asked for, as text: a resumed run has to be the same."""
    group: str | None = None
    """The settings' group, which a resumed run has to be of: services may share a directory, and name runs alike. Empty
    where [assign] names partitions, None in a manifest of a version that did not keep it."""
    left: Sequence[str] = ()
    """Of a catch-up: runs that had the group before, whose rows it has yet to write."""


def new_id(job: str, now: datetime | None = None) -> str:
    """Id of a new run: sorts by time, and no two are the same."""
    return f"{job}-{(now or datetime.now(UTC)):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_id(run: str) -> str:
    """The id, if it can be the name of a directory. Raises `ConfigError`."""
    if not _ID.fullmatch(run):
        raise ConfigError(f"{run!r} is no id of a run: letters, digits, '.', '_' and '-', at most 128")
    return run


def place(directory: str) -> Directory:
    """The directory by an absolute path: executors have other working directories."""
    found = Directory(directory)
    return Directory(str(Path(found.url).absolute())) if found.is_local else found


class IdTaken(ConfigError):
    """A run has this id already."""


class Runs:
    """All runs of `pipeline.directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = place(directory)
        self._manifests: dict[str, Manifest] = {}

    def _manifest(self, run: str) -> Manifest:
        return self._manifests.setdefault(run, Manifest(self.directory / run))

    def outcomes(self, run: str) -> Directory:
        """Directory of the run's outcome rows."""
        return self.directory / run / "outcomes"

    def save(self, run: Run) -> None:
        """Write the next version of the manifest. Raises `Overtaken`, `ConfigError`."""
        told: dict[str, Any] = {
            "run": run.id,
            "job": run.job,
            "what": run.what,
            "request": run.request,
            **({} if run.group is None else {"group": run.group}),
            **({"left": [*run.left]} if run.left else {}),
            "started": run.started,
            "kunicorn": __version__,
            "finished": run.state.finished,
            **run.state.as_json(),
        }
        self._manifest(run.id).write(told)

    def __contains__(self, run: str) -> bool:
        """Whether there is a run of that id. Raises `ConfigError` where it is none."""
        return self._manifest(check_id(run)).read() is not None

    def read(self, run: str) -> Run:
        """The run of that id. Raises `ConfigError` where there is none."""
        told = self._manifest(check_id(run)).read()
        if told is None:
            known = ", ".join(each.id for each in self.all()[-5:]) or "none"
            raise ConfigError(f"there is no run {run!r} in {self.directory.url}; the latest there: {known}")
        return _read(told, f"{self.directory.url}/{run}/manifest")

    def start(
        self,
        job: str,
        what: str,
        request: str,
        state: RunState,
        run: str | None = None,
        group: str | None = None,
        left: Sequence[str] = (),
    ) -> Run:
        """A new run, its manifest written. Raises `IdTaken` for an id that another run has, `ConfigError` for one of a
        stream.
        """
        started = datetime.now(UTC)
        identity = check_id(run) if run is not None else new_id(job, started)
        self.check_free(job, identity)
        new = Run(identity, job, what, started.isoformat(timespec="seconds"), state, request, group, left)
        self.save(new)
        return new

    def check_free(self, job: str, run: str) -> None:
        """Raise `IdTaken` for an id that another run has, `ConfigError` for one of a stream."""
        if run in self:
            go_on = "go on with it by --resume, or " if job == "backfill" else ""
            raise IdTaken(f"there is a run {run!r} already; {go_on}choose another id")
        if self._stream(run) is not None:
            raise ConfigError(f"there is a stream {run!r}, whose outcomes lie in the same place; choose another id")

    def enter_stream(self, name: str, what: str, group: str) -> Directory:
        """The directory of the stream of that name, which is this handler's and group's from then on.

        Raises `ConfigError` for the name of a run, and for another's stream: its checkpoint has that one's positions.
        """
        if name in self:
            raise ConfigError(f"there is a run {name!r}, whose outcomes lie in the same place; choose another --run")
        place, own = self.directory / name, {"what": what, "group": group}
        place.create(_STREAM, json.dumps(own).encode())
        if (known := self._stream(name)) != own:
            raise ConfigError(
                f"stream {name!r} in {self.directory.url} is of {_whose(known)}, and these settings are of "
                f"{_whose(own)}: choose another --run. If that is its new name, remove {name}/{_STREAM} there"
            )
        return place

    def _stream(self, name: str) -> dict[str, str] | None:
        """Whose the stream of that name is; None where there is none."""
        told = (self.directory / name).read_json(_STREAM)
        return None if told is None else {each: str(told.get(each)) for each in ("what", "group")}

    def all(self) -> list[Run]:
        """Every run whose manifest this version can read, in the order in which they began."""
        newest: dict[str, str] = {}
        for name in self.directory.names(".json"):
            run, _, file = name.partition("/")
            if Manifest.NAME.fullmatch(file):
                newest[run] = name
        found = list[Run]()
        for name in newest.values():
            with suppress(Unreadable):
                if (told := self.directory.read_json(name)) is not None:
                    found.append(_read(told, f"{self.directory.url}/{name}"))
        return sorted(found, key=lambda run: run.started)

    def pace(self, job: str, what: str) -> float | None:
        """Offsets a second of the latest run of the same kind that has any; None if there is none."""
        rates = [each.state.rate for each in self.all() if (each.job, each.what) == (job, what)]
        return next((rate for rate in reversed(rates) if rate is not None), None)


def _read(told: Any, place: str) -> Run:
    with _readable(told, place):
        state = RunState.from_json(told)
        left = tuple(told.get("left", ()))
        return Run(
            told["run"], told["job"], told["what"], told["started"], state, told["request"], told.get("group"), left
        )


def state_in(told: Any, place: str) -> RunState:
    """State in the manifest at that place. Raises `Unreadable`."""
    with _readable(told, place):
        return RunState.from_json(told)


@contextmanager
def _readable(told: Any, place: str) -> Iterator[None]:
    """Say of a manifest that this version cannot go on with who can, and what to do otherwise."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        by = told.get("kunicorn") if isinstance(told, dict) else None
        raise Unreadable(
            f"{place} is no manifest of kunicorn {__version__} ({type(error).__name__}: {error}): finish it with "
            f"{f'kunicorn {by}' if by else 'the version'} that wrote it, or begin anew under another name"
        ) from error


_STREAM = "stream.json"
"""File beside a stream's checkpoint, in the directory that a run of the name would have: whose stream it is."""


def _whose(stream: Mapping[str, str] | None) -> str:
    told = stream or {"what": "nobody", "group": ""}
    return f"{told['what']} in group {told['group']!r}"


def write_tiles(outcomes: Directory, tiles: Sequence[Tile], number: int) -> None:
    """Write tiles into the outcome table, as the file of that number, which it replaces. Raises `ConfigError`."""
    outcomes.write_of(_tiles_file(number), _with_rows(tiles, {}))


def write_micro_batch(outcomes: Directory, tiles: Sequence[Tile], number: int, driver: str, *, first: bool) -> None:
    """As `write_tiles`, of a stream's micro-batch. `driver`: as `of_micro_batch` has it. `first`: the driver's first
    one, which a driver before it may have tried. Raises `Overtaken` where a later driver has had it.
    """
    content = _with_rows(tiles, footer_of(driver))
    if first:
        # Also without a row: what the driver before has written under this number are offsets that files of ranges have
        # now, and if it still lives it finds out here that it is overtaken.
        outcomes.write_of(_tiles_file(number), content)
    elif tiles and not publish(outcomes, _tiles_file(number), content, driver):
        raise Overtaken.of(outcomes)


def _with_rows(tiles: Sequence[Tile], footer: Mapping[str, str]) -> IO[bytes]:
    rows = [
        {**tile.tp._asdict(), "offset": tile.start, "until": tile.until, "records": tile.records, "status": End.DONE}
        for tile in tiles
    ]
    content = io.BytesIO()
    with pq.ParquetWriter(content, SCHEMA) as writer:
        writer.add_key_value_metadata(footer)
        writer.write_batch(table(rows))
    return content


def _tiles_file(number: int) -> str:
    return f"{TILES}/{number:08}.parquet"


TILES = "all"
"""Directory of the outcome table with files of all partitions."""
