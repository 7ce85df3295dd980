"""Who may get what: members in Kafka's order and the subscribers of each topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from kunicorn.group.protocol import Member


@dataclass(frozen=True, slots=True)
class Roster:
    """Members are spoken of by *rank*, their place in `members`."""

    members: tuple[Member, ...]
    subscribers: Mapping[str, tuple[int, ...]]
    """Ranks by topic, both ascending; only topics that have partitions and at least one subscriber."""
    partitions: Mapping[str, int]

    @classmethod
    def of(cls, members: Sequence[Member], partitions: Mapping[str, int]) -> Roster:
        """The roster of a group; `partitions` is the number of partitions by topic."""
        ordered = tuple(sorted(members, key=_place))
        return cls(ordered, _subscribers(ordered, partitions), partitions)


def _place(member: Member) -> tuple[bool, str, str]:
    """Static members first, by instance id; then the others by member id (AbstractPartitionAssignor.MemberInfo).

    A static member comes back from a restart under a new member id, and must get the same partitions.
    """
    return member.instance_id is None, member.instance_id or "", member.member_id


def _subscribers(members: Sequence[Member], partitions: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """See `Roster.subscribers`. Most groups have but one subscription, or a few: members are taken together by it."""
    # As sets: a topic named twice would get the member two shares in a range and two turns in a round.
    alike: dict[frozenset[str], list[int]] = {}
    for rank, member in enumerate(members):
        alike.setdefault(frozenset(member.subscription.topics), []).append(rank)
    groups = list(alike.values())
    groups_of: dict[str, list[int]] = {topic: [] for topic, count in sorted(partitions.items()) if count > 0}
    known = frozenset(groups_of)
    for number, topics in enumerate(alike):
        for topic in topics & known:
            groups_of[topic].append(number)
    ranks: dict[tuple[int, ...], tuple[int, ...]] = {}
    subscribers: dict[str, tuple[int, ...]] = {}
    for topic, numbers in groups_of.items():
        if numbers:
            key = tuple(numbers)
            subscribers[topic] = ranks.get(key) or ranks.setdefault(key, _merged(map(groups.__getitem__, numbers)))
    return subscribers


def _merged(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted(chain.from_iterable(groups)))
