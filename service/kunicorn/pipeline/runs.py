"""A run's place: `<pipeline.directory>/<run id>/`, with its manifest and its outcomes.

The manifest has a new version before each round and after it: a run that was killed goes on with the round it was in,
under the same ranges, and of two processes that go on with it one does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kunicorn import __version__
from kunicorn.errors import ConfigError
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory, Manifest

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as its manifest has it."""

    id: str
    job: str
    """"backfill", "catch-up" or "export"."""
    what: str
    """The handler's entry point, or where an export goes."""
    started: str
    state: RunState
    request: str = ""
    """What was asked for, as text: a resumed run has to be the same."""

    @property
    def finished(self) -> bool:
        """Nothing is left."""
        return self.state.finished


def new_id(job: str, now: datetime | None = None) -> str:
    """A run's id: sorts by time, and no two are the same."""
    return f"{job}-{(now or datetime.now(UTC)):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_id(run: str) -> str:
    """It becomes the name of a directory. Raises `ConfigError`."""
    if not _ID.fullmatch(run):
        raise ConfigError(f"{run!r} is no id of a run: letters, digits, '.', '_' and '-', at most 128")
    return run


def place(directory: str) -> Directory:
    """A directory as executors can find it, too: their working directories are others."""
    return Directory(str(Path(directory).absolute()) if Directory(directory).is_local else directory)


class Runs:
    """All runs of `pipeline.directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = place(directory)
        self._manifests: dict[str, Manifest] = {}

    def _manifest(self, run: str) -> Manifest:
        return self._manifests.setdefault(run, Manifest(self.directory / run))

    def outcomes(self, run: str) -> Directory:
        """Where the run's outcome rows are."""
        return self.directory / run / "outcomes"

    def save(self, run: Run) -> None:
        """Move the manifest on. Raises `Overtaken`, `ConfigError`."""
        told: dict[str, Any] = {
            "run": run.id,
            "job": run.job,
            "what": run.what,
            "request": run.request,
            "started": run.started,
            "kunicorn": __version__,
            "finished": run.finished,
            **run.state.as_json(),
        }
        self._manifest(run.id).write(told)

    def check(self, run: Run) -> None:
        """See that no other process goes on with the run. Raises `Overtaken`, `ConfigError`."""
        self._manifest(run.id).check()

    def read(self, run: str) -> Run:
        """A run by its id. Raises `ConfigError` where there is none."""
        told = self._manifest(check_id(run)).read()
        if told is None:
            known = ", ".join([each.id for each in self.all()][-5:]) or "none"
            raise ConfigError(f"there is no run {run!r} in {self.directory.url}; the latest there: {known}")
        return _read(told, f"{self.directory.url}/{run}/manifest")

    def start(self, job: str, what: str, request: str, state: RunState, run: str | None = None) -> Run:
        """A new run, its manifest written. Raises `ConfigError` for an id that is taken."""
        started = datetime.now(UTC)
        identity = check_id(run) if run is not None else new_id(job, started)
        if self._manifest(identity).read() is not None:
            raise ConfigError(f"there is a run {identity!r} already; go on with it by --resume, or choose another id")
        new = Run(identity, job, what, started.isoformat(timespec="seconds"), state, request)
        self.save(new)
        return new

    def all(self) -> Iterator[Run]:
        """Every run there is, oldest first as far as ids tell."""
        newest: dict[str, str] = {}
        for name in self.directory.names(".json"):
            run, _, file = name.partition("/")
            if Manifest.NAME.fullmatch(file):
                newest[run] = name
        for name in newest.values():
            if (told := self.directory.read_json(name)) is not None:
                yield _read(told, f"{self.directory.url}/{name}")

    def pace(self, job: str, what: str) -> float | None:
        """Offsets a second of the latest run of the same kind that has any; None if there is none."""
        rates = [each.state.rate for each in self.all() if (each.job, each.what) == (job, what)]
        return next((rate for rate in reversed(rates) if rate is not None), None)


def _read(told: Any, place: str) -> Run:
    try:
        state = RunState.from_json(told)
        return Run(told["run"], told["job"], told["what"], told["started"], state, told["request"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{place} is no manifest of this version: {type(error).__name__}: {error}") from error


def advanced(run: Run, state: RunState) -> Run:
    """The run with another state."""
    return replace(run, state=state)
