"""From file and environment to `Settings`, or to one error that lists everything there is to correct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import InitSettingsSource

from kunicorn.errors import ConfigError
from kunicorn.settings.problems import Problem, is_secret, problems_of
from kunicorn.settings.sections import Settings
from kunicorn.settings.sources import read_environment, read_file

HIDDEN = "(not shown)"


def sections() -> dict[str, type[BaseModel]]:
    """Every section's model by its name, in the file's order."""
    return {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """The settings of the file at `path`, with those of `environ` over them.

    Raises `ConfigError` with a line for every problem there is. Blocks on the disk; called before the event loop runs.
    """
    environment = read_environment(environ, sections())
    return _built(path, (environment.tables, read_file(path)), environment.problems, environment.origins)


def at_a_desk(settings: Settings) -> Settings:
    """The same, answering this machine only, unless `http.host` is set: a laptop is not scraped from outside."""
    if "host" in settings.http.model_fields_set:
        return settings
    return settings.model_copy(update={"http": settings.http.model_copy(update={"host": "127.0.0.1"})})


def load_tables(name: Path, *tables: Mapping[str, Any]) -> Settings:
    """The settings of `tables` as a file would have them, earlier ones before later ones; `name` is for messages.

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
    return "\n".join([f"{path}: {count} in the settings", *(f"  {problem}" for problem in problems)])


def shown(settings: Settings) -> dict[str, object]:
    """The settings for `/status`: plain data, without secrets.

    The handler's options are the user's own and may hold any secret under any name: only their names are shown.
    """
    plain: dict[str, Any] = settings.model_dump(mode="json")
    for handler in (plain["handler"], *plain["handlers"]):
        handler["options"] = dict.fromkeys(handler["options"], HIDDEN)
    # One of the two forms; that of several is its own first one otherwise.
    del plain["handler" if settings.handlers else "handlers"]
    for section in ("kafka", "producing"):
        properties = getattr(settings, section).librdkafka
        plain[section]["librdkafka"] = {
            name: HIDDEN if is_secret(name) else value for name, value in properties.items()
        }
    return plain
