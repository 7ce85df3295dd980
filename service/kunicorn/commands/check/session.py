"""One run of `kunicorn check`: the checks one after the other, a line of each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kunicorn import allocator
from kunicorn.backoff import Backoff, Retries
from kunicorn.clients.config import consumer_properties, dead_letter_target, handler_configs, producing_target
from kunicorn.clients.session import command_security
from kunicorn.columns.decoding import compiled
from kunicorn.commands.check import cluster
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.outputs import output_findings
from kunicorn.commands.check.transactions import transactions
from kunicorn.commands.check.trial import importable, log_format, set_up, tried
from kunicorn.commands.sigterm import sigterm_interrupts
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.linux import IS_LINUX
from kunicorn.observe import requests
from kunicorn.observe.otlp_extra import otlp_module
from kunicorn.observe.port import Port
from kunicorn.settings import Settings
from kunicorn.settings.workers import memory_warnings

_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=15.0)
_SOON = 2.0


def check(
    settings: Settings,
    say: Callable[[Finding], None],
    records: int = 0,
    *,
    waits: bool = False,
) -> ExitCode:
    """Run the checks, `say` each finding; the exit code of the first that failed. Blocks for seconds.

    With `records` the handler gets that many of the latest records, if everything else is well. With `waits`, for the
    start of a pod: for what may pass by itself, however long it takes; neither `setup` is called nor the port tried,
    as the service is about to. SIGTERM ends it as Ctrl-C does, such as where the pod is deleted, and with it all that
    the handler has started.
    """
    with sigterm_interrupts():
        return _checked(settings, say, records, waits=waits)


def _checked(settings: Settings, say: Callable[[Finding], None], records: int, *, waits: bool) -> ExitCode:
    worst = ExitCode.CLEAN
    start: Iterable[Finding] = () if waits else _findings_of_start(settings, tries=records > 0)
    beyond = _waited_for(settings, say) if waits else _findings_beyond(settings)
    for findings in (_findings_here(settings), start, beyond):
        if findings is start and worst is not ExitCode.CLEAN:
            continue  # A handler that cannot be loaded has no setup to call.
        for finding in findings:
            say(finding)
            if worst is ExitCode.CLEAN and finding.failure is not None:
                worst = finding.failure
        if waits and worst is not ExitCode.CLEAN:
            return worst
    if records and worst is ExitCode.CLEAN:
        finding = tried(settings, records)
        say(finding)
        worst = finding.failure or worst
    return worst


def _waited_for(settings: Settings, say: Callable[[Finding], None]) -> Iterator[Finding]:
    """The findings of the first round in which nothing is missing that may pass by itself. What is waited for is said
    once, and again when it is something else. Blocks.
    """
    retries, told = Retries(_BACKOFF), ""
    while True:
        found = list(_findings_beyond(settings))
        wrong = any(finding.failure is not None and not finding.passes for finding in found)
        coming = next((finding for finding in found if finding.passes), None)
        if coming is None or wrong:
            yield from found
            return
        if coming.text != told:
            say(replace(coming, text=f"waiting for this to pass: {coming.text}", failure=None, warning=True))
            told = coming.text
        time.sleep(retries.failed())


def _findings_of_start(settings: Settings, *, tries: bool) -> Iterator[Finding]:
    """Whether the handlers' `setup` returns, and the port of [http] is free: what else ends a start."""
    if not tries:  # The trial calls it.
        yield set_up(settings)
    if settings.http.enabled and settings.http.port:
        yield _port(settings)


def _otlp() -> Finding:
    try:
        otlp_module()
    except ConfigError as error:
        return Finding("otlp", str(error), ExitCode.CONFIGURATION)
    return Finding("otlp", "what exports metrics is installed; the collector is not asked")


def _port(settings: Settings) -> Finding:
    async def bound() -> None:
        port = Port(settings.http)
        await port.bind()
        port.close()

    try:
        asyncio.run(bound())
    except ConfigError as error:
        try:
            requests.connect(settings.http.port, _SOON).close()
        except OSError:
            return Finding("port", str(error), ExitCode.CONFIGURATION)
        return Finding(
            "port",
            f"http.port = {settings.http.port} belongs to a kunicorn that runs here, as this user: a second one would "
            f"need another",
            warning=True,
        )
    return Finding("port", f"http.port = {settings.http.port} on {settings.http.host} is free")


