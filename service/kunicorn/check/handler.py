"""Whether the handler can be loaded."""

from __future__ import annotations

from collections.abc import Collection

from kunicorn.check import children
from kunicorn.check.findings import Finding
from kunicorn.errors import ExitCode

_IMPORT = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from kunicorn.errors import ServiceError
from kunicorn.handling.exceptions import find
from kunicorn.handlers import find as find_handler
try:
    find_handler(sys.argv[3])
    for name in sys.argv[4:]:
        find(name)
except ServiceError as error:
    os.write(int(sys.argv[2]), str(error).encode(errors="backslashreplace"))
    os._exit(int(error.exit_code))
os._exit(0)
"""
"""Run by a Python of its own. Leaves by `_exit`: threads that the handler's module started must not keep it."""


def importable(entrypoint: str, exceptions: Collection[str], timeout: float) -> Finding:
    """Import the handler, and the exceptions that rules name, in a process of its own. Blocks."""
    ended = children.run(["-c", _IMPORT], [entrypoint, *exceptions], b"", timeout)
    if ended.code is None:
        return no_handler(
            f"importing {entrypoint!r} took more than {timeout:g} s; do slow work in setup(), not at import"
        )
    if ended.code == 0:
        return Finding("handler", f"{entrypoint} can be imported and called")
    if ended.code == ExitCode.CONFIGURATION and ended.said:
        return Finding("handler", ended.said, ExitCode.CONFIGURATION)
    return no_handler(ended.said or f"importing {entrypoint!r} ended the process: {ended.how}")


def no_handler(text: str) -> Finding:
    """The handler cannot do its work."""
    return Finding("handler", text, ExitCode.HANDLER)
