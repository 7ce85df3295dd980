"""Files that driver and executors share: a directory, or a URL that Arrow's file systems know (s3, gs, hdfs).

A file is there whole or not at all: it is written under another name and then renamed (in an object store: copied by
the server). Written again under the same name it replaces the former.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from kunicorn.errors import ConfigError

_UNFINISHED = "_unfinished-"
"""Names that begin with an underscore are no data to any reader of Parquet directories."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A place for files; made when the first is written. Carries no secret: the file system finds its own."""

    url: str

    def __post_init__(self) -> None:
        if not self.is_local and urlsplit(self.url).password is not None:
            # It would stand in Spark's plans and in messages.
            raise ConfigError(
                f"{urlsplit(self.url).scheme}://… has a password in it: leave it out, rights are found in the "
                f"environment; docs/pipeline.md says where"
            )

    def __truediv__(self, name: str) -> Directory:
        return Directory(f"{self.url.rstrip('/')}/{name}")

    @property
    def is_local(self) -> bool:
        """A path of this machine, or of a volume mounted here."""
        return "://" not in self.url

    def read(self, name: str) -> bytes | None:
        """The file's content; None where there is none. Raises `ConfigError`."""
        system, path = self._opened()
        with _told(self.url):
            if system.get_file_info(f"{path}/{name}").type == fs.FileType.NotFound:
                return None
            with system.open_input_stream(f"{path}/{name}") as file:
                content: bytes = file.read()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Put the file there, whole. Raises `ConfigError`."""
        with self.writing(name) as file:
            file.write(content)

    def read_json(self, name: str) -> Any:
        """A JSON file's content; None where there is none."""
        content = self.read(name)
        return None if content is None else json.loads(content)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """For people, too: indented."""
        self.write(name, json.dumps(content, indent=1).encode() + b"\n")

    def names(self, suffix: str) -> list[str]:
        """Files with that ending in here and below, as paths relative to this directory; sorted."""
        system, path = self._opened()
        with _told(self.url):
            found = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        paths = (info.path[len(path) :].lstrip("/") for info in found if info.type == fs.FileType.File)
        return sorted(name for name in paths if name.endswith(suffix) and not Path(name).name.startswith("_"))

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """A Parquet file's rows, without what its directories' names would add."""
        system, path = self._opened()
        with _told(self.url), system.open_input_file(f"{path}/{name}") as file:
            return pq.ParquetFile(file).read(columns)

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """A file to write to, there under `name` once the block ends well. Raises `ConfigError`."""
        system, path = self._opened()
        folder, _, last = f"{path}/{name}".rpartition("/")
        with _told(self.url):
            system.create_dir(folder, recursive=True)
            # Two tasks of one range may write at the same time: each has a name of its own until it is whole.
            part = f"{folder}/{_UNFINISHED}{uuid.uuid4().hex}-{last}"
            file = system.open_output_stream(part)
        try:
            with _told(self.url):
                yield file
                file.close()
                system.move(part, f"{folder}/{last}")
        except BaseException:
            # Closing makes an object of what was written so far: it must not be the one that readers know.
            with contextlib.suppress(OSError):
                file.close()
                system.delete_file(part)
            raise

    def _opened(self) -> tuple[fs.FileSystem, str]:
        if self.is_local:
            return fs.LocalFileSystem(), str(Path(self.url).absolute())
        try:
            system, path = fs.FileSystem.from_uri(self.url.replace("s3a://", "s3://", 1))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.url} is no place for files: {error}; name a directory or a URL") from error
        return system, path.rstrip("/")


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{url} cannot be used: {error}; see pipeline.directory") from error
    except pa.ArrowNotImplementedError as error:
        # Of Azure's accounts only those with a hierarchical namespace rename.
        raise ConfigError(f"{url} cannot be used, as files are renamed there: {error}; name another place") from error
