"""Prints the rows of an Iceberg table as Spark reads them: `python -m … DIRECTORY NAME JARS…`. A process of its own, as
its Spark is another one.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

directory, name, *jars = sys.argv[1:]
catalog = "spark.sql.catalog.test"
builder = SparkSession.builder.master("local[1]")
for key, value in {
    "spark.jars": ",".join(jars),
    "spark.driver.extraClassPath": ":".join(jars),
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    catalog: "org.apache.iceberg.spark.SparkCatalog",
    f"{catalog}.type": "jdbc",
    f"{catalog}.uri": f"jdbc:sqlite:{directory}/catalog.db",
    f"{catalog}.warehouse": f"file://{directory}/warehouse",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = spark.sql(
    "select cast(substr(cast(key as string), 2) as int) as number, to_json(value, map('ignoreNullFields', 'false')) as "
    "value, offset, unix_micros(timestamp) as micros, "
    "array_join(transform(headers, each -> concat(each.key, '=', cast(each.value as string))), ',') as headers "
    f"from test.{name} order by number"
).collect()
print(json.dumps([{**row.asDict(), "value": row["value"] and json.loads(row["value"])} for row in rows]))