def _findings_here(settings: Settings) -> Iterator[Finding]:
    """Findings that ask nobody else."""
    for warning in settings.kafka.warnings():
        yield Finding("security", warning, warning=True)
    if os.geteuid() == 0:
        yield Finding(
            "user",
            "this process is root, and what a handler can be made to do is done as its user: run the service as one "
            "without rights",
            warning=True,
        )
    for warning in memory_warnings(settings.workers):
        yield Finding("memory", warning, warning=True)
    if settings.otlp.enabled:
        yield _otlp()
    if not IS_LINUX:
        yield Finding("platform", "the service needs Linux: what is checked here is true of this machine", warning=True)
    for handler, config in zip(settings.every_handler, handler_configs(settings), strict=True):
        yield importable(
            config,
            settings.workers.start_timeout_ms / 1000,
            delivery=settings.producing.delivery,
            exceptions=handler.exception_names,
            log_format=log_format(settings),
        )
    yield _client(settings)
    yield _allocator(settings)


def _findings_beyond(settings: Settings) -> Iterator[Finding]:
    """Findings about the schema registry and the cluster; about transactions where the cluster's are good."""
    yield from cluster.registry_findings(settings)
    try:
        command_security(settings.kafka)
    except ConfigError:
        return  # The finding "client" tells of it.
    yield from output_findings(settings)
    with asyncio.Runner() as runner:
        findings = cluster.findings(settings)
        answered = True
        while (finding := runner.run(anext(findings, None))) is not None:
            answered = answered and finding.failure is None
            yield finding
    if answered and settings.producing.in_transactions:
        yield transactions(settings)


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
    """Whether librdkafka takes the properties of each client that a worker makes, and whether the own fetcher, if it is
    to be used, has its decoder. None of the clients is used.
    """
    kafka = settings.kafka
    try:
        command_security(kafka)  # Names the setting of a file that is none; librdkafka names a property of its own.
        for make, properties, sections in _clients(settings):
            _make(make, properties, settings, sections)
        if kafka.fetcher == "own":
            _find_decoder()
    except ConfigError as error:
        return Finding("client", str(error), ExitCode.CONFIGURATION)
    own = f", {len(kafka.librdkafka)} of them from [kafka.librdkafka]" if kafka.librdkafka else ""
    return Finding("client", f"librdkafka accepts the properties{own}")


def _find_decoder() -> None:
    try:
        compiled()
    except ConfigError as error:
        raise ConfigError(f'kafka.fetcher = "own": {error}') from error


def _clients(settings: Settings) -> Iterator[tuple[Callable[..., object], Mapping[str, Any], Sequence[str]]]:
    """What makes each client, its properties, and the sections that these come from. Raises `ConfigError`."""
    from confluent_kafka import Consumer, Producer

    name, letters_to = settings.kafka.client_id, settings.dead_letter_topic
    yield (lambda properties: Consumer(properties).close()), consumer_properties(settings, name), ["kafka"]
    if (outputs := producing_target(settings, name, name)) is not None:
        yield Producer, outputs.client, ["producing", "kafka"]
    if (letters := dead_letter_target(settings, name, letters_to)) is not None:
        yield Producer, letters.client, ["kafka", "dead_letters"]


def _make(
    make: Callable[..., object], properties: Mapping[str, Any], settings: Settings, sections: Sequence[str]
) -> None:
    """Make the client. Raises `ConfigError` for a property that librdkafka refuses."""
    from confluent_kafka import KafkaException

    try:
        make({**properties, "log_level": 0})
    except KafkaException as error:
        why = error.args[0].str()
        raise ConfigError(f"{why}; {_remedy(settings, sections, why)}") from error


def _remedy(settings: Settings, sections: Sequence[str], why: str) -> str:
    """What to do about librdkafka's refusal: it names the property."""
    for section in sections:
        extra: Mapping[str, Any] = getattr(getattr(settings, section), "librdkafka", {})
        if own := next((name for name in extra if name in why), None):
            return f"correct {own!r} in [{section}.librdkafka]"
    return f"correct that setting in {' or '.join(f'[{section}]' for section in sections)}"
