"""What every Python process of a job knows: the settings, read by itself, and the handler.

Spark's tasks are told the path of the settings' file and a fingerprint, nothing else: each process reads that file and
its own environment, as the driver did, and refuses to work if the two have read different things. So no secret is ever
in a closure, a partition, Spark's settings or its event log.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunicorn.clients import decoding_of, failure_rules, tracing_of
from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.handlers import Handler, load
from kunicorn.handling.calls import Calls, calls_of
from kunicorn.handling.policies import policies_of
from kunicorn.handling.retry import End, Policies, RetryPolicy, describe
from kunicorn.pipeline.access import Access
from kunicorn.pipeline.reading import RangeReader
from kunicorn.settings import Settings
from kunicorn.settings import load as load_settings
from kunicorn.settings.loading import shown

_SHARED = ("kafka", "group", "handler", "schema_registry", "dead_letters", "pipeline")
"""Sections that driver and executors must agree on; how many processors a machine has is its own affair."""
_GC_THRESHOLDS = (50_000, 20, 100)
"""As in a worker: with its defaults the garbage collector costs as much as the records."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Where the settings are, and what the driver found there. This is what travels."""

    path: str
    fingerprint: str

    def settings(self) -> Settings:
        """The settings as this process reads them; read once. Raises `ConfigError`, naming this machine."""
        if (known := _read.get(self)) is None:
            known = _read[self] = self._load()
        return known

    def _load(self) -> Settings:
        host = socket.gethostname()
        try:
            settings = load_settings(Path(self.path), os.environ)
        except ConfigError as error:
            raise ConfigError(
                f"on {host}, where Spark runs a task: {error}\nThe executors need the driver's settings file under the "
                f"same path, and its KUNICORN_ variables: see docs/pipeline.md"
            ) from error
        if (found := fingerprint(settings)) != self.fingerprint:
            raise ConfigError(
                f"on {host} the settings in {self.path} and KUNICORN_ variables are not the driver's ({found} instead "
                f"of {self.fingerprint}): bring the same ones to every executor"
            )
        return settings

    def reader(self) -> RangeReader:
        """This process's reader, with the password of now; its client is connected once, as tasks follow one another.

        Raises `ConfigError`.
        """
        access = Access(self.settings())
        if (known := _readers.get(self)) is None:
            _settle()
            known = _readers[self] = RangeReader(access.consumer())
        access.log_in(known.consumer)
        return known


_read: dict[SettingsFile, Settings] = {}
_readers: dict[SettingsFile, RangeReader] = {}


def settings_file(path: Path, settings: Settings) -> SettingsFile:
    """What the driver hands on."""
    return SettingsFile(str(path.absolute()), fingerprint(settings))


def fingerprint(settings: Settings) -> str:
    """Equal for equal settings, as far as jobs go by them. Secrets have no part in it."""
    told = shown(settings)
    text = json.dumps({section: told[section] for section in _SHARED}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _settle() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


@dataclass(slots=True)
class SetUp:
    """The handler in this process, from its `setup` to its `teardown`: a task is to it what a worker is."""

    handler: Handler
    calls: Calls
    policies: Policies

    def tear_down(self) -> None:
        """Before the task ends well, so that what the handler holds back is written before its offsets count."""
        if self.handler.teardown is not None:
            self.calls.run(self.handler.teardown())
        self.calls.close()


def set_up(settings: Settings) -> SetUp:
    """Load the handler and call its `setup`. Raises `HandlerLoadError`, `ConfigError`."""
    handler = loaded(settings)
    decoding = decoding_of(settings)
    calls = calls_of(handler, settings.handler.mode, decoding, tracing_of(settings))
    policies = policies_of(_default_policy(settings), failure_rules(settings.handler), decoding.on_undecodable)
    options: dict[str, Any] = dict(settings.handler.options)
    try:
        if handler.setup is not None:
            calls.run(handler.setup(options))
    except BaseException as error:
        raise HandlerLoadError(f"{handler.entrypoint}: setup(options) raised {describe(error)}") from error
    return SetUp(handler, calls, policies)


def loaded(settings: Settings) -> Handler:
    """The handler, imported. Raises `HandlerLoadError`; `ConfigError` for settings that no job can go by.

    Caller: the driver before it starts Spark, and each task.
    """
    if settings.producing.delivery is not None:
        raise ConfigError(
            f'producing.delivery = "{settings.producing.delivery}", but jobs on Spark send nothing that a handler '
            f"yields: a task that Spark tries again would send it twice, and no transaction is theirs. Give the job "
            f"settings without [producing], and a handler that sends with a producer of its own and waits for it"
        )
    handler = load(settings.handler.entrypoint)
    if handler.setup is None and settings.handler.options:
        raise HandlerLoadError(
            f"[handler.options] is set, but {handler.entrypoint} has no setup(options) to read it: remove the options, "
            f"or give the handler a 'setup' attribute"
        )
    return handler


def _default_policy(settings: Settings) -> RetryPolicy:
    handler = settings.handler
    return RetryPolicy(
        handler.max_attempts,
        handler.retry_backoff_ms,
        handler.retry_backoff_max_ms,
        handler.retry_timeout_ms,
        End(handler.on_failure),
    )
