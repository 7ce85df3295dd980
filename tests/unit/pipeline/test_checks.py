"""What is looked at in executors before the first record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from kunicorn.errors import ConfigError
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import CheckExecutor, SettingsFile, settings_file
from kunicorn.settings import load
from tests.unit.pipeline.secured_config import CONFIG

NOTHING = pa.RecordBatch.from_pydict({"id": [0]})


@pytest.fixture
def file(tmp_path: Path) -> SettingsFile:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("shop.handlers:handle", "kunicorn.commands.demo.audit:handle"))
    return settings_file(path, load(path, {}))


def problems(check: CheckExecutor) -> list[tuple[str, bool]]:
    return [(row["problem"], row["handler"]) for batch in check(iter([NOTHING])) for row in batch.to_pylist()]


def test_an_executor_that_has_everything_says_nothing(file: SettingsFile, tmp_path: Path) -> None:
    place = Directory(str(tmp_path / "runs"))
    place.write("_probe", b"")
    assert problems(CheckExecutor(file, place, "_probe", handler=True)) == []


def test_a_directory_that_is_not_shared_is_named_with_the_remedy(file: SettingsFile, tmp_path: Path) -> None:
    ((why, is_handlers),) = problems(CheckExecutor(file, Directory(str(tmp_path / "runs")), "_probe", handler=True))
    assert not is_handlers
    assert f"does not see {tmp_path}/runs as the driver does: name a volume that all of them have" in why
    assert why.endswith("in pipeline.directory, or as the DIR of an export"), "whose files have a place of their own"


def test_a_handler_that_is_not_there_is_the_handlers_problem(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    file, place = settings_file(path, load(path, {})), Directory(str(tmp_path))
    place.write("_probe", b"")
    ((why, is_handlers),) = problems(CheckExecutor(file, place, "_probe", handler=True))
    assert ("there is no module 'shop'" in why, is_handlers) == (True, True)
    assert problems(CheckExecutor(file, place, "_probe", handler=False)) == [], "an export needs none"


def test_an_executor_with_another_version_is_refused_before_it_handles_a_record(
    file: SettingsFile, tmp_path: Path
) -> None:
    place = Directory(str(tmp_path / "runs"))
    place.write("_probe", b"")
    other = replace(file, versions="kunicorn 0.1 with librdkafka 1.0")
    ((why, is_handlers),) = problems(CheckExecutor(other, place, "_probe", handler=True))
    assert ("and the driver has kunicorn 0.1 with librdkafka 1.0: install the same on both" in why) > is_handlers
    with pytest.raises(ConfigError, match="install the same on both"):
        other.settings()


@pytest.mark.parametrize("delivery", ["at_least_once", "transactions"])
def test_settings_that_send_what_a_handler_yields_are_refused_but_where_no_handler_is_called(
    delivery: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'{CONFIG}[producing]\ndelivery = "{delivery}"\ntopic = "shipments"\n')
    file, place = settings_file(path, load(path, {})), Directory(str(tmp_path))
    place.write("_probe", b"")
    ((why, is_handlers),) = problems(CheckExecutor(file, place, "_probe", handler=True))
    assert f'producing.delivery = "{delivery}", but jobs on Spark send nothing' in why
    assert not is_handlers, "the settings are wrong, not the handler"
    assert problems(CheckExecutor(file, place, "_probe", handler=False)) == []
