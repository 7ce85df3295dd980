"""`kunicorn pipeline export`: topics into a lake (Parquet files, a Delta or an Iceberg table), each record once.

1. A range becomes files whose names are its own; written again they are replaced. The ranges of the round underway are
   in the target's manifest before the round, so that one that was cut off is repeated under the same names.
2. The manifest belongs to the target, not to a run: each export brings the target up to now, from where the last one
   ended. Of two exports at once the one that moves it on second ends.
3. What the columns are: `lake_columns`. Which files of a table count: `lake_tables`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from kunicorn import __version__
from kunicorn.clients.config import decoding_of
from kunicorn.clients.session import JOB_PATIENCE, cluster_session, narrowed
from kunicorn.errors import ConfigError
from kunicorn.handler.columns import in_batches
from kunicorn.handler.config import takes
from kunicorn.handler.messages import Run
from kunicorn.handler.rows import ends
from kunicorn.kafka.stored_positions import Loss, Lost, resolve_all
from kunicorn.pipeline.lake.columns import Form, LakeColumns, kinds, kinds_changed
from kunicorn.pipeline.lake.compact import (
    GIVEN_UP_FILES,
    covered,
    forget_sources,
    overtaken_first,
    pieces_of,
    remove,
    sources_in,
)
from kunicorn.pipeline.lake.files import OWN, LakeFile, PartitionedFiles, file_name, log_name
from kunicorn.pipeline.lake.iceberg import Catalog, IcebergLake
from kunicorn.pipeline.lake.tables import GIVEN_UP, Committed, DeltaLake, MergedDelta, TableLog, fingerprint
from kunicorn.pipeline.plan import (
    Bounds,
    Everywhere,
    check_nothing_lost,
    created_anew,
    listed,
    not_deleted,
    plan,
    within_epochs,
)
from kunicorn.pipeline.range_job import RangeJob
from kunicorn.pipeline.report import DryRun, FinishedRun, Say
from kunicorn.pipeline.shares import WholeRounds
from kunicorn.pipeline.state import RunState, state_in
from kunicorn.pipeline.storage import Directory, Manifest, passed_over
from kunicorn.pipeline.tasks.executor_process import SettingsFile, named_by_place, without_columns
from kunicorn.pipeline.tasks.in_hand_file import NEXT, take_up
from kunicorn.pipeline.tasks.limits import NO_LIMITS, TaskLimits
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.positions import EARLIEST, LATEST, OffsetRange, TopicPartition
from kunicorn.settings import Settings

JOB = "export"


@dataclass(frozen=True, slots=True)
class ExportRanges:
    """Task that writes the records of ranges to Parquet. Runs in an executor's Python process."""

    file: SettingsFile
    target: Directory
    form: Form
    schema: pa.Schema
    """Of the files: the form's, with what the table adds to it."""
    topics: Mapping[str, str]
    """Ids of the topics, as far as they are known."""
    limits: TaskLimits = NO_LIMITS

    def __call__(self, ranges: Sequence[OffsetRange]) -> Iterator[Summary]:
        """One summary a range, with its files. An exception makes Spark try the task again."""
        settings = self.file.settings()
        for whole in ranges:
            began = time.monotonic()
            with named_by_place((whole, {NEXT: whole.start})):
                hand = take_up(whole, self.target / OWN)
            with hand, named_by_place((whole, hand.cells)):
                made = self.form.columns(decoding_of(settings, settings.handler_of(whole.topic)))
                columns = replace(made, schema=self.schema)
                reader = self.file.records(self.limits, timestamp_types=True)
                fetched = filter(len, self.limits.paced(reader.read(whole)))
                files = self._write(whole, _noted(fetched, hand.cells), columns)
            records = sum(each.records for each in files)
            told, seconds = json.dumps(files), time.monotonic() - began
            yield Summary(*whole, whole.stop, records, 0, 0, None, told, seconds)

    def _write(self, whole: OffsetRange, fetched: Iterator[Run], columns: LakeColumns) -> list[LakeFile]:
        attempt = f"-{uuid.uuid4().hex}" if self.form.logged else ""
        name = file_name(whole, self.topics.get(whole.topic), attempt)
        cut = self.form.partitioning
        with PartitionedFiles(self.target, lambda part: f"{part}/{name}", columns, cut) as files:
            for run in fetched:
                files.add(run)
            return files.close()


def _noted(fetched: Iterator[Run], cells: memoryview) -> Iterator[Run]:
    """The fetched records, with their progress noted for the driver."""
    for run in in_batches(fetched):
        yield run
        cells[NEXT] = ends(run)[1] + 1


