"""What a reload changes, and what only a restart does. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kunicorn.settings.handling import OneOfHandlers
from kunicorn.settings.loading import sections as every_section
from kunicorn.settings.sections import Settings

RESTART_ONLY = frozenset({"workers.count", "handlers.topics", "handler.retry_topic", "handler.retry_topic_delays_ms"})
"""Settings within the sections below that the supervisor has built upon."""
RELOADED_SECTIONS = frozenset({"handler", "handlers", "schema_registry", "workers", "log", "tracing", "pipeline"})
HANDLERS = "handlers"
"""[[handlers]] as a whole: which of their settings differ is not told."""
HANDLERS_TOPICS = "handlers.topics"
"""Some of them have other topics now, and the group is subscribed to those of the start."""
RELOADED_SETTINGS = frozenset({"kafka.librdkafka"})
"""Settings of other sections: all that only workers read."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The settings in force from now on, and how the file differs."""

    settings: Settings
    changed: tuple[str, ...]
    """Names (`section.setting`) that take another value now."""
    kept: tuple[str, ...]
    """Names whose value in the file takes effect with the next start only."""


def takes_effect(name: str) -> bool:
    """Whether a reload is enough for the setting `section.setting`."""
    section, _, _ = name.partition(".")
    return name in RELOADED_SETTINGS or (section in RELOADED_SECTIONS and name not in RESTART_ONLY)


def reloaded(now: Settings, file: Settings) -> Reloaded:
    """`now` with those settings of `file` that a reload may change."""
    different = tuple(_different(now, file))
    changed = tuple(name for name in different if takes_effect(name))
    sections: dict[str, dict[str, Any]] = {}
    for name in changed:
        section, _, setting = name.partition(".")
        if section == HANDLERS:
            continue
        sections.setdefault(section, {})[setting] = getattr(getattr(file, section), setting)
    update: dict[str, Any] = {
        section: getattr(now, section).model_copy(update=values) for section, values in sections.items()
    }
    if HANDLERS in changed:
        update[HANDLERS] = file.handlers
    return Reloaded(now.model_copy(update=update), changed, tuple(name for name in different if name not in changed))


def _topics(handler: OneOfHandlers) -> tuple[object, ...]:
    """What the group is subscribed to for it."""
    return handler.topics, handler.retry_topic, handler.retry_topic_delays_ms


def _different(now: Settings, file: Settings) -> Iterator[str]:
    if now.handlers != file.handlers:
        same = [_topics(each) for each in now.handlers] == [_topics(each) for each in file.handlers]
        yield HANDLERS if same else HANDLERS_TOPICS
    for section in every_section():
        before, after = getattr(now, section), getattr(file, section)
        for setting in type(before).model_fields:
            if getattr(before, setting) != getattr(after, setting):
                yield f"{section}.{setting}"
