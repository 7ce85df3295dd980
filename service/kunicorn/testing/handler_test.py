"""A handler under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kunicorn.testing.bench import Bench
from kunicorn.testing.given import entrypoint_of
from kunicorn.testing.killing import until_killed
from kunicorn.testing.outcome import Run
from kunicorn.testing.records import GivenRecord, placed
from kunicorn.testing.settings import first_topic, settings_for
from kunicorn.testing.stages import Kill, stage_of


class HandlerTest:
    """Runs a handler as a worker does, on records in memory. Each `run` is one worker's life: set up, fetch, handle,
    retry, drain, tear down. Waits between tries take no time; what the handler itself waits for, does."""

    def __init__(
        self,
        handler: str | Callable[..., Any] | None = None,
        *,
        config: str | Path | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **handler_settings: Any,
    ) -> None:
        """`handler`: an entry point, or the function itself; None: the entry point that `config` names.

        `config`: the service's TOML file; [kafka], [http] and [log] are not read. `handler_settings` are settings of
        [handler] (`mode="batch"`, `max_attempts=1`), `settings` those of any section; both go before the file.
        """
        if handler is None and config is None:
            raise TypeError("give a handler, or the config that names its entry point")
        self._handler = handler
        self._config = None if config is None else Path(config)
        self._sections = settings or {}
        self._handler_settings = handler_settings

    def run(
        self,
        *records: GivenRecord,
        revoke_at: int | None = None,
        drain_timeout_ms: int | None = None,
        lose_session_at: int | None = None,
        kill_at: int | None = None,
    ) -> Run:
        """Have these handled; blocks until all are done with, or cannot be.

        `…_at` is the index of a record: while the handler has it, its partition is revoked (and its handler interrupted
        after `drain_timeout_ms`), or the member loses its session, or its worker is killed.

        Raises `ConfigError` and `HandlerLoadError` as the service would end, `ValueError` for records that no log
        holds. What the handler raises is in the answer. Caller: a plain function in the main thread.
        """
        stage = stage_of(len(records), revoke_at, drain_timeout_ms, lose_session_at, kill_at)
        if self._handler is None:
            return self._run(None, records, stage)
        with entrypoint_of(self._handler) as entrypoint:
            return self._run(entrypoint, records, stage)

    def _run(self, entrypoint: str | None, records: tuple[GivenRecord, ...], stage: Any) -> Run:
        settings = settings_for(entrypoint, self._config, self._handler_settings, self._sections)
        bench = Bench(settings, placed(records, first_topic(settings)), stage)
        try:
            if isinstance(stage, Kill):
                until_killed(bench.work)
            else:
                bench.work()
            return bench.outcome()
        finally:
            bench.close()
