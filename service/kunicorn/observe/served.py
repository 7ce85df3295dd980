"""Every metric that the service serves."""

from __future__ import annotations

from kunicorn.observe import catalogue, group_catalogue
from kunicorn.observe.catalogue import Declared


def every() -> list[Declared]:
    """All declarations, in the order in which docs/metrics.md has them."""
    modules = (catalogue, group_catalogue)
    return [value for module in modules for value in vars(module).values() if isinstance(value, Declared)]
