"""A handler whose module starts a thread when it is imported, as many a client library does."""

from __future__ import annotations

import threading

from tests.system.handlers.marked import handle

__all__ = ["handle"]

threading.Thread(target=threading.Event().wait, daemon=True, name="started-by-an-import").start()
