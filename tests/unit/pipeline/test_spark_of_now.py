"""Which Spark a job can run on is said before it begins."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark
import pytest

from kunicorn.errors import ConfigError
from kunicorn.pipeline import spark
from kunicorn.pipeline.spark import check_filters, check_installed, check_source, check_streams, has_source
from tests.system.pipeline.versions import VERSIONS


def test_a_spark_that_is_too_old_for_any_job_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.4.4")
    with pytest.raises(ConfigError, match=r"PySpark is 3\.4\.4, and jobs need Spark 3\.5 or later"):
        check_installed()


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("3.5.9", ["4.0", "4.1", "4.2"]),
        ("4.0.5", ["4.1", "4.2"]),
        ("4.1.4", ["4.2"]),
        ("4.2.0", []),
        ("4.3.0.dev1", []),
        ("4.10.0", []),
    ],
)
def test_who_needs_a_newer_interface_of_sparks_says_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, version: str, refused: list[str]
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    check_installed()
    assert has_source() == ("4.0" not in refused)
    for check, needs in ((check_source, "4.0"), (check_filters, "4.1"), (check_streams, "4.2")):
        if needs not in refused:
            check("a stream")
            continue
        told = f"a stream needs Spark {needs} or later, and PySpark is {version}: backfill"
        with pytest.raises(ConfigError, match=re.escape(told)):
            check("a stream")


def test_the_page_has_the_versions_that_the_code_asks_for_and_those_that_tests_run() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
    (_, section), *_ = re.findall(r"## (Versions of Spark)\n(.*?)\n## ", page, re.DOTALL)
    asked = [spark._OLDEST, spark._WITH_SOURCE, spark._WITH_FILTERS, spark._WITH_STREAMS]
    named = re.findall(r"^\| ([\d.]+) and later \|", section, re.MULTILINE)
    assert named == [".".join(map(str, version)) for version in asked]
    assert set(re.findall(r"\b\d\.\d\.\d\b", section)) == set(VERSIONS)
