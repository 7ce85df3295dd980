"""Sources of settings: the TOML file, and the environment, which overrides it. Both yield tables by section."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from kunicorn.errors import ConfigError
from kunicorn.settings.problems import NO_VALUE, Problem, did_you_mean, unknown

PREFIX = "KUNICORN_"
DELIMITER = "__"

_NOT_SETTINGS = frozenset(
    {"KUNICORN_CONFIG", "KUNICORN_AUDIT_DIR", "KUNICORN_AUDIT_MEMBER", "KUNICORN_HANDLER_MS", "KUNICORN_CACHE"}
)
"""Read elsewhere: by commands for the file's path, the handlers of `kunicorn demo`, and the tests for downloads."""

# Kubernetes describes every Service of the namespace to every pod in variables named after it ("Docker links"). A
# Service called kunicorn, or kunicorn-http, must not keep the pods behind it from starting.
_SERVICE_LINK = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")

_TOML_PLACE = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|(?P<end>end of document))\)")

_TOML_HINTS: Mapping[str, str] = {
    "Invalid value": ' (text takes quotes, "like this")',
    "Unclosed array": " (this is where its ] is missed at the latest: its [ may be some lines above)",
}
"""By how tomllib's message begins: what helps whoever wrote the file."""

_DEEPEST = 100
"""So many tables and lists may be within each other."""

Tables = dict[str, dict[str, Any]]


def read_file(path: Path) -> dict[str, Any]:
    """Tables of the TOML file. Raises `ConfigError` naming path, line and column. Blocks on the disk."""
    try:
        return _not_too_deep(tomllib.loads(path.read_bytes().decode()))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}: name the settings' file with --config or KUNICORN_CONFIG, or copy "
            f"config.example.toml there"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        hint = next((hint for said, hint in _TOML_HINTS.items() if str(error).startswith(said)), "")
        raise ConfigError(f"{_toml_place(path, str(error))}{hint}; see https://toml.io") from error
    except (ValueError, RecursionError) as error:
        # Of tomllib's parser itself: a number of thousands of digits, thousands of brackets; or it is too deep. Raised
        # further, it would end a service that is only to read its file again.
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from error


def _not_too_deep(tables: dict[str, Any]) -> dict[str, Any]:
    """`tables`, unless whoever walks through them would meet Python's limit. Raises `RecursionError`.

    A parser takes `[a.a.a ...]` of any depth, as it needs no recursion for that.
    """
    for name, table in tables.items():
        level = [table]
        for _ in range(_DEEPEST):
            level = [inner for each in level for inner in _within(each)]
        if level:
            raise RecursionError(f"{name} has more than {_DEEPEST} tables or lists within each other")
    return tables


def _within(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _toml_place(path: Path, message: str) -> str:
    match = _TOML_PLACE.fullmatch(message)
    if match is None:
        return f"{path} is not valid TOML: {message}"
    place = "end of the file" if match["end"] else f"line {match['line']}, column {match['column']}"
    return f"{path}, {place}: not valid TOML: {match['what']}"


@dataclass(slots=True)
class FromEnvironment:
    """Settings from the environment, the variable that set each, and problems with the variables' names."""

    tables: Tables = field(default_factory=dict)
    origins: dict[tuple[str, str], str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_environment(environ: Mapping[str, str], sections: Mapping[str, type[BaseModel]]) -> FromEnvironment:
    """Settings in variables `KUNICORN_<SECTION>__<NAME>`. Numbers and truth values by TOML's words, lists separated by
    commas or as JSON, tables as JSON.
    """
    found = FromEnvironment()
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX):
            found.problems.extend(_in_small_letters(variable, environ, sections))
            continue
        if variable in _NOT_SETTINGS or _is_service_link(variable, text):
            continue
        section, delimiter, name = variable.removeprefix(PREFIX).lower().partition(DELIMITER)
        model = sections.get(section)
        # The values of variables that are no settings are not told: they may be anybody's, and secret.
        if not delimiter:
            found.problems.append(Problem(variable, NO_VALUE, _no_setting(variable, sections)))
        elif model is None or name not in model.model_fields:
            key, what = f"{section}.{name}", unknown((section, name), sections)
            found.problems.append(Problem(key, NO_VALUE, what, variable))
        else:
            found.tables.setdefault(section, {})[name] = _value(model.model_fields[name], text)
            found.origins[section, name] = variable
    return found


def _is_service_link(variable: str, text: str) -> bool:
    named_so = _SERVICE_LINK.fullmatch(variable) is not None
    return named_so or (variable.endswith("PORT") and _SERVICE_ADDRESS.fullmatch(text) is not None)


def variable_of(section: str, name: str) -> str:
    """Name of a setting's environment variable."""
    return f"{PREFIX}{section}{DELIMITER}{name}".upper()


def _in_small_letters(
    variable: str, environ: Mapping[str, str], sections: Mapping[str, type[BaseModel]]
) -> Iterator[Problem]:
    """Problems of variables such as `kunicorn_workers__count`, which would be ignored silently; other names in small
    letters are not ours.
    """
    if not (meant := variable.upper()).startswith(PREFIX) or meant in environ:
        return
    section, _, name = meant.removeprefix(PREFIX).lower().partition(DELIMITER)
    if section in sections and name in sections[section].model_fields:
        yield Problem(variable, NO_VALUE, f"settings' variables are in capitals; write {meant}")


def _no_setting(variable: str, sections: Mapping[str, type[BaseModel]]) -> str:
    every = {
        variable_of(section, name).lower(): variable_of(section, name)
        for section, model in sections.items()
        for name in model.model_fields
    }
    near = did_you_mean(variable, every)
    hint = f"did you mean {every[near]}?" if near else f"variables are named {PREFIX}<SECTION>{DELIMITER}<NAME>"
    return f"no setting; {hint}"


def _value(setting: FieldInfo, text: str) -> Any:
    """The text as the setting's type; the text itself where that fails, for validation to refuse it."""
    origin = get_origin(setting.annotation)
    if origin is tuple and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    # A setting that is a text or a table (assign.start): only a JSON object is meant as the table.
    table = text.lstrip().startswith("{") and any(get_origin(each) is Mapping for each in get_args(setting.annotation))
    try:
        if origin is tuple or origin is Mapping or table:
            return _not_too_deep({"": json.loads(text)})[""]
        return TypeAdapter[Any](cast(Any, setting.annotation)).validate_strings(text)
    except (ValueError, RecursionError):  # also of numbers of thousands of digits
        return text
