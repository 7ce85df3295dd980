"""Requests that jobs send to an object store, by what they are about and by kind, as a server of S3 has logged them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from kunicorn.pipeline.storage import Directory, Manifest
from tests.system.pipeline.desk import MASTER, Desk
from tests.system.pipeline.killing import START_SECONDS

_LINE = re.compile(r'"(?:\x1b\[\d+m)*(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP')
"""The server colours what is not a plain 200."""
KINDS = ("PUT", "GET", "LIST", "HEAD", "POST", "DELETE")
"""LIST is a GET of names. POST begins and ends a file that is put in parts, or removes files. These it names in its
body: they are taken for old manifests, which all but one are."""
TASK, ROUND, RUN = "task", "round", "run"
"""What a request is about: a range's files, the manifest that makes them count, or neither."""


class Request(NamedTuple):
    """One, as it was asked."""

    about: str
    kind: str


Calls = Counter[Request]


class StoreLog:
    """The server's log, from where it was read last."""

    def __init__(self, log: Path, served: Mapping[str, str]) -> None:
        self._log, self._served = log, served
        self._read = 0

    def of(self, desk: Desk, *command: str) -> Calls:
        """Requests of that command, run to its end as a process of its own."""
        self._next()
        process = desk.start(*command, "--master", MASTER, env=self._served)
        said, _ = process.communicate(timeout=START_SECONDS)
        assert process.returncode == 0, said
        return Counter(self._next())

    def _next(self) -> list[Request]:
        with self._log.open() as file:
            file.seek(self._read)
            found = [_request(*match.groups()) for match in map(_LINE.search, file) if match]
            self._read = file.tell()
        return found


def _request(method: str, target: str) -> Request:
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if method == "POST" and "delete" in query:
        return Request(ROUND, method)
    listed = method == "GET" and ("list-type" in query or "prefix" in query)
    path = f"{parts.path}/{query.get('prefix', [''])[0]}" if listed else unquote(parts.path)
    return Request(_about(path), "LIST" if listed else method)


def _about(path: str) -> str:
    """A listing of the manifest's own directory is about the manifest: only its versions are looked for there."""
    if re.search(r"date=|/outcomes/(?!all/)[^/]+/\d", path):
        return TASK
    return ROUND if re.search(r"manifest-|_kunicorn/?$|/run/?$", path) else RUN


def by_kind(calls: Calls, about: str) -> Counter[str]:
    """Of one thing."""
    return Counter({each.kind: count for each, count in calls.items() if each.about == about})


class Counted(NamedTuple):
    """Requests of one job, and how many of each there are to share them out over."""

    job: str
    calls: Calls
    tasks: int
    """Ranges; of `reconcile` files that it reads."""
    rounds: int
    """How often progress was counted; 0: it counts none."""

    def each(self, about: str) -> dict[str, float]:
        """By kind: a task, a round, or all that are neither."""
        number = {TASK: self.tasks, ROUND: self.rounds, RUN: 1}[about]
        return {kind: count / max(1, number) for kind, count in sorted(by_kind(self.calls, about).items())}


def counted(desk: Desk, log: StoreLog, bucket: str) -> list[Counted]:
    """An export, a backfill without failures, and the export's reconciliation. `bucket`: where they write; the desk's
    `pipeline.directory` lies there, too. The caller's environment finds the bucket.
    """
    lake = f"{bucket}/{desk.topic}-lake"
    exported = log.of(desk, "export", lake)
    told = newest_manifest(f"{lake}/_kunicorn")
    files = len(Directory(lake).names(".parquet"))
    handled = log.of(desk, "backfill", "--run", "run")
    ran = newest_manifest(f"{bucket}/{desk.topic}-runs/run")
    compared = log.of(desk, "reconcile", lake)
    return [
        Counted("export", exported, files, told["rounds"]),
        Counted("backfill", handled, len(ran["ranges"]), ran["rounds"]),
        Counted("reconcile", compared, files, 0),
    ]


def newest_manifest(place: str) -> Any:
    """In that directory of a bucket."""
    return Manifest(Directory(place)).read()
