"""What our connections could not read, and whether it was logged. Nothing is kept, however long that goes on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from kunicorn.kafka import codec, connection
from kunicorn.kafka.connection import read_api_versions
from kunicorn.kafka.errors import ProtocolError
from kunicorn.observe import logs

_SAID = "connection is closed"


class Told(logging.Handler):
    """Hears the service's loggers and the libraries', in place of the output."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.unreadable = 0
        """Answers that a connection of ours could not read."""
        self.owed: Counter[str] = Counter()
        """Why not, in its own words, until a line says that the connection is closed for that."""
        self.bugs: list[str] = []
        """What asyncio complained of: tasks whose exceptions nobody took, callbacks that raised."""

    def met(self, why: str) -> None:
        """One more."""
        self.unreadable += 1
        self.owed[why] += 1

    def settle(self, line: str) -> None:
        """That line says it, of one."""
        why = next((why for why in self.owed if why in line), None)
        if why is not None:
            self.owed -= Counter([why])

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())

    def line(self, level: str, logger: str, event: dict[str, Any]) -> None:
        """In place of the output of `kunicorn.observe.logs`."""
        self._hear(str(event["event"]))

    def complaint(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio's exception handler."""
        self.bugs.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _hear(self, line: str) -> None:
        if _SAID in line:
            self.settle(line)


@contextmanager
def listening() -> Iterator[Told]:
    """Everything of level info and above is heard, of libraries also what is told for the second time (debug), and goes
    nowhere else."""
    told, libraries = Told(), logging.getLogger("kunicorn")
    level, propagate = libraries.level, libraries.propagate
    libraries.addHandler(told)
    libraries.setLevel(logging.DEBUG)
    libraries.propagate = False
    try:
        with (
            mock.patch.object(logs._output, "emit", told.line),
            mock.patch.object(logs._output, "threshold", logging.INFO),
            _reading(told),
        ):
            yield told
    finally:
        libraries.removeHandler(told)
        libraries.setLevel(level)
        libraries.propagate = propagate


@contextmanager
def _reading(told: Told) -> Iterator[None]:
    """Look on where connections read, and where they close for what they read."""
    distrust = connection.Connection._distrust

    def noting(read: Any) -> Any:
        def noted(*what: Any) -> Any:
            try:
                return read(*what)
            except ProtocolError as error:
                told.met(str(error))
                raise

        return noted

    def distrusted(self: connection.Connection, error: ProtocolError) -> None:
        if self.closed:
            # It has ended for another reason, between that answer's coming and its being read.
            told.settle(str(error))
        distrust(self, error)
        if not self.closed:
            told.bugs.append(f"a connection stays open: {error}")

    with (
        mock.patch.object(connection.Connection, "_distrust", distrusted),
        mock.patch.object(codec, "decode_response", noting(codec.decode_response)),
        mock.patch(f"{connection.__name__}.read_api_versions", noting(read_api_versions)),
    ):
        yield
