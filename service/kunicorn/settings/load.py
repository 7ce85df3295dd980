"""Settings read from file and environment into `Settings`, or refused with one error that lists everything to correct;
and read again for a reload, which changes the `RELOADED_SECTIONS` and leaves the rest to a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import InitSettingsSource

from kunicorn.errors import ConfigError
from kunicorn.settings.handler import OneOfHandlers
from kunicorn.settings.pipeline import has_secret
from kunicorn.settings.problems import HIDDEN, Problem, is_secret, problems_of
from kunicorn.settings.sections import Settings
from kunicorn.settings.sources import read_environment, read_file


def sections() -> dict[str, type[BaseModel]]:
    """Model of every section by its name, in the file's order."""
    return {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Settings of the file at `path`, overridden by those of `environ`.

    Raises `ConfigError` with a line for every problem there is. Blocks on the disk; called before the event loop runs.
    """
    environment = read_environment(environ, sections())
    return _built(path, (environment.tables, read_file(path)), environment.problems, environment.origins)


def at_a_desk(settings: Settings) -> Settings:
    """The settings for `run --reload`: [http] answers this machine only, unless `http.host` is set, as a laptop is not
    scraped from outside.
    """
    if "host" in settings.http.model_fields_set:
        return settings
    return settings.model_copy(update={"http": settings.http.model_copy(update={"host": "127.0.0.1"})})


def load_tables(name: Path, *tables: Mapping[str, Any]) -> Settings:
    """Settings of `tables` as a file would have them, earlier ones before later ones; `name` is for messages.

    Raises `ConfigError` as `load` does.
    """
    return _built(name, tables, (), {})


def _built(
    name: Path, tables: Sequence[Mapping[str, Any]], known_problems: Iterable[Problem], origins: Mapping[Any, Any]
) -> Settings:
    known = sections()
    # A section that is not there counts as empty: then what it must contain is told by name.
    *first, last = tables
    layers = tuple(InitSettingsSource(Settings, dict(t)) for t in (*first, {each: {} for each in known} | dict(last)))
    problems = list(known_problems)
    try:
        settings = Settings(_build_sources=(layers, {}))
    except ValidationError as error:
        problems += problems_of(error, known, origins)
    else:
        if not problems:
            return settings
    raise ConfigError(_listed(name, problems))


def _listed(path: Path, problems: list[Problem]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return _lines(f"{path}: {count} in the settings", problems)


def _lines(first: str, problems: Iterable[Problem]) -> str:
    return "\n".join([first, *(f"  {problem}" for problem in problems)])


def shown(settings: Settings) -> dict[str, object]:
    """Settings for `/status`: plain data, without secrets.

    The handler's options are the user's own and may hold any secret under any name: only their names are shown.
    """
    plain: dict[str, Any] = settings.model_dump(mode="json")
    for handler in (plain["handler"], *plain["handlers"]):
        handler["options"] = dict.fromkeys(handler["options"], HIDDEN)
    # One of the two forms; that of several is its own first one otherwise.
    del plain["handler" if settings.handlers else "handlers"]
    for section, table in (("kafka", "librdkafka"), ("producing", "librdkafka"), ("pipeline", "spark")):
        values: Mapping[str, Any] = getattr(getattr(settings, section), table)
        plain[section][table] = {name: HIDDEN if _hides(name, value) else value for name, value in values.items()}
    return plain


def _hides(name: str, value: object) -> bool:
    return has_secret(name, str(value)) if name.startswith("spark.") else is_secret(name)


RESTART_ONLY = frozenset({"workers.count", "handlers.topics", "handler.retry_topic", "handler.retry_topic_delays_ms"})
"""Settings within the sections below that the supervisor has built upon."""
RELOADED_SECTIONS = frozenset({"handler", "handlers", "schema_registry", "workers", "log", "tracing", "pipeline"})
HANDLERS = "handlers"
"""[[handlers]] as a whole: which of their settings differ is not told."""
HANDLERS_TOPICS = "handlers.topics"
"""Topics of [[handlers]], which have changed while the group is subscribed to those of the start."""
RELOADED_SETTINGS = frozenset({"kafka.librdkafka"})
"""Settings of other sections: all that only workers read."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Settings in force after a reload, and the changes in the file that wait for a restart."""

    settings: Settings
    changed: tuple[str, ...]
    """Names (`section.setting`) that take another value now."""
    kept: tuple[str, ...]
    """Names whose value in the file takes effect with the next start only."""


def takes_effect(name: str) -> bool:
    """Whether the setting `section.setting` can be changed by a reload."""
    section, _, _ = name.partition(".")
    return name in RELOADED_SETTINGS or (section in RELOADED_SECTIONS and name not in RESTART_ONLY)


def reloaded(now: Settings, file: Settings) -> Reloaded:
    """`now` with those settings of `file` that a reload may change. Raises `ConfigError` where these do not go together
    with what stays as it is: nobody has checked that mixture, as the file is valid as a whole."""
    different = tuple(_different(now, file))
    # [handler] is the first of [[handlers]] where there are several: one does not change without the others.
    fixed = {"handler"} if HANDLERS_TOPICS in different else frozenset()
    changed = tuple(name for name in different if takes_effect(name) and name.partition(".")[0] not in fixed)
    kept = tuple(name for name in different if name not in changed)
    values: dict[str, dict[str, Any]] = {}
    for name in changed:
        section, _, setting = name.partition(".")
        if section == HANDLERS:
            continue
        values.setdefault(section, {})[setting] = getattr(getattr(file, section), setting)
    update: dict[str, Any] = {
        section: getattr(now, section).model_copy(update=changes) for section, changes in values.items()
    }
    if HANDLERS in changed:
        update[HANDLERS] = file.handlers
    settings = now.model_copy(update=update)
    if kept:
        _check_together(settings, values, kept)
    return Reloaded(settings, changed, kept)


def _check_together(settings: Settings, changed: Iterable[str], kept: Sequence[str]) -> None:
    """Raise `ConfigError` where a start with these settings would be refused. `changed`: sections to look into."""
    built: dict[str, Any] = {name: getattr(settings, name) for name in Settings.model_fields}
    try:
        Settings(**built | {name: _table(built[name]) for name in changed})
    except ValidationError as error:
        first = (
            f"what a reload changes does not go together with what stays as it is until a restart ({', '.join(kept)}): "
            f"restart the service"
        )
        raise ConfigError(_lines(first, problems_of(error, sections(), {}))) from error


def _table(section: BaseModel) -> dict[str, Any]:
    return {name: getattr(section, name) for name in section.model_fields_set}


def _topics(handler: OneOfHandlers) -> tuple[object, ...]:
    """Topics that the group is subscribed to for this handler."""
    return handler.topics, handler.retry_topic, handler.retry_topic_delays_ms


def _different(now: Settings, file: Settings) -> Iterator[str]:
    if now.handlers != file.handlers:
        same = [_topics(each) for each in now.handlers] == [_topics(each) for each in file.handlers]
        yield HANDLERS if same else HANDLERS_TOPICS
    for section in sections():
        before, after = getattr(now, section), getattr(file, section)
        for setting in type(before).model_fields:
            if getattr(before, setting) != getattr(after, setting):
                yield f"{section}.{setting}"
