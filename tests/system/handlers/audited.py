"""The demo's handlers, found where those of the tests are."""

from __future__ import annotations

from kunicorn.commands.demo.audit import handle, handle_async, handle_batch

__all__ = ["handle", "handle_async", "handle_batch"]
