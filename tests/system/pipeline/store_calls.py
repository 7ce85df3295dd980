"""Requests that jobs send to an object store, by what they are about and by kind, as a server of S3 has logged them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.system.pipeline.desk import MASTER, Desk
from tests.system.pipeline.killing import START_SECONDS

_LINE = re.compile(r'"(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP')
KINDS = ("PUT", "GET", "LIST", "HEAD", "POST", "DELETE")
"""LIST is a GET of names. POST begins and ends a file that is put in parts."""
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
    listed = method == "GET" and ("list-type" in query or "prefix" in query)
    path = f"{parts.path}/{query.get('prefix', [''])[0]}" if listed else unquote(parts.path)
    return Request(_about(path), "LIST" if listed else method)


def _about(path: str) -> str:
    """A listing of the manifest's own directory is about the manifest: only its versions are looked for there."""
    if re.search(r"date=|/outcomes/[^/]+/\d", path):
        return TASK
    return ROUND if re.search(r"manifest-|_kunicorn/?$|/run/?$", path) else RUN


def by_kind(calls: Calls, about: str) -> Counter[str]:
    """Of one thing."""
    return Counter({each.kind: count for each, count in calls.items() if each.about == about})