def dry_run(settings: Settings, target: Directory, form: Form) -> DryRun:
    """Plan of an export. Starts no Spark, makes no table and writes nothing. Raises what would end the export before it
    writes anything."""
    schema = _schema(settings, form)
    before = _Known(target, form, schema).read()
    lake = _lake(settings, target, schema, form)
    now = _continued(settings, before if lake is None else _settled(lake, before, make=False))
    return DryRun(now.state.left, now.state.rate, now.warnings())


def export(settings: Settings, file: SettingsFile, target: Directory, master: str, form: Form, say: Say) -> FinishedRun:
    """Bring the target up to now. Blocks. Raises a `ServiceError` where it ends early."""
    schema = _schema(settings, form)
    known = _Known(target, form, schema)
    lake = _lake(settings, target, schema, form)
    before = known.read()
    with overtaken_first(known.check):
        settled = before if lake is None else _settled(lake, before)
    now = _continued(settings, settled)
    for each in now.warnings():
        say(f"warning: {each}")
    state = _accept(target, lake, known, settled, now, moved=settled is not before)
    if not state.left:
        return FinishedRun(JOB, None, state, notes=[f"{target.url} has everything already"])
    if (why := without_columns(settings)) is not None:
        say(why)

    def ended(now: RunState, summaries: Sequence[Summary]) -> None:
        known.check()
        files = [LakeFile(*each) for one in summaries for each in json.loads(one.file)]
        if lake is not None:
            with overtaken_first(known.check):
                lake.commit(now.rounds, files, _ends(each.range for each in summaries))
        known.save(now)
        if lake is not None:
            lake.clear(files)

    def ready() -> None:
        if isinstance(lake, MergedDelta):
            # From here on whoever else exports finds out that it is overtaken: the files that go may be its round's.
            known.save(state)
            lake.clear()

    pipeline, topics = settings.pipeline, state.topics
    written = schema if lake is None else lake.file_schema
    job = RangeJob(
        name=JOB,
        settings=settings,
        file=file,
        directory=target / OWN,
        handler=False,
        task=lambda again, limits: ExportRanges(file, target, form, written, topics, limits),
        next=WholeRounds(
            round_size(pipeline.max_offsets_per_trigger, merged=form.merge_by is not None),
            _FILE_RECORDS,
            pipeline.min_partitions,
        ),
        ready=ready,
        begun=known.save,
        ended=ended,
        together=True,
    )
    return FinishedRun(JOB, None, job(state, master, JOB, say), "the same command")


def _schema(settings: Settings, form: Form) -> pa.Schema:
    """The files' schema. Raises `HandlerLoadError`."""
    # That decoders can be had is found out here, not by tasks. The schema is the form's, whoever's decoders these are.
    schema, *_ = (form.columns(decoding_of(settings, handler)).schema for handler in settings.every_handler)
    return schema


def _lake(settings: Settings, target: Directory, schema: pa.Schema, form: Form) -> TableLog | None:
    if form.iceberg is not None:
        catalog = Catalog(settings.pipeline.iceberg_catalog, settings.pipeline.iceberg)
        return IcebergLake(catalog, form.iceberg, target, schema, form.partition_by)
    if not form.delta:
        return None
    return DeltaLake(target, schema, form.partitioning) if form.merge_by is None else MergedDelta(target, schema)


def _settled(lake: TableLog, state: RunState, *, make: bool = True) -> RunState:
    """The state with the round underway ended, if the table has it: a run was killed before it wrote that into its
    manifest. `make`: see `TableLog.open`. Raises `ConfigError` where the table has more, or another one: where that
    round ended nobody knows.
    """
    if not lake.open(state.rounds, make=make):
        return state
    if (found := lake.committed()).rounds <= state.rounds:
        return state
    number = state.rounds + 1
    if state.underway and found.is_round(number, _ends(state.underway)):
        through = state.end([Summary(*each, each.stop, 0, 0, 0, None, "", 0.0) for each in sorted(state.underway)], 0.0)
        return replace(through, rounds=number)
    if found == Committed(number, fingerprint(GIVEN_UP)):
        return replace(state, rounds=number)
    kept = f"the newest manifest beside it, in {OWN},"
    told = f"{found.rounds} rounds, and {kept} counts {state.rounds}"
    if found.rounds == number and state.underway:
        told = f"a round {number} that ends elsewhere than the one underway in {kept} does"
    raise ConfigError(
        f"the table has {told}: it is an older one, or another export's, by which records would be exported again, or "
        f"left out. Put the later ones back, or export to another directory"
    )


