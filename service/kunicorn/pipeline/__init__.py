"""The same handler on Spark, over ranges of offsets: see docs/pipeline.md.

`transform` fits `DataFrame.transform`; `kunicorn.pipeline.source.KunicornDataSource` is the data source `kunicorn`;
`kunicorn pipeline` runs the jobs.
"""

from typing import Any

__all__ = ["transform"]


def __getattr__(name: str) -> Any:
    """`transform`, imported when it is asked for: the command line needs no Arrow for its help."""
    if name == "transform":
        from kunicorn.pipeline.transforming import transform

        return transform
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
