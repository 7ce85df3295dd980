"""The compiled decoder, for tests that want it: whoever cannot build it has all the others."""

from __future__ import annotations

from types import ModuleType

import pytest


def compiled() -> ModuleType:
    """`kunicorn_columns`. Skips the caller where it is not built; `.ci/run` builds it first, and fails where that
    cannot be done."""
    module = pytest.importorskip("kunicorn_columns", reason="not built: install Rust (https://rustup.rs), `make venv`")
    assert isinstance(module, ModuleType)
    return module
