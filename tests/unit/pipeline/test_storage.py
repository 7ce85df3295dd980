"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from kunicorn.errors import ConfigError
from kunicorn.pipeline.state import Run, Runs, RunState, place
from kunicorn.pipeline.storage import Directory, Manifest, Overtaken
from kunicorn.positions import OffsetRange


def test_a_file_appears_whole_replaces_the_former_and_leaves_nothing_where_writing_fails(tmp_path: Path) -> None:
    place = Directory(str(tmp_path / "a"))
    place.write("x/y.json", b"one")
    place.write("x/y.json", b"two")
    assert place.read("x/y.json") == b"two"
    with pytest.raises(ZeroDivisionError), place.writing("x/y.json") as file:
        file.write(b"thr%d" % (1 // 0))
    assert place.read("x/y.json") == b"two"
    assert [each.name for each in (tmp_path / "a" / "x").iterdir()] == ["y.json"]


@pytest.mark.parametrize("left", [0, 4, -1], ids=["empty", "the first bytes", "all but the last"])
def test_a_parquet_file_that_is_not_whole_is_named(tmp_path: Path, left: int) -> None:
    """As whoever does not write under another name leaves it until it ends; or a disk, whose file is nobody's to remove
    before he knows that an export does not write it again.
    """
    directory, file = Directory(str(tmp_path)), tmp_path / "a.parquet"
    pq.write_table(pa.table({"offset": [1]}), file)
    file.write_bytes(file.read_bytes()[:left])
    for read in (directory.footer, lambda name: list(directory.batches(name))):
        with pytest.raises(
            ConfigError, match=rf"{tmp_path}/a.parquet is no whole Parquet file \(.*\): .*rows are missing"
        ):
            read("a.parquet")


def test_a_parquet_file_that_is_damaged_within_is_named(tmp_path: Path) -> None:
    """Among the thousands of a lake nobody would find it."""
    directory, file = Directory(str(tmp_path)), tmp_path / "a.parquet"
    pq.write_table(pa.table({"offset": range(10_000)}), file, compression="zstd")
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{tmp_path}/a.parquet cannot be used: "):
        list(directory.batches("a.parquet"))


def test_names_that_begin_with_an_underscore_are_no_data(tmp_path: Path) -> None:
    place = Directory(str(tmp_path))
    for name in ("b/2.parquet", "a/1.parquet", "a/_half.parquet", "a/x.txt"):
        place.write(name, b"")
    assert place.names(".parquet") == ["a/1.parquet", "b/2.parquet"]
    assert Directory(str(tmp_path / "nowhere")).names(".parquet") == []


def test_what_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for url in (str(tmp_path / "file"), "nonsense://x/y"):
        with pytest.raises(ConfigError, match=url):
            Directory(url).write("x", b"")
    with pytest.raises(ConfigError, match=r"see pipeline\.directory, or the DIR of the command$"):
        Directory(str(tmp_path / "file")).write("x", b"")


class Flat(LocalFileSystem):  # type: ignore[misc]
    """Renames nothing."""

    def move(self, src: str, dest: str) -> None:
        raise pa.ArrowNotImplementedError("The Azure FileSystem is flat")


def test_a_store_that_renames_nothing_is_refused_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Directory, "_opened", lambda self: (Flat(), self.url))
    with pytest.raises(ConfigError, match="as files are renamed there: The Azure FileSystem is flat"):
        Directory(str(tmp_path)).write("x", b"one")
    assert list(tmp_path.iterdir()) == []


def test_a_url_with_a_password_is_refused_without_being_told() -> None:
    with pytest.raises(ConfigError, match="s3://… has a password in it") as refused:
        Directory("s3://key:geheim@bucket/runs")
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:ge/heim@bucket/runs",
        "s3://KEY:1/geheim@bucket",
        "hdfs://user:geheim@namenode:8020/runs",
        "hdfs://namenode:8020/user:geheim@x",
        "abfss://c@account.dfs.core.windows.net/runs?client_secret=geheim&tenant_id=x",
        "s3://bucket/runs#geheim",
    ],
)
def test_a_secret_in_any_part_of_a_url_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{url.partition('://')[0]}://… has a (password|[?] or a #) in it"
    ) as refused:
        Directory(url)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["abfss://container@account.dfs.core.windows.net/runs", "hdfs://namenode:8020/user/me@corp/runs", "/tmp/a?b#c:d@e"],
)
def test_a_url_without_a_secret_is_a_place(url: str) -> None:
    assert (Directory(url) / "run-1").url == f"{url}/run-1"


