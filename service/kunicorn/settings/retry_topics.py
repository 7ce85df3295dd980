"""`retry_topic_delays_ms` and `retry_topic` of a handler: which topics these are, and what they may not be. Pure."""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kunicorn.retry_topics import RetryTopic, delay_in_words
from kunicorn.routing import takes
from kunicorn.settings.checks import is_kafka_name
from kunicorn.settings.problems import Problem
from kunicorn.settings.rules import Rule

TEMPLATE = "{group}.retry.{delay}"
_PLACES = frozenset({"group", "delay"})


def delays_ascend(delays: tuple[int, ...]) -> tuple[int, ...]:
    """Each is longer than the one before it: a record goes from topic to topic in this order."""
    if any(later <= earlier for earlier, later in itertools.pairwise(delays)):
        raise ValueError("not ascending; a record waits longer with every retry, so write the shortest delay first")
    return delays


def is_topic_template(template: str) -> str:
    """A topic's name in which {group} and {delay} may stand."""
    try:
        places = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"no template ({error}); write it such as {TEMPLATE}") from None
    if strange := sorted(places - _PLACES):
        raise ValueError(f"{{{strange[0]}}} stands for nothing; {{group}} and {{delay}} do, as in {TEMPLATE}")
    return template


def retry_topics_of(handler: Any, group: str) -> tuple[RetryTopic, ...]:
    """Those of one handler, the shortest delay first."""
    return tuple(
        RetryTopic(handler.retry_topic.format(group=group, delay=delay_in_words(delay)), delay)
        for delay in handler.retry_topic_delays_ms
    )


def taken_topics(handler: Any, group: str) -> list[str]:
    """The topics of one of [[handlers]], its retry topics included; none of [handler], which has all there are."""
    return [*handler.topics, *(topic.name for topic in retry_topics_of(handler, group))] if _is_one(handler) else []


def _is_one(handler: Any) -> bool:
    return hasattr(handler, "topics")


RETRY_TOPIC_RULES = (
    Rule(
        "retry_topic",
        lambda s: "{delay}" in s.retry_topic or len(s.retry_topic_delays_ms) <= 1,
        "one topic for all of retry_topic_delays_ms, where a record would wait for those with a longer delay before "
        "it; put {{delay}} into the name",
    ),
    Rule(
        "retry_topic_delays_ms",
        lambda s: s.ordering != "key" or not s.retry_topic_delays_ms,
        'set beside ordering = "key": a record that goes through a retry topic is handled after later ones of its key; '
        "remove one of them (in place, max_attempts tries keep a key's order)",
    ),
    Rule(
        "retry_topic_delays_ms",
        lambda s: all(set(rule.retry_topic_delays_ms or ()) <= set(s.retry_topic_delays_ms) for rule in s.failures),
        "one of the failures' rules has delays of its own, for which there are no topics; add them here, or remove "
        "them there",
    ),
)
"""Of one handler."""


def retry_topic_problems(settings: Any) -> list[Problem]:
    """Everything that is wrong with them beside the other settings."""
    problems = []
    level = settings.kafka.isolation_level
    if settings.retry_topics and settings.producing.in_transactions and level != "read_committed":
        problems.append(Problem("kafka.isolation_level", level, _ABORTED))
    for number, handler in enumerate(settings.every_handler):
        section = f"handlers[{number}]" if settings.handlers else "handler"
        for topic in retry_topics_of(handler, settings.group.id):
            problems += [
                Problem(f"{section}.retry_topic", handler.retry_topic, otherwise.format(topic=topic.name))
                for broken, otherwise in _RULES
                if broken(settings, topic.name)
            ]
    return problems


_ABORTED = (
    'with producing.delivery = "transactions" records get into retry topics by transactions, and those of aborted '
    "ones would be handled, too; set it to read_committed, or remove retry_topic_delays_ms"
)


def _illegal(settings: Any, topic: str) -> bool:
    try:
        is_kafka_name(topic)
    except ValueError:
        return True
    return False


def _shared(settings: Any, topic: str) -> bool:
    names = (each.name for handler in settings.every_handler for each in retry_topics_of(handler, settings.group.id))
    return Counter(names)[topic] > 1


_RULES: Sequence[tuple[Callable[[Any, str], bool], str]] = (
    (lambda s, topic: s.assigned, "retry topics are consumed by the group, and with assign.partitions there is none; "
     "remove retry_topic_delays_ms, or [assign]"),
    (_illegal, "{topic!r} is no legal name of a topic; correct the template"),
    (lambda s, topic: takes(s.group.topics, topic), "{topic!r} is among group.topics, too, where records would not "
     "wait; name another topic, or a pattern that leaves it out"),
    (lambda s, topic: topic == s.dead_letter_topic, "{topic!r} is the dead-letter topic, too; name another one"),
    (lambda s, topic: topic == s.producing.topic, "{topic!r} is producing.topic, too; name another one"),
    (_shared, "{topic!r} would be that of several of [[handlers]], and nobody knew whose records are in it; set "
     "retry_topic for all but one of them"),
)  # fmt: skip


def named(settings: Any) -> Iterator[RetryTopic]:
    """Every retry topic there is."""
    for handler in settings.every_handler:
        yield from retry_topics_of(handler, settings.group.id)
