"""Handlers that a test gives as objects, under entry points `kunicorn.testing.given:<name>`. Small, and a module of its
own, as these names are its attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def entrypoint_of(handler: str | Callable[..., Any]) -> Iterator[str]:
    """Entry point of the handler; that of an object is valid inside the block."""
    if isinstance(handler, str):
        yield handler
        return
    name = getattr(handler, "__name__", type(handler).__name__)
    name = name if name.isidentifier() and name not in globals() else "handler"
    module = sys.modules[__name__]
    setattr(module, name, handler)
    try:
        yield f"{__name__}:{name}"
    finally:
        delattr(module, name)