def test_a_files_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[bytes, bool]] = []

    def fsync(file: int) -> None:
        content = Path(f"/proc/self/fd/{file}").read_bytes()
        flushed.append((content, any(each.name in ("one", "two") for each in tmp_path.iterdir())))

    monkeypatch.setattr(os, "fsync", fsync)
    Directory(str(tmp_path)).write("one", b"replaced")
    assert flushed == [(b"replaced", False)]
    (tmp_path / "one").unlink()
    Directory(str(tmp_path)).create("two", b"created")
    assert flushed[1:] == [(b"created", False)]


def test_a_manifest_that_a_power_cut_has_emptied_is_told_and_the_others_runs_go_on(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    whole = OffsetRange("orders", 0, 0, 100)
    rated = RunState((whole,), positions={whole.tp: 100}, seconds=2.0)
    runs.save(Run("nightly", "backfill", "a:b", "", rated, ""))
    runs.save(Run("older", "backfill", "a:b", "", rated, ""))
    pace = runs.pace("backfill", "a:b")
    (tmp_path / "nightly" / "manifest-00000002.json").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"nightly/manifest-00000002.json is no JSON .*remove it; of a manifest"):
        runs.read("nightly")
    (tmp_path / "older" / "manifest-00000001.json").write_text('{"run": "older", "kunicorn": "0.1"}')
    runs.save(Run("newer", "backfill", "a:b", "", rated, ""))
    assert [each.id for each in runs.all()] == ["newer"]
    assert runs.pace("backfill", "a:b") == pace == 50.0
    with pytest.raises(ConfigError, match=r"there is no run 'none'.*the latest there: newer"):
        runs.read("none")
    (tmp_path / "nightly" / "manifest-00000002.json").unlink()
    assert runs.read("nightly").state == rated


