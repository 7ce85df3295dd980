"""One run of `kunicorn check`: the checks one after the other, a line of each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

from kunicorn import allocator
from kunicorn.clients.config import consumer_properties, decoding_of
from kunicorn.commands.check import cluster
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.trial import importable, tried
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.settings import Settings

IMPORT_TIMEOUT = 60.0
"""Seconds the handler's module may take to import."""


def check(
    settings: Settings,
    say: Callable[[Finding], None],
    import_timeout: float = IMPORT_TIMEOUT,
    records: int = 0,
) -> ExitCode:
    """Run the checks, `say` each finding; the exit code of the first that failed. Blocks for seconds.

    With `records` the handler gets that many of the latest records, if everything else is well.
    """
    worst = ExitCode.CLEAN
    for finding in _findings(settings, import_timeout):
        say(finding)
        if worst is ExitCode.CLEAN and finding.failure is not None:
            worst = finding.failure
    if records and worst is ExitCode.CLEAN:
        finding = tried(settings, records)
        say(finding)
        worst = finding.failure or worst
    return worst


def _findings(settings: Settings, import_timeout: float) -> Iterator[Finding]:
    for warning in settings.kafka.warnings():
        yield Finding("security", warning, warning=True)
    if os.geteuid() == 0:
        yield Finding(
            "user",
            "this process is root, and what a handler can be made to do is done as its user: run the service as one "
            "without rights",
            warning=True,
        )
    for handler in settings.every_handler:
        decoding = decoding_of(settings, handler)
        yield importable(
            handler.entrypoint,
            handler.exception_names,
            import_timeout,
            handler.mode,
            decoding,
            delivery=settings.producing.delivery,
        )
    yield from cluster.registry_findings(settings)
    yield _client(settings)
    yield _allocator(settings)
    with asyncio.Runner() as runner:
        findings = cluster.findings(settings)
        while (finding := runner.run(anext(findings, None))) is not None:
            yield finding


def _allocator(settings: Settings) -> Finding:
    """Finding about the memory allocator of workers."""
    if library := allocator.library_of(settings.workers.allocator, os.environ):
        return Finding("allocator", f"workers allocate memory with {library}")
    if settings.workers.allocator == allocator.SYSTEM or os.environ.get(allocator.PRELOAD):
        return Finding("allocator", "workers allocate memory as this process does")
    return Finding(
        "allocator",
        "workers allocate memory with the C library's malloc: jemalloc would spare them a quarter of the "
        f"processor time that a record's way through the client takes; {allocator.HOW_TO_INSTALL}",
    )


def _client(settings: Settings) -> Finding:
    """Whether librdkafka takes the properties; makes a consumer, which connects to nobody."""
    from confluent_kafka import Consumer, KafkaException

    kafka = settings.kafka
    try:
        properties = consumer_properties(settings, kafka.client_id)
        Consumer({**properties, "log_level": 0}).close()
    except ConfigError as error:
        return Finding("client", str(error), ExitCode.CONFIGURATION)
    except KafkaException as error:
        why = error.args[0].str()
        own = next((name for name in kafka.librdkafka if name in why), None)
        remedy = f"correct {own!r} in [kafka.librdkafka]" if own is not None else "correct that setting in [kafka]"
        return Finding("client", f"{why}; {remedy}", ExitCode.CONFIGURATION)
    own = f", {len(kafka.librdkafka)} of them from [kafka.librdkafka]" if kafka.librdkafka else ""
    return Finding("client", f"librdkafka accepts the properties{own}")
