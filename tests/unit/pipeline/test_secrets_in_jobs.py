"""What travels to Spark holds no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.accumulators import INT_ACCUMULATOR_PARAM, Accumulator

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline.export import ExportRanges
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.plan import bounds_of
from kunicorn.pipeline.source import KunicornReader, SourceOptions
from kunicorn.pipeline.spark import spark_settings
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.stream_source import KunicornStreamReader
from kunicorn.pipeline.tasks.executor_process import CheckExecutor, SettingsFile, fingerprint, settings_file
from kunicorn.pipeline.tasks.ranges import FromRows, HandleRanges
from kunicorn.settings import load
from tests.unit.pipeline.secured_config import CONFIG, SECRET


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_neither_closures_nor_partitions_nor_sparks_settings_have_one(config: Path) -> None:
    settings = load(config, {})
    file = settings_file(config, settings)
    assert file.settings().kafka.secret("sasl_password") == SECRET
    place = Directory("/tmp/x")
    through = Accumulator(0, 0, INT_ACCUMULATOR_PARAM)
    options = SourceOptions.of({"config": str(config)})
    everything = [
        FromRows(HandleRanges(file, place), through),
        ExportRanges(file, place, Form(), SCHEMA, {}),
        ExportRanges(file, place, Form(iceberg="shop.orders"), SCHEMA, {}),
        CheckExecutor(file, place, "x", True),
        KunicornReader(options, bounds_of({}, batch=True)),
        KunicornStreamReader(options, bounds_of({}, batch=False)),
        spark_settings(settings.pipeline, "local[*]", "run"),
    ]
    for each in everything:
        assert SECRET.encode() not in cloudpickle.dumps(each)  # type: ignore[no-untyped-call]
        assert SECRET not in repr(each)


def test_executors_with_other_settings_than_the_drivers_refuse_to_work(config: Path) -> None:
    driver = settings_file(config, load(config, {}))
    config.write_text(CONFIG.replace('topics = ["orders"]', 'topics = ["refunds"]'))
    with pytest.raises(ConfigError, match="are not the driver's"):
        driver.settings()
    with pytest.raises(ConfigError, match=r"(?s)where Spark runs a task: there is no file.*same path"):
        SettingsFile(str(config.with_name("missing.toml")), "x").settings()


def test_an_archive_that_lies_elsewhere_on_each_machine_has_the_settings_under_the_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path("environment") / "config.toml"
    for machine in ("driver", "executor", "bare"):
        (tmp_path / machine / "environment").mkdir(parents=True)
    for machine in ("driver", "executor"):
        (tmp_path / machine / place).write_text(CONFIG)
    monkeypatch.chdir(tmp_path / "driver")
    file = settings_file(place, load(place, {}))
    (tmp_path / "driver" / place).unlink()
    monkeypatch.chdir(tmp_path / "bare")
    with pytest.raises(ConfigError, match=rf"(?s)there is no file {file.path}.*in an archive"):
        file.settings()
    monkeypatch.chdir(tmp_path / "executor")
    assert file.settings().kafka.secret("sasl_password") == SECRET


def test_a_relative_path_is_the_drivers_own_place_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, topic in (("driver", "orders"), ("executor", "refunds")):
        (tmp_path / machine).mkdir()
        (tmp_path / machine / "config.toml").write_text(CONFIG.replace('"orders"', f'"{topic}"'))
    monkeypatch.chdir(tmp_path / "driver")
    file = settings_file(Path("config.toml"), load(Path("config.toml"), {}))
    monkeypatch.chdir(tmp_path / "executor")
    assert file.settings().group.topics == ("orders",)


def test_a_rotated_password_is_no_other_settings(config: Path) -> None:
    before = fingerprint(load(config, {}))
    config.write_text(CONFIG.replace(SECRET, "another"))
    assert fingerprint(load(config, {})) == before


def test_executors_may_have_racks_and_names_of_their_own(config: Path) -> None:
    before = fingerprint(load(config, {}))
    there = {"KUNICORN_KAFKA__CLIENT_RACK": "zone-b", "KUNICORN_KAFKA__CLIENT_ID": "node-7"}
    assert fingerprint(load(config, there)) == before
    assert fingerprint(load(config, {"KUNICORN_KAFKA__ISOLATION_LEVEL": "read_committed"})) != before
