"""Which of several handlers gets a topic's records. Pure; the settings are checked by it, workers go by it."""

from __future__ import annotations

import re
from collections.abc import Sequence


def takes(patterns: Sequence[str], topic: str) -> bool:
    """Whether names and patterns (with a leading ^) are meant to include that topic."""
    return topic in patterns or any(re.match(each, topic) for each in patterns if each.startswith("^"))


def route(handlers: Sequence[Sequence[str]], topic: str) -> int | None:
    """The number of the handler, each given by its topics; None if no handler takes it.

    Who names the topic goes before who has a pattern for it; of patterns the first one that matches counts.
    """
    named = next((number for number, topics in enumerate(handlers) if topic in topics), None)
    if named is not None:
        return named
    return next((number for number, topics in enumerate(handlers) if takes(topics, topic)), None)
