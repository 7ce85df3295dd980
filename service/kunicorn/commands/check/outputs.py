"""Findings of `kunicorn check` about encoded outputs: whether their encoders can be had, and what the schema registry
has for each topic that the settings name.

The user's code (schemas, messages' classes) is loaded in a child process, as the handler is. Nothing is registered.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import msgspec

from kunicorn.clients.config import encoding_of
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.trial import calling, log_format, run
from kunicorn.errors import ExitCode, HandlerLoadError
from kunicorn.handler.config import Encoding
from kunicorn.handler.encode import NotEncodableYet, Unencodable
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.observe import prints
from kunicorn.settings import Settings


class _Told(msgspec.Struct):
    """One line of the child's answer."""

    text: str
    failed: bool = False
    passes: bool = False


def output_findings(settings: Settings) -> Iterator[Finding]:
    """Findings; none where outputs are bytes. Blocks. Raises `ConfigError` for the registry's password."""
    if (encoding := encoding_of(settings)) is None:
        return
    order = msgspec.json.encode((encoding, settings.producing.topic))
    ended = run(calling(__name__, "main"), log_format(settings), order, settings.workers.start_timeout_ms / 1000)
    try:
        lines = msgspec.json.decode(ended.said, type=list[_Told])
    except msgspec.DecodeError:
        lines = [_Told(f"the encoders of outputs ended the process that tried them: {ended.said or ended.how}", True)]
    for line in lines:
        yield Finding("outputs", line.text, ExitCode.CONFIGURATION if line.failed else None, passes=line.passes)


def main() -> None:
    """Ask in the child; its answer goes to the descriptor that is the second argument. Leaves by `_exit`."""
    prints.take_over_as_text(sys.argv[3])
    encoding, topic = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[Encoding, str | None])
    try:
        found = list(_told(Encoder(encoding, topic)))
    except HandlerLoadError as error:
        found = [_Told(str(error), failed=True)]
    os.write(int(sys.argv[2]), msgspec.json.encode(found or [_Told("encoders can be loaded")]))
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(ExitCode.CLEAN)


def _told(encoder: Encoder) -> Iterator[_Told]:
    for topic, maker in encoder.topics().items():
        try:
            yield from map(_Told, maker.verified(topic))
        except NotEncodableYet as error:
            yield _Told(f"{topic}: {error}; records would wait", failed=True, passes=True)
        except Unencodable as error:
            yield _Told(str(error), failed=True)
