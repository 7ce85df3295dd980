"""The settings in force as a person or a program wants to read them. Pure, but for the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kunicorn.settings.loading import sections, shown
from kunicorn.settings.sections import Settings
from kunicorn.settings.sources import read_environment, read_file

_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def listed(path: Path, environ: Mapping[str, str], settings: Settings, *, every: bool) -> Iterator[str]:
    """Section by section as TOML, each setting with where it comes from; `every` shows those at their default, too."""
    file, origins = read_file(path), read_environment(environ, sections()).origins
    for section, values in shown(settings).items():
        if isinstance(values, list):
            yield from _listed_handlers(section, values, str(path))
            continue
        assert isinstance(values, dict)
        lines = []
        for name, value in values.items():
            given = origins.get((section, name)) or (str(path) if name in file.get(section, {}) else None)
            if given is not None or every:
                lines.append(f"{name} = {_toml(value)}  # {given or 'the default'}")
        if lines:
            yield f"[{section}]"
            yield from lines


def _listed_handlers(section: str, tables: list[Any], path: str) -> Iterator[str]:
    for table in tables:
        yield f"[[{section}]]  # {path}"
        yield from (f"{name} = {_toml(value)}" for name, value in table.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return '"" # not set' if value is None else json.dumps(value, ensure_ascii=False)


def json_schema() -> dict[str, Any]:
    """What the file may hold, from the declarations.

    Without the defaults that are words ("the CPUs this container may use"): they are for people, and of another type.
    """
    schema = Settings.model_json_schema()
    for model in sections().values():
        for name, field in model.model_fields.items():
            if isinstance(field.json_schema_extra, dict) and "default" in field.json_schema_extra:
                schema["$defs"][model.__name__]["properties"][name].pop("default", None)
    return {"$schema": _SCHEMA, "title": "kunicorn's settings", **schema}
