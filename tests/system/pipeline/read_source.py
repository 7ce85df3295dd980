"""Reads the data source `kunicorn` by the PySpark of this process, and prints what it gave: for tests of versions.

python -m tests.system.pipeline.read_source CONFIG all|filtered|stream|transformed
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kunicorn.handler.columns import RECORD_COLUMNS
from kunicorn.pipeline import transform
from kunicorn.pipeline.spark import open_session
from kunicorn.settings import load


def transformed(spark: Any) -> list[list[Any]]:
    """Places and outcomes of a frame's rows, of which one becomes a letter."""
    rows: list[tuple[Any, ...]] = [
        (None, b"letter" if (number, at) == (1, 100) else b"x", "orders", number, at, datetime.now(UTC), 0, [])
        for number in range(2)
        for at in range(300)
    ]
    frame = spark.createDataFrame(rows, RECORD_COLUMNS)
    outcomes = frame.transform(transform("tests.system.pipeline.handlers:obedient"))
    return sorted([row.partition, row.offset, row.status] for row in outcomes.collect())


def main(config: str, what: str) -> None:
    """Print a line of JSON: the offsets by partition, or the refusal."""
    spark = open_session(load(Path(config), {}), "local[2]", "versions")
    try:
        if what == "stream":
            stream = spark.readStream.format("kunicorn").option("config", config).load()
            query = stream.writeStream.format("noop").option("checkpointLocation", f"{config}.checkpoint").start()
            query.processAllAvailable()
            print(json.dumps("a stream"))
            return
        if what == "transformed":
            print(json.dumps(transformed(spark)))
            return
        frame = spark.read.format("kunicorn").option("config", config)
        if what == "filtered":
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
            frame = frame.option("pushFilters", "true")
        rows = frame.load()
        if what == "filtered":
            rows = rows.where("partition = 1 and offset >= 290")
        found: dict[int, list[int]] = {}
        for row in rows.select("partition", "offset").collect():
            found.setdefault(row.partition, []).append(row.offset)
        print(json.dumps({partition: sorted(offsets) for partition, offsets in found.items()}))
    except Exception as error:  # Spark wraps what a source raises, in each version in its own way.
        print(json.dumps(str(error)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
