"""Which of the ids that brokers name for a topic is its own now. Pure.

A topic that is deleted and created again has another id, and is consumed from its beginning: a wrong decision repeats a
whole log. Brokers learn of it at different times, and one that is cut off from the controller never does. Ids say
nothing of their order, so that nobody can tell a new one from an old one by itself:

- one that was never seen counts when two answers in a row name it, or at once if the topic was gone before;
- one that was replaced is most likely a stale broker's. But the one that replaced it may have been that, so it counts
  again when answers in a row name it, twice as many as the last time that such a one did: between two brokers that
  disagree for ever decisions get ever rarer, and where all agree the truth is found in the end;
- one under which a coordinator has assigned partitions counts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

_AGREEMENT = 2


@dataclass(slots=True)
class _Known:
    first: UUID
    now: UUID
    replaced: set[UUID] = field(default_factory=set)
    candidate: UUID | None = None
    answers: int = 0
    """So many in a row have named the candidate."""
    agreement: int = _AGREEMENT
    """So many it took the last time that an id which was replaced came back."""
    gone: bool = False

    def replace(self, topic_id: UUID) -> None:
        self.replaced.add(self.now)
        self.now = topic_id
        self.settle()

    def settle(self) -> None:
        self.candidate, self.answers, self.gone = None, 0, False


class TopicIds:
    """By topic, from what each answer of a broker says of it."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def now(self, topic: str) -> UUID | None:
        """The id that counts; None where none was ever heard of."""
        known = self._known.get(topic)
        return known.now if known is not None else None

    def changed_since_first(self, topic: str) -> bool:
        """Whether another topic had this name when it was first heard of."""
        known = self._known.get(topic)
        return known is not None and known.first != known.now

    def is_unsure(self, topic: str) -> bool:
        """Whether the last answer named another id, and more answers decide."""
        known = self._known.get(topic)
        return known is not None and known.candidate is not None

    def hear(self, topic: str, topic_id: UUID | None) -> bool:
        """A broker's answer names this id, or knows no such topic (None); returns whether another id counts now."""
        known = self._known.get(topic)
        if known is None:
            if topic_id is not None:
                self._known[topic] = _Known(topic_id, topic_id)
            return False
        if topic_id is None:
            known.gone = True
            return False
        if topic_id == known.now:
            known.settle()
            return False
        known.answers = known.answers + 1 if topic_id == known.candidate else 1
        known.candidate = topic_id
        returns = topic_id in known.replaced
        if known.answers < (2 * known.agreement if returns else 1 if known.gone else _AGREEMENT):
            return False
        known.agreement *= 2 if returns else 1
        known.replace(topic_id)
        return True

    def adopt(self, topic: str, topic_id: UUID) -> bool:
        """The coordinator has assigned partitions under this id; returns whether another one counted before."""
        known = self._known.setdefault(topic, _Known(topic_id, topic_id))
        changed = known.now != topic_id
        if changed:
            known.replace(topic_id)
        return changed
