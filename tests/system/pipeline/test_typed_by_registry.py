"""Values that a schema registry's schemas decode become columns of structs, the same in each way a job reads: export,
a query and a stream of the data source, on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from kunicorn.pipeline.lake.files import NO_DATE
from kunicorn.pipeline.spark import JobFailed, open_session
from kunicorn.settings import load
from tests.contract.decoding.shop_schemas import AVRO, SCHEMAS, SHOP_ORDER, ShopOrder, avro, framed
from tests.fakes.schema_registry import registry
from tests.system.pipeline.desk import MASTER, Desk, lake_rows, send_values

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "region", "type": "string"}]}
FIRST_MESSAGE = b"\0"
"""Of the schema's file, as Confluent's wire format names the message behind the schema's id."""


class Written(NamedTuple):
    """Values as producers write them, and the columns that they are to become."""

    value: str
    schema: str
    values: Sequence[bytes | None]
    rows: Sequence[dict[str, Any] | None]
    field: str | None = None
    """Column by whose values an export has directories."""


def shop_order(by: str) -> bytes:
    return framed(3, FIRST_MESSAGE + ShopOrder(by=by).SerializeToString())


WRITTEN = {
    "avro": Written(
        "avro",
        "AVRO_ORDER",
        [
            framed(1, avro({"id": 1, "by": "Ann"})),
            None,
            framed(4, avro({"id": 2, "by": "Bo", "region": "eu"}, WIDER)),
        ],
        [{"id": 1, "customer": "Ann", "region": "nowhere"}, None, {"id": 2, "customer": "Bo", "region": "eu"}],
        "region",
    ),
    "protobuf": Written(
        SHOP_ORDER,
        "SHOP_ORDER",
        [shop_order("Ann"), None, shop_order("")],
        [{"by": "Ann"}, None, {"by": ""}],
    ),
}


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[str]:
    """Address of the registry that has them all."""
    schemas = tmp_path / "schemas.json"
    schemas.write_text(json.dumps({**SCHEMAS, "4": {"schema": json.dumps(WIDER)}}))
    with registry(schemas) as url:
        yield url


@pytest.fixture(params=list(WRITTEN))
def written(request: pytest.FixtureRequest) -> Written:
    return WRITTEN[request.param]


@pytest.fixture
def desk(written: Written, registered: str, desk_of: Callable[..., Desk]) -> Desk:
    """The values on one partition."""
    made = desk_of(1, {"handler": {"value": written.value}, "schema_registry": {"url": registered}})
    send_values(made, written.values)
    return made


def named(written: Written) -> str:
    """As options name the schema."""
    return f"tests.system.pipeline.typed:{written.schema}"


def test_an_export_has_the_columns_and_ends_at_a_value_of_an_unknown_schema(desk: Desk, written: Written) -> None:
    lake = desk.directory / "lake"
    by = ("--partition-by", f"value.{written.field}") if written.field else ()
    command = ("export", str(lake), "--master", MASTER, "--columns", named(written), *by)
    desk.said(*command)
    assert values_in(lake) == written.rows
    if written.field is not None:
        values = [NO_DATE if row is None else row[written.field] for row in written.rows]
        assert {each.name for each in lake.glob(f"{written.field}=*")} == {f"{written.field}={each}" for each in values}
    send_values(desk, [framed(9, FIRST_MESSAGE)])
    with pytest.raises(JobFailed, match=rf"{desk.topic}-0@{len(written.rows)}: .*Schema 9 not found"):
        desk.said(*command)
    assert values_in(lake) == written.rows


def values_in(lake: Path) -> list[Any]:
    """By offset."""
    return [value for _, value in lake_rows(lake, "offset", "value")]


def test_a_query_and_a_stream_have_the_columns(desk: Desk, written: Written) -> None:
    spark = open_session(load(desk.config, {}), MASTER, "typed")
    try:
        given = {"config": str(desk.config), "valueSchema": named(written), "startingOffsets": "earliest"}
        batch = spark.read.format("kunicorn").options(**given).load()
        assert values_of(batch) == written.rows
        assert values_of(streamed(spark, given, desk.directory / "checkpoint")) == written.rows
    finally:
        spark.stop()


def streamed(spark: SparkSession, given: dict[str, str], checkpoint: Path) -> Any:
    """What a stream gives up to now."""
    stream = spark.readStream.format("kunicorn").options(**given).load()
    sink = stream.writeStream.format("memory").queryName("streamed").option("checkpointLocation", str(checkpoint))
    query = sink.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return spark.table("streamed")


def values_of(frame: Any) -> list[Any]:
    """By offset."""
    rows = frame.select("offset", "value").orderBy("offset").collect()
    return [None if row.value is None else row.value.asDict() for row in rows]
