"""A client of Spark Connect, as a process of its own: a connected session and a classic one do not share a process.

`python -m tests.system.pipeline.connected CONFIG DIRECTORY`, with SPARK_REMOTE; prints what it got as JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from kunicorn import Record
from kunicorn.pipeline import KunicornDataSource, transform

_FRUIT = {"b": "banana", "c": "cherry"}
"""What the function below refers to; travels with it."""
_SECONDS = 120


def fruit(record: Record) -> None:
    """A handler of the client's own, which the server cannot import."""
    if record.value is None or record.value.decode() not in _FRUIT:
        raise LookupError("no fruit")


def main(config: str, directory: str) -> None:
    """Read, transform, stream; each by the format's name alone."""
    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(KunicornDataSource)
    records = spark.read.format("kunicorn").option("config", config).load()
    outcomes = records.transform(transform("tests.system.pipeline.handlers:obedient"))
    ours = records.transform(transform(fruit))
    stream = spark.readStream.format("kunicorn").option("config", config).option("startingOffsets", "earliest").load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", f"{directory}/lake")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(_SECONDS), query.lastProgress
    told = {
        "client": type(spark).__module__,
        "records": [[row.partition, row.offset, row.value.decode()] for row in records.collect()],
        "outcomes": [[r.partition, r.offset, r.until, r.status, r.error_type] for r in outcomes.collect()],
        "ours": [[r.partition, r.offset, r.until, r.status, r.error_type] for r in ours.collect()],
        "streamed": [[r.partition, r.offset] for r in spark.read.parquet(f"{directory}/lake").collect()],
    }
    print(json.dumps({name: sorted(rows) if isinstance(rows, list) else rows for name, rows in told.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
