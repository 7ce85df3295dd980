"""The optional module `kunicorn.observe.otlp`, loaded only where [otlp] is on. Small, as whoever has not installed the
extra loads this alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from kunicorn.errors import ConfigError
from kunicorn.handler.extras import install_extra


def otlp_module() -> Any:
    """`kunicorn.observe.otlp`. Blocks for the imports. Raises `ConfigError` where a package is missing."""
    try:
        return importlib.import_module("kunicorn.observe.otlp")
    except ImportError as error:
        raise ConfigError(
            f"otlp.enabled = true needs OpenTelemetry's exporter ({error}): {install_extra('otlp')}"
        ) from error
