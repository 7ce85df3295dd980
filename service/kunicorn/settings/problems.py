"""Problems in the settings: what validation found, in words that name the setting and what would be right. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_LONGEST_VALUE = 80
_SECRET_WORDS = (
    *("password", "secret", "token", "credential", "private", "jaas", "oauthbearer"),
    *(".pem", "api_key", "apikey"),
)
HIDDEN = "(not shown)"
"""In place of a value that is, or may be, a secret."""
_USERS_OWN = re.compile(r"(handler(s\[\d+\])?\.options|otlp\.headers)([.\[].*)?")
_HANDLERS = "handlers"

NO_VALUE = object()
"""The problem is that there is no value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct: `key` is section and name, `text` says what is wrong and what would be right."""

    key: str
    value: object
    text: str
    origin: str | None = None
    """The environment variable the value came from; None for the file."""

    def __str__(self) -> str:
        shown = "" if self.value is NO_VALUE else f" = {show(self.key, self.value)}"
        origin = f" (from {self.origin})" if self.origin else ""
        return f"{self.key}{shown}{origin}: {self.text}"


class Contradictions(ValueError):
    """Contradictory values in one section; raised inside pydantic's validation."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


_CREDENTIALS = re.compile(r"^([\w+.-]*://)?.*@", re.DOTALL)
_QUERY = re.compile(r"^([^?#]*://[^?#]*[?#]).*", re.DOTALL)
"""In an address, where they are refused: the refusal must not show them, however the address is misspelt."""


def without_credentials(text: str) -> str:
    """An address, or any other text, without what is before an @ and, of a URL, behind a ? or a #."""
    return _QUERY.sub(r"\1…", _CREDENTIALS.sub(r"\1…@", text))


def is_secret(name: str) -> bool:
    """Whether a property or setting of this name may hold something that must not be shown."""
    return _USERS_OWN.fullmatch(name) is not None or any(word in name.lower() for word in _SECRET_WORDS)


def show(key: str, value: object) -> str:
    """The value as TOML writes it, cut short; of a secret nothing, of a table the names in it."""
    if value is HIDDEN or (is_secret(key) and not key.endswith("_file")):
        return HIDDEN
    text = json.dumps(_harmless(value), ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + " …"


def _harmless(value: object) -> object:
    """The value with nothing of a table but the names in it, however deep the table is in lists; of addresses without
    credentials."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, list | tuple):
        return [_harmless(item) for item in value]
    return names_in(value) if isinstance(value, Mapping) else value


def names_in(value: object) -> object:
    """Names in tables and tables of lists, and no value: under a name that is misspelt, or in a table that is not one
    of ours, anything may be a secret.
    """
    if isinstance(value, Mapping):
        return {str(name): names_in(item) for name, item in value.items()}
    return [names_in(item) for item in value] if isinstance(value, list | tuple) else HIDDEN


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Known name that is nearest to the one given, if any is near."""
    near = difflib.get_close_matches(name.lower().replace(".", "_").replace("-", "_"), list(known), n=1, cutoff=0.7)
    return near[0] if near else None


def problems_of(
    error: ValidationError, sections: Mapping[str, type[BaseModel]], origins: Mapping[tuple[str, str], str]
) -> list[Problem]:
    """Problems in a `ValidationError` of pydantic's. `origins`: the variable, for settings that the environment set."""
    found: list[Problem] = []
    details = error.errors(include_url=False)
    # [handler] is made of the first of [[handlers]]: what is wrong there is told once.
    doubled = any(detail["loc"][:1] == (_HANDLERS,) for detail in details)
    for detail in details:
        if doubled and detail["loc"][:1] == ("handler",):
            continue
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Contradictions):
            found += [_with_origin(problem, origins) for problem in cause.problems]
        elif detail["type"] != "too_short" or not detail["input"]:
            # A list whose only item was refused also counts as too short; the item's own problem says enough.
            found.append(_problem(detail, sections, origins))
    return found


def _with_origin(problem: Problem, origins: Mapping[tuple[str, str], str]) -> Problem:
    section, _, name = problem.key.partition(".")
    return replace(problem, origin=problem.origin or origins.get((section, name.partition(".")[0])))


def _problem(
    detail: ErrorDetails, sections: Mapping[str, type[BaseModel]], origins: Mapping[tuple[str, str], str]
) -> Problem:
    where = tuple(map(str, detail["loc"]))
    if not where:
        return Problem("the settings", NO_VALUE, _wrong(detail))  # Of all together: no value would say more.
    if where[0] == _HANDLERS:
        return _in_handlers(where, detail)
    key, origin = ".".join(where[:2]), origins.get(where[:2])  # type: ignore[arg-type]  # a missing pair is not there
    if _is_table(where, sections):
        return _in_table(where, detail, origin)
    if len(where) > 3 or (detail["type"] == "model_type" and len(where) > 1):
        # In a list of tables: handler.failures[0].max_attempts.
        key = f"{key}[{where[2]}]" + "".join(f".{name}" for name in where[3:4])
        return Problem(key, _input(detail), _WORDS_INSIDE.get(detail["type"]) or _wrong(detail), origin)
    if detail["type"] == "extra_forbidden":
        # auto.offset.reset = "latest" is three tables in TOML, and meant as a name.
        return Problem(key, _input(detail), unknown((*where, *_tables_within(detail["input"])), sections), origin)
    if detail["type"] == "missing":
        return Problem(key, NO_VALUE, _missing(where, sections), origin)
    item = f"[{where[2]}]" if len(where) > 2 else ""
    return Problem(key + item, _input(detail), _wrong(detail), origin)


