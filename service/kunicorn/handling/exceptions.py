"""Finding exception classes that settings name, in a process that has the user's code."""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any

from kunicorn.errors import ConfigError

_SETTING = "handler.failures"


def find(name: str) -> type[BaseException]:
    """The class `package.module.Class`, nested ones included; imports its module. Raises `ConfigError`.

    Caller: a worker, after the handler was imported; `kunicorn check`.
    """
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:split])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module + ".").startswith(error.name + "."):
                continue
            raise _refused(name, f"importing {module!r} raised {error}") from error
        except Exception as error:
            raise _refused(name, f"importing {module!r} raised {type(error).__name__}: {error}") from error
        return _exception_in(name, found, parts[split:])
    raise _refused(name, f"there is no module {parts[0]!r}")


def _exception_in(name: str, owner: Any, path: list[str]) -> type[BaseException]:
    for attribute in path:
        if not hasattr(owner, attribute):
            near = difflib.get_close_matches(attribute, dir(owner), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise _refused(name, f"{owner.__name__!r} has no {attribute!r}{hint}")
        owner = getattr(owner, attribute)
    if not inspect.isclass(owner) or not issubclass(owner, BaseException):
        raise _refused(name, "it is no exception class")
    return owner


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(f"{_SETTING} names the exception {name!r}: {why}; correct the name, or remove it")
