"""A handler whose module takes three seconds to import, or as many as told, as one that loads a model does."""

from __future__ import annotations

import os
import time

from tests.system.handlers.marked import handle

__all__ = ["handle"]

time.sleep(float(os.environ.get("IMPORT_SECONDS", "3")))
