"""A handler whose module takes three seconds to import, as one that loads a model does."""

from __future__ import annotations

import time

from tests.system.handlers.marked import handle

__all__ = ["handle"]

time.sleep(3)
