"""What is looked at in every executor before the first record is handled."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.pipeline.executors import SettingsFile, check_handlers
from kunicorn.pipeline.storage import Directory

CHECKED = "problem string, handler boolean"
_SCHEMA = pa.schema([("problem", pa.string()), ("handler", pa.bool_())])


@dataclass(frozen=True, slots=True)
class CheckExecutor:
    """A task that gives back a row for a problem, none for none."""

    file: SettingsFile
    directory: Directory
    probe: str
    """A file that the driver has put there."""
    handler: bool
    """Whether the handler is needed."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in an executor's Python process."""
        for _ in batches:
            pass
        problem, is_handlers = self._problem()
        if problem is not None:
            yield pa.RecordBatch.from_pylist([{"problem": problem, "handler": is_handlers}], schema=_SCHEMA)

    def _problem(self) -> tuple[str | None, bool]:
        try:
            settings = self.file.settings()
            if self.directory.read(self.probe) is None:
                return self._not_shared(), False
            if self.handler:
                check_handlers(settings)
        except ConfigError as error:
            return str(error), False
        except HandlerLoadError as error:
            return f"on {socket.gethostname()}, where Spark runs a task: {error}", True
        return None, False

    def _not_shared(self) -> str:
        return (
            f"{socket.gethostname()}, where Spark runs tasks, does not see {self.directory.url} as the driver does: "
            f"set pipeline.directory to a volume that all of them have, or to a URL such as s3://bucket/runs"
        )