def _is_table(where: Sequence[str], sections: Mapping[str, type[BaseModel]]) -> bool:
    """Whether it is about a table within a section, such as handler.circuit_breaker."""
    fields = sections[where[0]].model_fields if where[0] in sections else {}
    if len(where) < 2 or (field := fields.get(where[1])) is None or get_origin(field.annotation) is tuple:
        return False
    return any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in get_args(field.annotation))


def _in_table(where: Sequence[str], detail: ErrorDetails, origin: str | None) -> Problem:
    key = _dotted(where)
    if detail["type"] == "model_type":
        return Problem(key, _input(detail), f"not a table; write a table [{key}] in the file", origin)
    return Problem(key, _input(detail), _WORDS_INSIDE.get(detail["type"]) or _wrong(detail), origin)


def _dotted(where: Sequence[str]) -> str:
    return "".join(f"[{each}]" if each.isdigit() else f".{each}" for each in where).lstrip(".")


def _in_handlers(where: Sequence[str], detail: ErrorDetails) -> Problem:
    """Problem in the list of tables, such as handlers[0].failures[1].on_failure."""
    key = _dotted(where)
    return Problem(key, _input(detail), _WORDS_INSIDE.get(detail["type"]) or _wrong(detail))


_TABLE_TYPES = frozenset({"dict_type", "mapping_type", "model_type"})
_LIST_FAULTS = frozenset({"value_error", "too_short", "too_long"})
"""Of a list where one was to be."""


def _input(detail: ErrorDetails) -> object:
    """What may be told of the value. What is not where it belongs may be a secret, whatever its name says."""
    kind, value = detail["type"], detail["input"]
    if kind == "missing":
        return NO_VALUE
    if isinstance(value, list | tuple):
        return value if kind in _LIST_FAULTS else names_in(value)
    if isinstance(value, Mapping):
        return names_in(value)
    if kind == "extra_forbidden":
        return NO_VALUE
    # A table in the environment is JSON: one that does not parse comes as its text.
    return HIDDEN if kind in _TABLE_TYPES and isinstance(value, str) else value


_WORDS_INSIDE: Mapping[str, str] = {
    "extra_forbidden": "unknown setting; docs/settings.md lists those of this table",
    "missing": "is missing; set it in this table",
    "model_type": "not a table; write a table of its own in the file, [[section.name]] or [[handlers]], for each",
}


def unknown(where: Sequence[str], sections: Mapping[str, type[BaseModel]]) -> str:
    """Message for a section, or for a name in a section, that does not exist."""
    section, name = where[0], "_".join(where[1:]) or None
    if section not in sections:
        near = did_you_mean(section, sections)
        return f"unknown section; {f'did you mean [{near}]?' if near else _there_are('sections', sections)}"
    if name is None:
        return f"unknown; {_there_are('sections', sections)}"
    own = sections[section].model_fields
    here = did_you_mean(name, own)
    elsewhere = [f"{other}.{name}" for other, model in sections.items() if name in model.model_fields]
    typo = here is not None and here.startswith(name)
    if nearest := (elsewhere[0] if elsewhere and not typo else here):
        return f"unknown setting; did you mean {nearest}?"
    return f"unknown setting; {_there_are(f'settings in [{section}]', own)}"


def _tables_within(value: object) -> Iterator[str]:
    """Names of tables that hold nothing but one another."""
    while isinstance(value, Mapping) and len(value) == 1:
        ((name, value),) = value.items()
        yield str(name)


def _there_are(what: str, names: Iterable[str]) -> str:
    return f"the {what} are {', '.join(names)}"


def _missing(where: Sequence[str], sections: Mapping[str, type[BaseModel]]) -> str:
    section, name = where[0], where[-1]
    examples = sections[section].model_fields[name].examples or []
    example = f", such as {name} = {json.dumps(examples[0])}" if examples else ""
    return f"is missing; set it in [{section}]{example}"


def _wrong(detail: ErrorDetails) -> str:
    say = _WORDS.get(detail["type"])
    return say(detail.get("ctx", {})) if say else detail["msg"]


_NO_TABLE = "not a table; write a table of its own in the file, [section.name], or a JSON object in the environment"


def _not_one_of(context: Mapping[str, Any]) -> str:
    return f"not a value it can have; it can be {context['expected']}"


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: "not a truth value; write true or false, without quotes",
    "dict_type": lambda _: _NO_TABLE,
    "finite_number": lambda _: "not a finite number",
    "greater_than_equal": lambda context: f"too small; the least is {context['ge']}",
    "int_type": lambda _: "not a whole number; write it in digits, without quotes",
    "less_than_equal": lambda context: f"too large; the most is {context['le']}",
    "literal_error": _not_one_of,
    "mapping_type": lambda _: _NO_TABLE,
    "model_type": lambda _: "not a section; write it as a table, [section]",
    "string_too_long": lambda context: f"too long; at most {context['max_length']} characters",
    "string_too_short": lambda _: "empty; leave it out, or give it a value",
    "string_type": lambda _: 'not a text; put it in quotes, "like this"',
    "too_short": lambda _: "empty; name at least one",
    "tuple_type": lambda _: 'not a list; write ["one", "two"]',
    "value_error": lambda context: str(context["error"]),
}
"""pydantic's error types, what is wrong and what would be right. Types that no setting can cause are missing."""
