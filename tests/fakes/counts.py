"""What a worker tells that it has counted, by topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kunicorn.ipc.messages import Counted, Observed, Pong
from kunicorn.observe import catalogue as c


@dataclass(slots=True)
class Counts:
    """Since the last Pong."""

    topic: str
    records: int = 0
    failures: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    """By what led there."""
    timed_out: int = 0
    calls: int = 0
    """Of the handler."""


_FIELDS: Mapping[str, str] = {
    c.CONSUMED.name: "records",
    c.FAILURES.name: "failures",
    c.RETRIES.name: "retries",
    c.SKIPPED.name: "skipped",
    c.HANDLER_TIMEOUTS.name: "timed_out",
}


def counts(pong: Pong) -> list[Counts]:
    """One for each topic of which anything is told."""
    return counts_of(pong.counted, pong.observed)


def counts_of(counted: Iterable[Counted], observed: Iterable[Observed]) -> list[Counts]:
    """Likewise, of what `Counters.take` has given."""
    found: dict[str, Counts] = {}
    for each in counted:
        if (name := _FIELDS.get(each.name)) is not None:
            of_topic = found.setdefault(each.labels[0], Counts(each.labels[0]))
            setattr(of_topic, name, each.amount)
        elif each.name == c.DEAD_LETTERS.name:
            topic, reason = each.labels
            found.setdefault(topic, Counts(topic)).dead_letters[reason] = each.amount
    for calls in observed:
        if calls.name == c.PROCESS_SECONDS.name:
            topic, _ = calls.labels
            found.setdefault(topic, Counts(topic)).calls += sum(calls.buckets)
    return list(found.values())
