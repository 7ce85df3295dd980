"""Manifests and tables in an object store: S3 as a server of its own process speaks it."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from kunicorn.errors import ConfigError
from kunicorn.pipeline.state import Runs, RunState
from kunicorn.pipeline.storage import Directory, Manifest, Overtaken
from tests.object_store import bucket_served
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server writes what it is asked."""
    return tmp_path_factory.mktemp("moto") / "log"


@pytest.fixture(scope="module")
def bucket(log: Path) -> Iterator[str]:
    """The URL of a bucket; Arrow finds server and rights in the environment, as in production."""
    with pytest.MonkeyPatch.context() as environment, bucket_served(log, "runs") as served:
        for name, value in served.items():
            environment.setenv(name, value)
        yield "s3://runs"


def test_a_run_begins_and_is_found_again(bucket: str) -> None:
    runs = Runs(f"{bucket}/pipeline")
    first = runs.start("backfill", "a:b", "[]", RunState(()), "one")
    assert runs.read("one") == first
    assert [each.id for each in runs.all()] == ["one"]


def test_a_table_is_there_whole_or_not_at_all_and_replaced_when_written_again(bucket: str) -> None:
    place, rows = Directory(f"{bucket}/outcomes"), pa.table({"offset": [1, 2]})
    for some in (rows.slice(0, 1), rows):
        with place.writing("orders/0/a.parquet") as file:
            pq.write_table(some, file)
    assert place.names(".parquet") == ["orders/0/a.parquet"]
    assert pa.Table.from_batches(place.batches("orders/0/a.parquet")).equals(rows)
    with pytest.raises(ZeroDivisionError), place.writing("orders/0/b.parquet"):
        1 / 0  # noqa: B018
    assert place.read("orders/0/b.parquet") is None, "a file that was begun is no file"


def test_a_bucket_that_is_not_there_is_an_error_that_names_it(bucket: str) -> None:
    with pytest.raises(ConfigError, match="s3://nowhere/x cannot be used"):
        Directory("s3://nowhere/x").write("a", b"")


def test_of_many_that_put_a_manifest_at_the_same_time_one_does(bucket: str) -> None:
    def put(number: int) -> bool:
        return Directory(f"{bucket}/raced").create("one", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(64))) == 1


def test_of_two_drivers_that_both_saw_no_next_version_the_second_ends(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(f"{bucket}/shared")
    first, second = Manifest(place), Manifest(place)
    assert (first.read(), second.read()) == (None, None)
    # Whoever looked for the file before writing it saw none: the worst moment there is.
    monkeypatch.setattr(Directory, "read", lambda self, name: None)
    first.write({"by": "first"})
    with pytest.raises(Overtaken, match="another process goes on with"):
        second.write({"by": "second"})
    monkeypatch.undo()
    assert second.read()["by"] == "first"


def test_a_put_whose_answer_was_lost_is_this_drivers_and_that_of_another_with_the_same_state_is_not(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, put = Directory(f"{bucket}/unanswered"), obstore.put
    first, second = Manifest(place), Manifest(place)

    def put_again(store: Any, path: str, content: bytes, *, mode: Any) -> Any:
        """As a client whose connection breaks behind the store's work: the second answer says that it exists."""
        put(store, path, content, mode=mode)
        return put(store, path, content, mode=mode)

    monkeypatch.setattr(obstore, "put", put_again)
    for number in range(3):
        first.write({"number": number})
    monkeypatch.undo()
    assert (second.read()["number"], second.read() == first.read()) == (2, True)
    first.write({"number": 3})
    with pytest.raises(Overtaken):
        second.write({"number": 3})


def test_a_store_that_does_not_know_the_condition_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put

    def unconditional(store: Any, path: str, content: bytes, *, mode: str) -> Any:
        return put(store, path, content)

    monkeypatch.setattr(obstore, "put", unconditional)
    with pytest.raises(ConfigError, match="two drivers would not notice each other"):
        Manifest(Directory(f"{bucket}/old")).write({})


def test_a_file_costs_a_store_no_directories_and_no_new_connection(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task writes a file or two: what each costs is paid by thousands."""
    opened: list[str] = []
    from_uri = fs.FileSystem.from_uri

    class Counted:
        @staticmethod
        def from_uri(url: str) -> Any:
            opened.append(url)
            return from_uri(url)

    monkeypatch.setattr(fs, "FileSystem", Counted)
    for number in range(3):
        Directory(f"{bucket}/frugal").write(f"orders/0/{number}.parquet", b"x")
    monkeypatch.undo()
    assert opened == ["s3://runs/frugal"]
    system, _ = from_uri(bucket)
    there = system.get_file_info(fs.FileSelector("runs/frugal/orders", recursive=True))
    assert sorted(each.path for each in there if each.type == fs.FileType.File) == [
        f"runs/frugal/orders/0/{number}.parquet" for number in range(3)
    ]
    named = [f"frugal/orders/0/{number}.parquet" for number in range(3)]
    assert _keys("frugal/") == named, "no empty objects beside them"


def _keys(prefix: str) -> list[str]:
    """Of all objects that begin so."""
    listed = urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/runs?list-type=2&prefix={prefix}", timeout=60)
    return re.findall(r"<Key>([^<]+)</Key>", listed.read().decode())


def _asked(log: Path) -> list[str]:
    """Requests that the server has seen so far: method and path."""
    return re.findall(r'"(?:\x1b\[\d+m)*((?:PUT|GET|HEAD|POST|DELETE) \S+)', log.read_text())


def test_a_file_is_one_request_and_an_export_of_any_size_is_put_in_parts(bucket: str, log: Path) -> None:
    place = Directory(f"{bucket}/counted")
    place.write("first", b"")  # The process's first one asks for the bucket's region.
    before = len(_asked(log))
    rows = pa.table({"offset": list(range(1000))})
    with place.writing("orders/0/a.parquet") as file, pq.ParquetWriter(file, rows.schema) as writer:
        writer.write_table(rows)
    # A client asks again where an answer takes long.
    assert {*_asked(log)[before:]} == {"PUT /runs/counted/orders/0/a.parquet"}
    before, part = len(_asked(log)), os.urandom(8 * 1024 * 1024)
    with place.writing("large") as file:
        for _ in range(3):
            file.write(part)
        assert file.tell() == 3 * len(part)
    found = [each.partition("?")[0].split()[0] for each in {*_asked(log)[before:]}]
    assert sorted(found) == ["POST", "POST", "PUT", "PUT", "PUT"], "begun, parts, ended: no copy of the whole"
    assert place.read("large") == 3 * part


def test_of_a_large_file_that_was_not_finished_nothing_is_left(bucket: str) -> None:
    place = Directory(f"{bucket}/broken")

    def broken_off() -> None:
        with place.writing("large") as file:
            for _ in range(3):
                file.write(bytes(8 * 1024 * 1024))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_off()
    assert place.read("large") is None
    uploads = f"{os.environ['AWS_ENDPOINT_URL']}/runs?uploads"

    def gone() -> bool:
        return b"broken/large" not in urllib.request.urlopen(uploads, timeout=60).read()

    wait_until(gone, "the upload to be given up", every=0.2)


def test_a_file_that_is_removed_leaves_nothing_behind_and_costs_one_request(bucket: str, log: Path) -> None:
    place = Directory(f"{bucket}/removed")
    place.write("orders/0/a.parquet", b"x")
    before = len(_asked(log))
    for _ in range(2):
        place.delete("orders/0/a.parquet")
    assert {*_asked(log)[before:]} == {"POST /runs?delete"}
    assert _keys("removed/") == []
