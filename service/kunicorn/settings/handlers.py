"""Rules between [[handlers]], [handler] and the topics that are consumed: each topic has one handler. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kunicorn.routing import route, takes
from kunicorn.settings.handling import without_topics
from kunicorn.settings.problems import NO_VALUE, Problem


def _consumed(settings: Any) -> tuple[str, ...]:
    return tuple(settings.assign.wanted.topics or settings.group.topics)


def _only_one_form(settings: Any) -> bool:
    first = without_topics([each.model_dump() for each in settings.handlers])
    return bool(settings.handler.model_dump() == first)


def _twice(settings: Any) -> Iterator[str]:
    named = Counter(topic for each in settings.handlers for topic in set(each.topics))
    return (topic for topic, count in named.items() if count > 1)


def _unhandled(settings: Any) -> Iterator[str]:
    """A pattern counts as handled where a handler has it literally: which topics it will match nobody knows."""
    handlers = [each.topics for each in settings.handlers]
    literal = {topic for topics in handlers for topic in topics}
    for topic in _consumed(settings):
        if topic not in literal and (topic.startswith("^") or route(handlers, topic) is None):
            yield topic


def _unconsumed(settings: Any) -> Iterator[str]:
    consumed = _consumed(settings)
    named = (topic for each in settings.handlers for topic in each.topics)
    return (topic for topic in named if topic not in consumed and not _may_be_consumed(consumed, topic))


def _may_be_consumed(consumed: tuple[str, ...], topic: str) -> bool:
    if topic.startswith("^"):
        return any(takes((topic,), name) for name in consumed if not name.startswith("^"))
    return takes(consumed, topic)


_RULES: Sequence[tuple[Callable[[Any], Iterator[str]], str]] = (
    (_twice, "two of them take {topic!r}; leave it to one of them"),
    (
        _unhandled,
        "none of them takes {topic!r}, which is consumed; add it to the topics of one of them, a pattern as it is "
        "written in group.topics",
    ),
    (
        _unconsumed,
        "{topic!r} is in the topics of one of them, but is not consumed; add it to group.topics, or leave that out",
    ),
)


_BATCHES_ALONE = (
    "batches come one at a time, with nothing beside them, but another handler has ordering or concurrency set; remove "
    "these, or run this handler in a service and group of its own"
)


def handlers_problems(settings: Any) -> list[Problem]:
    """Everything that is wrong with [[handlers]] beside the other settings."""
    if not settings.handlers:
        return []
    problems = [
        Problem("handlers", NO_VALUE, text.format(topic=topic)) for broken, text in _RULES for topic in broken(settings)
    ]
    several = any(each.asks_for_several for each in settings.handlers)
    problems += [
        Problem(f"handlers[{number}].mode", NO_VALUE, _BATCHES_ALONE)
        for number, each in enumerate(settings.handlers)
        if several and each.mode == "batch"
    ]
    if not _only_one_form(settings):
        text = "given beside [[handlers]]; remove one of them: [handler] is for a single one"
        problems.append(Problem("handler", NO_VALUE, text))
    return problems
