"""Hooks of a handler: which there are, and with which arguments they are called. Small, as it is part of every start:
loads no Kafka client.

    class Orders:
        def setup(self, worker, options): ...        # once, before the first record; options: [handler.options]
        def on_assigned(self, partitions): ...       # before the first record of these
        def handle(self, record): ...
        def on_revoked(self, partitions): ...        # nothing more of these comes here; before they are handed over
        def on_lost(self, partitions): ...           # instead, where they may be another member's already
        def teardown(self): ...                      # before the worker leaves in order
        def flush(self): ...                         # jobs on Spark alone: before what a task has handled counts

Each may be `async def`. They are called where records are handled, on the worker's main thread (its event loop), so
never beside a record. `partitions` maps each `TopicPartition` to its next offset to handle. The contract in full, with
what happens when a hook raises: docs/handlers.md.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HOOKS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "setup": (("options",), ("worker", "options")),
    "teardown": ((),),
    "flush": ((),),
    "on_assigned": (("partitions",),),
    "on_revoked": (("partitions",),),
    "on_lost": (("partitions",),),
    "load_offsets": (("partitions",),),
    "store_offsets": (("offsets",),),
}
"""Every hook, with the arguments that it may be called with; the first form that fits is used."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Process in which a handler is set up; a Spark task counts as one. First argument of `setup`."""

    slot: int
    """Its place, 0 … workers.count - 1; its successor has the same one. 0 in a Spark job's tasks."""
    pid: int
    group_id: str
    client_id: str
    """The Kafka client's name, as in the brokers' logs and quotas."""
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("handler"))
    """Its lines come out as the service's own do."""


def misfit(target: object, name: str) -> str | None:
    """Why that hook of a handler (function, object or class) cannot be called; None if it can, or there is none."""
    hook = bound(target, name)
    if hook is None:
        return None
    forms = " or ".join(f"{name}({', '.join(names)})" for names in HOOKS[name])
    if not callable(hook):
        return f"its {name} is {type(hook).__name__}, which cannot be called; make it {forms}, or rename it"
    if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        return f"its {name} contains 'yield': calling it would do nothing; remove the yield"
    if not any(_takes(hook, len(names)) for names in HOOKS[name]):
        return f"its {name} takes {inspect.signature(hook)}, but is called as {forms}; change its parameters"
    return None


def bound(target: object, name: str) -> Any:
    """Attribute `name` as a caller of an instance sees it; of a class it is bound without making an instance."""
    attribute = getattr(target, name, None)
    if attribute is None or not inspect.isclass(target):
        return attribute
    raw = inspect.getattr_static(target, name)
    return raw.__get__(object(), target) if inspect.isfunction(raw) else attribute


def setup_takes_worker(setup: Callable[..., Any]) -> bool:
    """Whether the signature is `setup(worker, options)`."""
    return not _takes(setup, 1)


def _takes(hook: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(hook).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # Written in C and silent about its arguments: the call will tell.
    return True
