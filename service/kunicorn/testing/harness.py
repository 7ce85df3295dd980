"""`HandlerTest`: runs a user's handler on records in memory, through the code that workers run, with the service's
settings but for the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kunicorn.handler.config import takes
from kunicorn.settings import Settings
from kunicorn.settings.load import load_tables
from kunicorn.settings.rules import KAFKAS_OWN
from kunicorn.settings.sources import read_file
from kunicorn.testing.bench import Bench
from kunicorn.testing.given import entrypoint_of
from kunicorn.testing.memory import GivenRecord, placed
from kunicorn.testing.outcome import Run, until_killed
from kunicorn.testing.registry import URL
from kunicorn.testing.stage import Kill, stage_of

Tables = Mapping[str, Any]

_LEAST: Tables = {"group": {"id": "test"}, "kafka": {"isolation_level": "read_committed"}}
"""Without a file. In memory nothing is aborted that would not be read."""
_ANY_TOPICS: Tables = {"group": {"topics": ["test"]}}
_NAMES_TOPICS = frozenset({"assign", "handlers"})
"""Sections that name what is consumed, in place of group.topics."""
_MEMORY: Tables = {"kafka": {"bootstrap_servers": ["memory:9092"]}}
_NOT_OURS = frozenset({"http", "log", "otlp"})
"""Sections of the file that mean brokers and machines which a test does not have, or secrets that it must not need."""
_OF_KAFKA = frozenset({"client_id", "isolation_level"})
"""Settings of [kafka] that others, or a handler's setup, go by."""
_NOT_OURS_IN: Mapping[str, frozenset[str]] = {
    "schema_registry": frozenset(
        {"username", "password", "password_file", "ssl_ca_location", "ssl_certificate_location", "ssl_key_location"}
    ),
    "workers": frozenset({"allocator"}),
}
"""Likewise settings of the file's other sections: secrets, and files of the machine that the service runs on."""


def settings_for(entrypoint: str | None, config: Path | None, handler: Mapping[str, Any], sections: Tables) -> Settings:
    """Settings for the test: `sections`, over `handler` ([handler]), over the file. No environment, so that a test
    means the same everywhere.

    Raises `ConfigError`. Blocks on the disk.
    """
    file = _ours(read_file(config)) if config else _LEAST
    topics = {} if config or sections.keys() & _NAMES_TOPICS else _ANY_TOPICS
    own = {"handler": {**handler, **({"entrypoint": entrypoint} if entrypoint is not None else {})}}
    return load_tables(config or Path("the test"), sections, own, topics, _MEMORY, file)


def _ours(file: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a test has of the service's file. What is no table is left for the settings to refuse."""
    kept = {name: table for name, table in file.items() if name not in _NOT_OURS}
    if isinstance(kafka := kept.get("kafka"), Mapping):
        kept["kafka"] = {setting: value for setting, value in kafka.items() if setting in _OF_KAFKA}
    for name, left_out in _NOT_OURS_IN.items():
        if isinstance(table := kept.get(name), Mapping):
            kept[name] = {setting: value for setting, value in table.items() if setting not in left_out}
    return kept


def first_topic(settings: Settings) -> str | None:
    """First topic that the settings name; None where all are patterns."""
    return next((topic for topic in _consumed(settings) if not topic.startswith("^")), None)


def refuse_other_topics(settings: Settings, records: Sequence[GivenRecord]) -> None:
    """Raise `ValueError` for a record of a topic, or a partition, that the service would never consume."""
    consumed, assigned = (*_consumed(settings), *settings.retry_topics), settings.assign.wanted
    for each in records:
        if settings.assigned and each.tp not in assigned:
            raise ValueError(f"{each} would never come: assign.partitions is {', '.join(settings.assign.partitions)}")
        by_pattern_alone = each.tp.topic not in consumed
        if not takes(consumed, each.tp.topic) or (by_pattern_alone and each.tp.topic in KAFKAS_OWN):
            raise ValueError(f"{each} would never come: the settings consume {', '.join(consumed)}")


def _consumed(settings: Settings) -> Sequence[str]:
    """Names and patterns."""
    return settings.assign.wanted.topics or settings.group.topics


class HandlerTest:
    """Runs a handler as a worker does, on records in memory. Each `run` is one worker's life: set up, fetch, handle,
    retry, drain, tear down. Waits between tries take no time; what the handler itself waits for, does."""

    def __init__(
        self,
        handler: str | Callable[..., Any] | None = None,
        *,
        config: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        schemas: Mapping[str, Any] | None = None,
        **handler_settings: Any,
    ) -> None:
        """`handler`: an entry point, or the function itself; None: the entry points that `config`, or [[handlers]] of
        `settings`, name.

        `config`: the service's TOML file; [http], [log] and [otlp] are not read, nor of [kafka] more than `client_id`
        and `isolation_level`, nor what [schema_registry] logs in with. `handler_settings` are settings of [handler]
        (`mode="batch"`, `max_attempts=1`), `settings` those of any section; both go before the file.
        `schemas`: a schema registry in memory, which has these by subject, in the place of [schema_registry].
        """
        self._handler = handler
        self._config = None if config is None else Path(config)
        self._sections = settings or {}
        if handler is None and config is None and "handlers" not in self._sections:
            raise TypeError(
                "give a handler, or the config that names its entry point; pytest's fixture takes it from "
                "kunicorn_config in pytest.ini"
            )
        self._schemas = schemas
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
        holds, and for those of topics that the settings do not consume, `RuntimeError` where the record of `…_at` never
        came to the handler. What the handler raises is in the answer, but for `KeyboardInterrupt`, which Ctrl-C raises
        in it. Caller: a plain function in the main thread.
        """
        stage = stage_of(len(records), revoke_at, drain_timeout_ms, lose_session_at, kill_at)
        if self._handler is None:
            return self._run(None, records, stage)
        with entrypoint_of(self._handler) as entrypoint:
            return self._run(entrypoint, records, stage)

    @property
    def _names_topics(self) -> bool:
        """Whether anybody has said which topics are consumed: without, records may be of any."""
        return (
            self._config is not None
            or bool(self._sections.keys() & _NAMES_TOPICS)
            or ("topics" in self._sections.get("group", {}))
        )

    def _run(self, entrypoint: str | None, records: tuple[GivenRecord, ...], stage: Any) -> Run:
        sections = self._sections if self._schemas is None else {**self._sections, "schema_registry": {"url": URL}}
        settings = settings_for(entrypoint, self._config, self._handler_settings, sections)
        given = placed(records, first_topic(settings))
        if self._names_topics:
            refuse_other_topics(settings, given)
        bench = Bench(settings, given, stage, schemas=self._schemas)
        try:
            if isinstance(stage, Kill):
                until_killed(bench.work)
            else:
                bench.work()
                bench.refuse_unplayed()
            return bench.outcome()
        finally:
            bench.close()