def test_a_manifest_that_a_later_version_has_laid_out_anew_is_told_and_the_others_runs_go_on(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    state = RunState((OffsetRange("orders", 0, 0, 100),))
    runs.save(Run("nightly", "backfill", "a:b", "", state, ""))
    told = json.loads((tmp_path / "nightly" / "manifest-00000001.json").read_text())
    (tmp_path / "later").mkdir()
    for name, other in (("positions", []), ("positions", {"orders": [5]}), ("topics", 7), ("ranges", 7)):
        laid_out = told | {"run": "later", "kunicorn": "9.1.0", name: other}
        (tmp_path / "later" / "manifest-00000001.json").write_text(json.dumps(laid_out))
        with pytest.raises(ConfigError, match=r"is no manifest of kunicorn .*: finish it with kunicorn 9\.1\.0"):
            runs.read("later")
        assert [each.id for each in runs.all()] == ["nightly"]


def test_a_stream_is_its_handlers_and_groups_and_shares_no_name_with_a_run(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    runs.start("backfill", "a:b", "", RunState(()), "nightly")
    with pytest.raises(ConfigError, match="there is a run 'nightly'"):
        runs.enter_stream("nightly", "a:b", "orders.stream")
    assert not (tmp_path / "nightly" / "stream.json").exists()

    place = runs.enter_stream("stream", "a:b", "orders.stream")
    assert runs.enter_stream("stream", "a:b", "orders.stream") == place == Directory(f"{tmp_path}/stream")
    for what, group in (("c:d", "orders.stream"), ("a:b", "payments.stream")):
        with pytest.raises(ConfigError, match=r"is of a:b in group 'orders.stream', and these .*remove stream/stream"):
            runs.enter_stream("stream", what, group)
    with pytest.raises(ConfigError, match="there is a stream 'stream'"):
        runs.start("backfill", "a:b", "", RunState(()), "stream")
    assert [each.id for each in runs.all()] == ["nightly"]


@pytest.mark.parametrize("links", [True, False])
def test_of_two_that_go_on_with_a_manifest_the_one_that_comes_second_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    first, second = Manifest(Directory(str(tmp_path))), Manifest(Directory(str(tmp_path)))
    assert (first.read(), second.read()) == (None, None)
    first.write({"by": "first"})
    with pytest.raises(Overtaken, match="another process goes on with"):
        second.write({"by": "second"})
    assert second.read()["by"] == "first"
    for number in range(5):
        second.write({"by": "second", "number": number})
    with pytest.raises(Overtaken):
        first.check()
    with pytest.raises(Overtaken):
        # Its next version is gone by now, as newer ones are there.
        first.write({"by": "first, late"})
    second.check()
    third = Manifest(Directory(str(tmp_path)))
    assert third.read()["number"] == 4
    assert [each.name for each in sorted(tmp_path.iterdir())] == [f"manifest-{number:08}.json" for number in (2, 5, 6)]


def test_a_manifest_that_moves_on_while_it_is_read_is_read_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for none at all, the job would begin anew."""
    place = Directory(str(tmp_path))
    writer, reader = Manifest(place), Manifest(place)
    writer.write({"number": 0})
    list_names, numbers = Directory.names, iter(range(1, 4))

    def names(self: Directory, *arguments: Any, **named: Any) -> list[str]:
        found = list_names(self, *arguments, **named)
        monkeypatch.setattr(Directory, "names", list_names)
        for number in numbers:
            writer.write({"number": number})
        return found

    monkeypatch.setattr(Directory, "names", names)
    assert reader.read()["number"] == 3
    reader.write({"number": 4})


def test_a_file_that_is_deleted_between_two_looks_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As old versions of a manifest are, while another process reads them."""
    place = Directory(str(tmp_path))
    place.write("one", b"1")
    exists = Directory._exists

    def exists_no_more(self: Directory, name: str) -> bool:
        found = exists(self, name)
        self.delete(name)
        return found

    monkeypatch.setattr(Directory, "_exists", exists_no_more)
    assert place.read("one") is None


def test_a_manifest_is_put_once_by_many_at_the_same_time(tmp_path: Path) -> None:
    def put(number: int) -> bool:
        return Directory(str(tmp_path)).create("one", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(64))) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["one"]


def test_a_manifest_whose_link_was_asked_for_twice_is_this_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered_once_more(source: Path, target: Path, link: Callable[[Path, Path], None] = os.link) -> None:
        link(source, target)
        raise FileExistsError

    monkeypatch.setattr(os, "link", answered_once_more)
    assert Directory(str(tmp_path)).create("one", b"mine")
    assert [each.name for each in tmp_path.iterdir()] == ["one"]
    assert not Directory(str(tmp_path)).create("one", b"another's")
    assert (tmp_path / "one").read_bytes() == b"mine"


def test_runs_are_found_by_their_ids_and_an_id_is_taken_once(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path))
    first = runs.start("backfill", "a:b", "[]", RunState(()), "one")
    assert runs.read("one") == first
    assert [each.id for each in runs.all()] == ["one"]
    with pytest.raises(ConfigError, match="there is a run 'one' already; go on with it by --resume, or choose"):
        runs.start("backfill", "a:b", "[]", RunState(()), "one")
    with pytest.raises(ConfigError, match="there is a run 'one' already; choose another id"):
        runs.start("catch-up", "a:b", "", RunState(()), "one")
    with pytest.raises(ConfigError, match=r"there is no run 'two' in .*; the latest there: one"):
        runs.read("two")
    with pytest.raises(ConfigError, match=r"'\.\./x' is no id of a run"):
        runs.read("../x")
    (tmp_path / "one" / "manifest-00000002.json").write_text('{"kunicorn": "0.1.7"}')
    finish = (
        r"no manifest of kunicorn .*: finish it with kunicorn 0\.1\.7 that wrote it, or begin anew under another name"
    )
    with pytest.raises(ConfigError, match=finish):
        runs.read("one")


@pytest.mark.parametrize("prefix", ["file://", "file:", "file://localhost"])
def test_a_file_url_is_the_directory_that_it_names(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "of us").mkdir()
    directory = Directory(f"{prefix}{tmp_path}/of%20us")
    assert directory == Directory(str(tmp_path / "of us"))
    assert directory.is_local, "so that of two drivers one alone writes a manifest"
    assert [directory.create("a.json", b"1"), directory.create("a.json", b"2")] == [True, False]
    assert (tmp_path / "of us" / "a.json").read_bytes() == b"1"


def test_what_a_job_writes_under_a_file_url_is_in_the_directory_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    Runs(f"file://{tmp_path}/runs").start("backfill", "app:handle", "", RunState(()), "one")
    assert "one" in Runs(str(tmp_path / "runs")), "a driver that names the directory by its path finds the run"
    assert place(f"file://{tmp_path}/lake") == Directory(str(tmp_path / "lake"))
    assert place("lake") == Directory(str(tmp_path / "working" / "lake"))
    assert list((tmp_path / "working").iterdir()) == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("gcs://lake/orders", "gs://"),
        ("file://runs/orders", "file:///data/runs"),
        ("file:runs", "file:///data/runs"),
        ("file:///runs?a=b", "file:///data/runs"),
    ],
)
def test_a_url_to_which_nothing_can_be_written_is_refused_before_anything_is_handled(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Directory(url)
