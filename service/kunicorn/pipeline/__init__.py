"""The handler on Spark, over ranges of offsets (docs/pipeline.md): `kunicorn pipeline` runs jobs, `transform` fits
`DataFrame.transform`, `KunicornDataSource` is the data source `kunicorn`.

Each name is loaded when it is asked for: the command line needs neither Arrow nor Spark for its help.
"""

from typing import TYPE_CHECKING

__all__ = ["KunicornDataSource", "transform"]

DEFAULT_MASTER = "local[*]"
"""`--master` of the commands where none is named. Here, as a declaration of a command loads it."""

if TYPE_CHECKING:
    from kunicorn.pipeline.dataframe import transform
    from kunicorn.pipeline.source import KunicornDataSource
else:
    from kunicorn import _on_demand

    _MODULES = {
        "KunicornDataSource": "kunicorn.pipeline.source",
        "transform": "kunicorn.pipeline.dataframe",
    }
    # Type checkers do not see `__getattr__`: with it they would believe every name.
    __getattr__, __dir__ = _on_demand(globals(), __all__, _MODULES)
