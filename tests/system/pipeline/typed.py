"""Schemas by which values become columns."""

import pyarrow as pa

ORDER = pa.schema([("id", pa.int64()), ("region", pa.string()), ("at", pa.timestamp("us", "UTC"))])
