"""[pipeline]."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.errors import ConfigError
from kunicorn.settings import Settings
from tests.unit.settings.files import LEAST, loaded


def piped(directory: Path, pipeline: str) -> Settings:
    return loaded(directory, f"{LEAST}[pipeline]\n{pipeline}")


def test_a_stream_mirrors_to_a_group_of_its_own(tmp_path: Path) -> None:
    assert piped(tmp_path, "").stream_group == "orders.stream"
    assert piped(tmp_path, 'stream_group_id = "mine"').stream_group == "mine"


@pytest.mark.parametrize(
    ("pipeline", "why"),
    [
        ("min_partitions = 8", r'pipeline.min_partitions = 8: cuts a Kafka partition .* set ordering = "none"'),
        ('stream_group_id = "orders"', "whose offsets are the live service's; name another group"),
        ('spark = {"spark.speculation" = "true"}', "'spark.speculation' cannot be set here: a range handled by two"),
        ('spark = {"spark.master" = "x"}', "use --master"),
        ('spark = {"executor.memory" = "2g"}', "'executor.memory' is no setting of Spark"),
        ('spark = {"spark.ui.port" = 4040}', "'spark.ui.port' is int; write a text"),
        ('iceberg = {"token" = "x"}', "'token' is a secret, .*environment.*PYICEBERG_CATALOG__DEFAULT__TOKEN, with"),
        ('iceberg = {"s3.secret-access-key" = "x"}', "PYICEBERG_CATALOG__DEFAULT__S3__SECRET_ACCESS_KEY"),
        ('iceberg = {"uri" = "postgresql://me:secret@host/db"}', "'uri' is a secret, or has one in it"),
        ('iceberg = {"uri" = "postgresql://me:se/cret@host/db"}', "'uri' is a secret, or has one in it"),
        ('iceberg = {"uri" = "jdbc:postgresql://me:secret@host/db"}', "'uri' is a secret, or has one in it"),
        ('iceberg = {"uri" = "postgresql://host/db?user=me&password=secret"}', "'uri' is a secret, or has one in it"),
        ('iceberg = {"uri" = "https://host/?sig=secret"}', "'uri' is a secret, or has one in it"),
        ('iceberg = {"header.Authorization" = "Bearer x"}', "'header.Authorization' is a secret, or has one in it"),
        ('iceberg = {"adls.connection-string" = "x"}', "'adls.connection-string' is a secret, or has one in it"),
        ('iceberg = {"rest.sigv4-enabled" = true}', "'rest.sigv4-enabled' is bool; write a text"),
        ("range_seconds = 0", "pipeline.range_seconds = 0"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_remedy(tmp_path: Path, pipeline: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        piped(tmp_path, pipeline)


def test_partitions_may_be_cut_where_order_does_not_matter(tmp_path: Path) -> None:
    assert piped(tmp_path, 'min_partitions = 8\nordering = "none"').pipeline.min_partitions == 8


def test_a_catalog_is_named_by_properties_that_are_no_secrets(tmp_path: Path) -> None:
    told = piped(tmp_path, 'iceberg = {"uri" = "http://me@catalog:8181/a:b@c", "warehouse" = "s3://lake"}').pipeline
    assert (told.iceberg_catalog, told.iceberg["warehouse"]) == ("default", "s3://lake")
    assert piped(tmp_path, 'iceberg = {"uri" = "postgresql://host/db?sslmode=require"}').pipeline.iceberg


def test_of_sparks_settings_none_is_in_the_text_of_the_section(tmp_path: Path) -> None:
    told = piped(tmp_path, 'spark = {"spark.hadoop.fs.s3a.secret.key" = "hunter2"}').pipeline
    assert "hunter2" not in f"{told!r} {told}"