def _ends(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
    """Where a round of these ranges ends, of which several may be of one partition."""
    return {each.tp: each.stop for each in sorted(ranges)}


_FILE_RECORDS = 1_000_000
"""Offsets of a range, unless a setting says otherwise: a file of a day is about as large as readers like it."""
_MERGED_RECORDS, _MOST_MERGED = 200_000, 1_000_000
"""Offsets of a round that the driver merges, unless a setting says otherwise, and at most: it has an index of them."""


def round_size(wanted: int | None, *, merged: bool) -> int | None:
    """Offsets of a round, by `max_offsets_per_trigger`; None: as many for each partition. Pure."""
    return min(wanted or _MERGED_RECORDS, _MOST_MERGED) if merged else wanted


def _accept(
    target: Directory, lake: TableLog | None, known: _Known, settled: RunState, now: _Continued, *, moved: bool
) -> RunState:
    """Delete what does not count, and write down what is lost: accepted once, it is not asked for again. The state to
    go on from. `settled`: the state before that; `moved`: the manifest has another one.
    """
    state, lost = now.state, bool(now.lost or now.dropped)
    if lost or moved or known.given_up:
        # From here on whoever else works on the target finds out that it is overtaken: what goes now it may count.
        known.save(settled)
    if lake is None:
        known.given_up |= now.dropped
        _clear(target, known.given_up, now.truncated(), known.check)
    elif now.dropped:
        # Who was overtaken may stand before its commit of the round as it was: one of the two takes the number, and the
        # other finds that out.
        state = replace(state, rounds=settled.rounds + 1)
        lake.commit(state.rounds, [], GIVEN_UP)
    if lost:
        known.save(state)
    return state


def _clear(
    target: Directory, given_up: Collection[str], truncated: Mapping[str, int], check: Callable[[], None]
) -> None:
    """Delete what earlier exports, or a compaction, have left that does not count. `given_up`: as `_Known` has them.
    `truncated`, `check`: see `forget_sources`.
    """
    if not (found := pieces_of(target.sizes(".parquet"))):
        return
    remove(target, (each for each in found if each.name in given_up))
    pieces = [each for each in found if each.name not in given_up]
    with overtaken_first(check):
        sources = sources_in(target, pieces, truncated)
        gone = covered(pieces, sources)
        remove(target, gone)
        forget_sources(target, [each for each in pieces if each not in gone], sources, truncated, check)


class _Continued(NamedTuple):
    """A target's state with all that is in the topics now, and what is not as it was."""

    state: RunState
    lost: Sequence[Loss]
    left: Sequence[OffsetRange]
    """Underway before, of partitions that the settings do not ask for any more."""
    unseen: Sequence[TopicPartition]
    """That exist, and are not among all topics as the brokers tell them for a pattern: a right is missing, or a broker
    does not know of them yet."""
    dropped: frozenset[str]
    """Names of files that do not count: of what is left, and of ranges underway whose offsets are other records now, or
    none."""

    def warnings(self) -> list[str]:
        """What a person has to know before the export goes on."""
        told = (
            f"{each.tp} from {each.start} to {each.stop} was underway, and is not asked for any more: its files are "
            f"removed; asked for again, it is exported from there"
            for each in self.left
        )
        unseen = (
            f"{tp} is asked for by a pattern, and the brokers do not show it to this user: the export goes on without "
            f"it, and has it from where it was when they do; a missing right is DESCRIBE"
            for tp in self.unseen
        )
        return [*map(str, self.lost), *told, *unseen]

    def truncated(self) -> dict[str, int]:
        """Where logs were truncated, by their names in files."""
        topics, lost = self.state.topics, (each for each in self.lost if each.why is Lost.TRUNCATED)
        return {log_name(each.tp, topics.get(each.tp.topic)): each.edge for each in lost}


def _continued(settings: Settings, before: RunState) -> _Continued:
    """How the export goes on. Blocks on the brokers. Raises `ConfigError`."""
    topics = settings.group.topics or settings.assign.wanted.topics
    numbered = settings.assign.wanted.numbered
    strict = settings.pipeline.fail_on_data_loss
    everything = Bounds(Everywhere(EARLIEST), Everywhere(LATEST))
    first = {each.tp: each.start for each in before.ranges}
    stored = {**first, **before.positions}
    # What the settings do not ask for any more is no loss.
    asked_for = narrowed((tp for tp in stored if takes(topics, tp.topic)), numbered)
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        found = plan(listed(topics, numbered, asked_for, session), everything, session, fail_on_data_loss=strict)
        logs = within_epochs(found.edges, before.epochs, session.ends_of_epochs)
        anew = created_anew(before.topics, found.topics)
        missing = [tp for tp in asked_for if tp not in logs]
        if strict:
            session.topic_ids(tp.topic for tp in missing)  # Says so of a topic that we may not see.
        unseen = not_deleted(missing, session)
    deleted = set(missing).difference(unseen)
    stored |= {tp: at for tp, at in before.gone.items() if tp in logs and tp.topic not in anew}
    known = {tp: at for tp, at in stored.items() if tp in logs or tp in deleted}
    positions, lost = resolve_all(known, logs, anew)
    cut_off = [each for each in before.underway if each.tp in logs and each.stop > logs[each.tp].end]
    short = [Loss(each.tp, Lost.TRUNCATED, each.stop, logs[each.tp].end) for each in cut_off]
    lost += [each for each in short if each.tp.topic not in anew]
    if strict:
        check_nothing_lost(lost)
    # Its task would fail, of a topic that is deleted or that no handler takes, and with it each export from now on.
    left = [each for each in before.underway if each.tp not in logs and each.tp not in missing]
    dropped = [each for each in before.underway if each.topic in anew or each.tp not in logs or each in cut_off]
    starts = {tp: at for tp, at in first.items() if tp.topic not in anew}
    state = replace(
        before,
        ranges=tuple(each._replace(start=starts.get(each.tp, each.start)) for each in found.ranges),
        positions={
            tp: at for tp, at in {**before.positions, **positions}.items() if at != starts.get(tp) and tp not in deleted
        },
        underway=tuple(each for each in before.underway if each not in dropped),
        tiles=(),  # Of a round that was settled: an export has no table of outcomes.
        topics={**before.topics, **found.topics},
        # Of a topic that is not asked for this time, too: its position stays, and the next export that asks for it has
        # to notice what was truncated meanwhile.
        epochs={**{tp: epoch for tp, epoch in before.epochs.items() if tp.topic not in anew}, **found.epochs},
        gone={
            tp: at
            for tp, at in {**before.gone, **{tp: stored[tp] for tp in deleted}}.items()
            if tp not in logs and tp.topic in before.topics and tp.topic not in anew
        },
    )
    names = (file_name(each, before.topics.get(each.topic)) for each in dropped)
    return _Continued(state, lost, left, unseen, frozenset(names))


class _Known:
    """Manifest of the target: its form, its schema and its progress. Methods raise `ConfigError`."""

    def __init__(self, target: Directory, form: Form, schema: pa.Schema) -> None:
        """`schema`: of the files. A table has it itself, and engines may alter it there."""
        self._target, self._form = target, form
        self._kinds = {} if form.logged else kinds(schema)
        self._manifest = Manifest(target / OWN)
        self.given_up = frozenset[str]()
        """Names of files that do not count: of ranges that were underway, and are not begun again as they were. A task
        that is late may write one at any time.
        """

    def save(self, state: RunState) -> None:
        """Write the state. Raises `Overtaken` where another export has moved it on."""
        self.given_up -= {file_name(each, state.topics.get(each.topic)) for each in state.underway}
        schema = {"schema": self._kinds} if self._kinds else {}
        given_up = {GIVEN_UP_FILES: sorted(self.given_up)} if self.given_up else {}
        told = {**self._form.as_json(), **schema, **state.as_json(), **given_up}
        self._manifest.write({"kunicorn": __version__, **told})

    def check(self) -> None:
        """Raise `Overtaken` where another export has moved it on."""
        self._manifest.check()

    def read(self) -> RunState:
        """State of the target; that of a new one has nothing done."""
        told, form = self._manifest.read(), self._form
        if told is None:
            # Of a Delta table that somebody has made, its log may have some, too.
            if all(map(passed_over, self._target.names(".parquet"))):
                return RunState(())
            # They may be of an export that has begun between the two looks, as may its manifest.
            if (told := self._manifest.read()) is None:
                raise ConfigError(f"{self._target.url} has Parquet files of another's; name another directory")
        if (before := Form.of(told)) != form:
            raise ConfigError(
                f"{self._target.url} was begun with {_shown(before)}, and this is {_shown(form)}: go on with the same "
                f"--to, --table, --value, --key, --columns, --partition-by and --merge-by (handler.value and "
                f"handler.key where --value and --key are left out), or name another directory"
            )
        state = state_in(told, (self._target / OWN).url)
        self.given_up = frozenset(told.get(GIVEN_UP_FILES, ()))
        changed = kinds_changed(told.get("schema", self._kinds), self._kinds)  # None by an earlier version.
        if changed and self._kinds:
            by = "" if form.columns_of is None else f" by {form.columns_of}"
            raise ConfigError(
                f"the files in {self._target.url} have other columns than the records{by}: {changed}. Readers of a "
                f"directory take one schema for all its files: go on with the former one, or name another directory "
                f"for this one"
            )
        return state


def _shown(form: Form) -> str:
    columns = "" if form.columns_of is None else f", columns by {form.columns_of}"
    lake = f"iceberg table {form.iceberg}" if form.iceberg is not None else "delta" if form.delta else "parquet"
    by = f"by {form.partition_by}" if form.merge_by is None else f"merged by {form.merge_by}"
    return f"{lake} of {form.value} values and {form.key} keys{columns}, {by}"
