"""Whether the handler can be loaded."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from kunicorn.check import children
from kunicorn.check.findings import Finding
from kunicorn.errors import ExitCode
from kunicorn.handling.calls import AS_BYTES
from kunicorn.pipes.orders import Decoding

_IMPORT = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
import msgspec
from kunicorn.errors import ServiceError
from kunicorn.handling.calls import arguments_of
from kunicorn.handling.exceptions import find
from kunicorn.handlers import find as find_handler, handler_of
from kunicorn.handling.outputs import refuse_two_committers
from kunicorn.pipes.orders import Decoding
try:
    mode, decoding = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, Decoding])
    delivery = sys.argv[4] or None
    handler = handler_of(sys.argv[3], find_handler(sys.argv[3], yields=delivery is not None))
    arguments_of(handler, mode, decoding)
    refuse_two_committers(handler, delivery)
    for name in sys.argv[5:]:
        find(name)
except ServiceError as error:
    os.write(int(sys.argv[2]), str(error).encode(errors="backslashreplace"))
    os._exit(int(error.exit_code))
os._exit(0)
"""
"""Run by a Python of its own. Leaves by `_exit`: threads that the handler's module started must not keep it."""


def importable(
    entrypoint: str,
    exceptions: Collection[str],
    timeout: float,
    mode: str = "record",
    decoding: Decoding = AS_BYTES,
    *,
    delivery: str | None = None,
) -> Finding:
    """Import the handler, what decodes for it and the exceptions that rules name, in a process of its own. Blocks.

    `delivery`: how what it returns is sent; None: not at all.
    """
    order = msgspec.json.encode((mode, decoding))
    ended = children.run(["-c", _IMPORT], [entrypoint, delivery or "", *exceptions], order, timeout)
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
