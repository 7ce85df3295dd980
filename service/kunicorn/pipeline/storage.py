"""Files that driver and executors share: in a directory, or at a URL that Arrow's file systems know (s3, gs, hdfs).

A file is there whole or not at all: it is written under another name and then renamed, or in an object store put under
its own name in one step, which is what stores have. Written again under the same name it replaces the former.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.settings.pipeline import STORES, is_place

_PART_BYTES = 8 * 1024 * 1024
"""Of a file that is put into an object store: what is smaller is one request, what is larger is put in parts."""
_ONE_REQUEST_BYTES = 64 * 1024 * 1024
"""Of a file that is put only where there is none: it is held in memory."""
_PARTS_UNDERWAY = 2
"""With the one that fills, what a file that is being written takes of a task's memory."""
_UNFINISHED = "_unfinished-"
"""Names that begin with an underscore are no data to any reader of Parquet directories."""
_NAMED_BY = "pipeline.directory, or the DIR of the command"
"""Where a person finds what place is asked for: an export, a compaction and a reconciliation have one of their own."""
NAME_BYTES = 255
"""Of the name of a file or a directory, as file systems have them."""


def visible(name: str) -> str:
    """The name of a file or directory with data. If it began with `_` or `.`, readers would pass over it in silence."""
    return f"%{ord(name[0]):02X}{name[1:]}" if name.startswith(("_", ".")) else name


def passed_over(path: str) -> bool:
    """Whether readers of Parquet directories pass over a file, by a directory above it: `_spark_metadata`, but not that
    of a field, `_region=eu`.
    """
    return any(name.startswith(("_", ".")) and "=" not in name for name in path.split("/")[:-1])


class Unreadable(ConfigError):
    """A file that is not what its name says."""


