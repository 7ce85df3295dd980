"""Whether the schema registry answers, and lets us in."""

from __future__ import annotations

from collections.abc import Iterator

from kunicorn.check.findings import Finding
from kunicorn.clients import decoding_of
from kunicorn.errors import ExitCode, HandlerLoadError
from kunicorn.settings import Settings


def findings(settings: Settings) -> Iterator[Finding]:
    """None where no registry is set. Blocks up to schema_registry.timeout_ms. Raises `ConfigError` for the password."""
    url = settings.schema_registry.url
    if url is None:
        return
    from kunicorn.decoding.registry import why_silent

    try:
        why = why_silent(decoding_of(settings, settings.handler).schema_registry)
    except HandlerLoadError as error:
        yield Finding("registry", str(error), ExitCode.CONFIGURATION)
        return
    if why is None:
        yield Finding("registry", f"{url} answers")
    else:
        remedy = "correct [schema_registry], or start it; records would wait"
        yield Finding("registry", f"{url} cannot be asked: {why}; {remedy}", ExitCode.CONFIGURATION)
