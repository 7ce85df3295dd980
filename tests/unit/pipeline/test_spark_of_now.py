"""Which Spark a job can run on is said before it begins."""

from __future__ import annotations

import pyspark
import pytest

from kunicorn.errors import ConfigError
from kunicorn.pipeline.spark import check_installed, check_source, has_source


def test_a_spark_that_is_too_old_for_any_job_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.4.4")
    with pytest.raises(ConfigError, match=r"PySpark is 3\.4\.4, and jobs need Spark 3\.5 or later"):
        check_installed()


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.1.4"])
def test_who_needs_the_source_says_so_where_spark_has_no_interface_for_it(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    check_installed()
    assert not has_source()
    with pytest.raises(ConfigError, match=f"a stream needs Spark 4.2 or later, and PySpark is {version}: backfill"):
        check_source("a stream")


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0.dev1", "4.10.0"])
def test_a_newer_one_is_no_older_one(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    check_installed()
    check_source("a stream")