class StoreFailed(ConfigError):
    """A directory, a store or a table's catalog does not do what it is asked: it is away, or a right is missing."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Directory for files; made when the first is written. Carries no secret: the file system finds its own."""

    url: str

    def __post_init__(self) -> None:
        if self.url.startswith("file:"):
            # Else it would be neither a directory nor a store, and files would be made without their atomic step.
            object.__setattr__(self, "url", _local(self.url))
        if self.is_local:
            return
        if self.url.startswith("gcs://"):
            raise ConfigError("gcs://… is no URL that files are written to: Google's store is gs://…")
        try:
            is_place(self.url)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def __truediv__(self, name: str) -> Directory:
        return Directory(f"{self.url.rstrip('/')}/{name}")

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine, or of a volume mounted here."""
        return "://" not in self.url

    @property
    def is_store(self) -> bool:
        """Whether it is in an object store."""
        return urlsplit(self.url).scheme in STORES

    def read(self, name: str) -> bytes | None:
        """Content of the file; None where there is none. Raises `ConfigError`."""
        system, path = self._opened()
        with _told(self.url):
            if not self._exists(name):
                return None
            try:
                with system.open_input_stream(f"{path}/{name}") as file:
                    content: bytes = file.read()
            except FileNotFoundError:  # Deleted since: an old version of a manifest, as another process moves it on.
                return None
        return content

    def _exists(self, name: str) -> bool:
        system, path = self._opened()
        with _told(self.url):
            return bool(system.get_file_info(f"{path}/{name}").type != fs.FileType.NotFound)

    def write(self, name: str, content: bytes) -> None:
        """Write the file, whole. Raises `ConfigError`."""
        self.write_of(name, io.BytesIO(content))

    def write_of(self, name: str, content: IO[bytes]) -> None:
        """As `write`, a part at a time."""
        content.seek(0)
        with self.writing(name) as file:
            shutil.copyfileobj(content, file, _PART_BYTES)

    def create(self, name: str, content: bytes) -> bool:
        """Write the file, whole, unless there is one; whether it was written. Raises `ConfigError`.

        Of two at the same time one writes it, in a directory and in an object store. HDFS has no such step here, nor
        have mounts without hard links: there the file is looked for first.
        """
        return self.create_of(name, io.BytesIO(content))

    def create_of(self, name: str, content: IO[bytes]) -> bool:
        """As `create`. In an object store what is too large for one request is looked for first, too."""
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        if self.is_local:
            with _told(self.url), contextlib.suppress(_NoLinks):
                return _linked(Path(self.url).absolute() / name, content)
        if self.is_store and size <= _ONE_REQUEST_BYTES:
            return _put_if_absent(self.url, name, content.read())
        if self._exists(name):
            return False
        self.write_of(name, content)
        return True

    def delete(self, name: str) -> None:
        """Remove the file, if it is there. Raises `ConfigError`."""
        if self.is_store:
            _remove(self.url, name)
            return
        system, path = self._opened()
        with _told(self.url), contextlib.suppress(FileNotFoundError):
            system.delete_file(f"{path}/{name}")

    def read_json(self, name: str) -> Any:
        """Content of a JSON file; None where there is none. Raises `Unreadable`, `ConfigError`."""
        if (content := self.read(name)) is None:
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            raise Unreadable(
                f"{self.url}/{name} is no JSON ({error}), as a machine may leave it that loses its power: remove it; "
                f"of a manifest the version before counts then, and without one the run begins anew"
            ) from error

    def names(self, suffix: str, *, below: bool = True) -> list[str]:
        """Names of files with that ending in here, and `below`, as paths relative to this directory; sorted."""
        return list(self.sizes(suffix, below=below))

    def sizes(self, suffix: str, *, below: bool = True) -> dict[str, int]:
        """As `names`, with the files' sizes in bytes."""
        system, path = self._opened()
        with _told(self.url):
            found = system.get_file_info(fs.FileSelector(path, recursive=below, allow_not_found=True))
        files = [(info.path[len(path) :].lstrip("/"), info) for info in found if info.type == fs.FileType.File]
        return {
            name: info.size or 0
            for name, info in sorted(files, key=lambda each: each[0])
            if name.endswith(suffix) and not Path(name).name.startswith("_")
        }

    def footer(self, name: str) -> pq.FileMetaData:
        """Footer of a Parquet file. Raises `Unreadable`, `ConfigError`."""
        with self._parquet(name) as file:
            return pq.read_metadata(file)

    def batches(self, name: str, rows: int = 100, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of a Parquet file, so many at a time at most, and those of a row group alone: what is in memory follows
        from the file's row groups, not from the size of its rows. Raises `Unreadable`, `ConfigError`.
        """
        with self._parquet(name) as file:
            whole = pq.ParquetFile(file)
            for group in range(whole.num_row_groups):
                yield from whole.iter_batches(rows, [group], columns=columns and list(columns))

    @contextmanager
    def _parquet(self, name: str) -> Iterator[Any]:
        system, path = self._opened()
        with _told(f"{self.url}/{name}"), system.open_input_file(f"{path}/{name}") as file:
            try:
                yield file
            except pa.ArrowInvalid as error:
                raise Unreadable(
                    f"{self.url}/{name} is no whole Parquet file ({error}): let whoever writes it end, or bring it "
                    f"back from a copy; if you remove it, its rows are missing"
                ) from error

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """File to write to, there under `name` once the block ends well. Raises `ConfigError`."""
        if self.is_store:
            with _put(self.url, name) as upload:
                yield upload
            return
        system, path = self._opened()
        folder, _, last = f"{path}/{name}".rpartition("/")
        with _told(self.url):
            system.create_dir(folder, recursive=True)
            # Two tasks of one range may write at the same time: each has a name of its own until it is whole.
            part = f"{folder}/{_UNFINISHED}{uuid.uuid4().hex}"
            file = system.open_output_stream(part)
        try:
            with _told(self.url):
                yield file
                file.close()
                if self.is_local:
                    _flush(Path(part))
                system.move(part, f"{folder}/{last}")
        except BaseException:
            with contextlib.suppress(OSError):
                file.close()
                system.delete_file(part)
            raise

    def _opened(self) -> tuple[fs.FileSystem, str]:
        if self.is_local:
            return fs.LocalFileSystem(), str(Path(self.url).absolute())
        try:
            system, path = _file_system(self.url.replace("s3a://", "s3://", 1))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.url} is no place for files: {error}; name a directory or a URL") from error
        return system, path.rstrip("/")


def _local(url: str) -> str:
    """Path of a file: URL. Raises `ConfigError` where it is of another machine, or no absolute path."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query or parts.fragment:
        # Without the URL: a password may be in it.
        raise ConfigError(
            "file:… is no place for files: name a directory by its absolute path, as in file:///data/runs"
        )
    return unquote(parts.path)


@lru_cache(maxsize=64)
def _file_system(url: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system at the URL: one for each process, as each asks a bucket for its region and connects anew."""
    system, path = fs.FileSystem.from_uri(url)
    return system, path


class _Upload:
    """File that is put into an object store, as Arrow writes to it."""

    closed = False
    mode = "wb"

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._at = 0

    def write(self, content: Any) -> int:
        """Append the bytes; blocks while as much is underway as may be."""
        self._writer.write(content)
        count = memoryview(content).nbytes
        self._at += count
        return count

    def tell(self) -> int:
        """Number of bytes written so far."""
        return self._at

    def flush(self) -> None:
        """Does nothing: a part is put when it is full."""

    def close(self) -> None:
        """Does nothing: the file is there when its block has ended well."""


@contextmanager
def _put(url: str, name: str) -> Iterator[_Upload]:
    """File in an object store, put whole when the block ends well; else its parts are removed. Raises `ConfigError`.

    By obstore: Arrow's file is there however the writing has ended, so that it would need another name and a copy,
    which S3 makes of 5 GiB at most.
    """
    from obstore import open_writer

    with _refused(url):
        writer = open_writer(_store(url), name, buffer_size=_PART_BYTES, max_concurrency=_PARTS_UNDERWAY)
        with writer as opened:
            yield _Upload(opened)


@lru_cache(maxsize=64)
def _store(url: str) -> Any:
    """obstore's store at the URL: one for each process, as each connects anew."""
    from obstore.store import from_url

    system, _ = _file_system(url.replace("s3a://", "s3://", 1))
    options: dict[str, Any] = {"region": system.region} if isinstance(system, fs.S3FileSystem) else {}
    return from_url(url, client_options={"allow_http": True}, **options)


@contextmanager
def _refused(url: str) -> Iterator[None]:
    """Say what the store says, as `ConfigError`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        raise StoreFailed(
            f"{url} cannot be used: {str(error).partition(chr(10))[0]}; see {_NAMED_BY}, and docs/pipeline.md for "
            f"where rights are found"
        ) from error


def _remove(url: str, name: str) -> None:
    """Remove an object, if it is there. By obstore: Arrow puts an empty object in the place of the directory that the
    last file was in, for good, and asks for it before."""
    from obstore import delete

    with _refused(url), contextlib.suppress(FileNotFoundError):
        delete(_store(url), name)


_put_once: set[str] = set()
"""URLs whose store was seen to refuse a second object of a name."""


def _put_if_absent(url: str, name: str, content: bytes) -> bool:
    """Write an object unless there is one, in one step; whether it was written. Raises `ConfigError`.

    A store that does not know the condition overwrites in silence, which only a second try shows.
    """
    from obstore import put
    from obstore.exceptions import AlreadyExistsError

    def written() -> bool:
        try:
            put(_store(url), name, content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    with _refused(url):
        if not written():
            return False
        twice = url not in _put_once and written()
    if twice:
        raise ConfigError(
            f"{url} cannot be used for manifests: the store writes an object over another one that it was told not "
            f"to replace (If-None-Match), so that two drivers would not notice each other; name another place, or "
            f"bring the store to a version with conditional writes"
        )
    _put_once.add(url)
    return True


def _flush(path: Path) -> None:
    """Have a file's content on the disk before it gets its name, which may survive a power cut that the content does
    not.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


class _NoLinks(Exception):
    """The file system has no hard links."""


def _linked(path: Path, content: IO[bytes]) -> bool:
    """Write a file unless there is one, in one step; whether it was written. Raises `_NoLinks`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
    try:
        with part.open("wb") as file:
            shutil.copyfileobj(content, file, _PART_BYTES)
        _flush(part)
        os.link(part, path)
    except FileExistsError:
        # Over NFS a link whose answer was lost is asked for again, and is there by then: the file has both names.
        # Opened anew, as what the client has kept of it is from before.
        with part.open("rb") as file:
            return os.fstat(file.fileno()).st_nlink == 2
    except OSError as error:
        if error.errno in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}:
            raise _NoLinks from error
        raise
    finally:
        part.unlink(missing_ok=True)
    return True


class Manifest:
    """Versioned state of a job: a file for each version, so that of two processes only one moves it on.

    1. A version is never replaced: a process that finds the next one there has been overtaken, and ends.
    2. Old versions are removed, but never the newest: one that was written behind a newer one, too late, is noticed by
       that.
    """

    NAME = re.compile(r"manifest-(\d{8})\.json")
    _KEPT = 2

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._version = 0
        """The one that this process has read or put last."""

    def read(self) -> Any:
        """The newest version; None before the first. Raises `ConfigError`."""
        while version := self._newest():
            # None: another process has moved it on twice meanwhile, and removed this version.
            if (content := self._directory.read_json(self._name(version))) is not None:
                self._version = version
                return content
        return None

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the next version, indented for people. Raises `Overtaken`, `ConfigError`."""
        name = self._name(self._version + 1)
        # No two puts are the same: a store's client whose answer is lost puts again, and is told of its own object.
        told = json.dumps({**content, "put": uuid.uuid4().hex}, indent=1).encode() + b"\n"
        if not self._directory.create(name, told) and self._directory.read(name) != told:
            raise Overtaken.of(self._directory)
        self._version += 1
        self.check()
        if self._version > self._KEPT:
            self._directory.delete(self._name(self._version - self._KEPT))

    def check(self) -> None:
        """Raise `Overtaken` if another process has moved it on, `ConfigError` if it cannot be read."""
        if self._newest() > self._version:
            raise Overtaken.of(self._directory)

    def _newest(self) -> int:
        found = map(self.NAME.fullmatch, self._directory.names(".json", below=False))
        return max((int(match[1]) for match in found if match is not None), default=0)

    def _name(self, version: int) -> str:
        return f"manifest-{version:08}.json"


class Overtaken(ServiceError):
    """Another process goes on with the same run or target."""

    exit_code = ExitCode.NOT_ALL_COMMITTED

    @classmethod
    def of(cls, place: Directory) -> Overtaken:
        return cls(
            f"another process goes on with {place.url}: two at once, or this one was taken for dead and replaced. This "
            f"one ends, and nothing that it did since it last saved its progress counts; let the other finish"
        )


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"{url} cannot be used: {' '.join(str(error).split())}; see {_NAMED_BY}") from error
    except pa.ArrowNotImplementedError as error:
        # Object stores are not asked to: there files are put under their own names.
        raise ConfigError(f"{url} cannot be used, as files are renamed there: {error}; name another place") from error
