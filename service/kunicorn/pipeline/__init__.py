"""The same handler on Spark, over ranges of offsets: see docs/pipeline.md.

`transform` fits `DataFrame.transform`; `KunicornDataSource` is the data source `kunicorn`; `kunicorn pipeline` runs the
jobs. Each name is loaded when it is asked for: the command line needs neither Arrow nor Spark for its help.
"""

from typing import TYPE_CHECKING

__all__ = ["KunicornDataSource", "transform"]

if TYPE_CHECKING:
    from kunicorn.pipeline.dataframe import transform
    from kunicorn.pipeline.source import KunicornDataSource
else:
    # Type checkers do not see `__getattr__`: with it they would believe every name.
    _MODULES = {
        "KunicornDataSource": "kunicorn.pipeline.source",
        "transform": "kunicorn.pipeline.dataframe",
    }

    def __getattr__(name):
        """A public name, from the module that defines it. Raises `AttributeError` that lists them for any other."""
        if name not in _MODULES:
            raise AttributeError(f"module 'kunicorn.pipeline' has no attribute {name!r}; it has {', '.join(__all__)}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
