"""Members told all that a driver could tell them, in any order: answers late, wrong, repeated, or to what is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import get_args
from uuid import UUID

from kunicorn.group import events as ev
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.member import Timings
from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, SyncAnswer
from kunicorn.group.states import OVER, State
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition

EVENTS: tuple[type, ...] = get_args(ev.Event)
ERRORS = (*(int(code) for code in ErrorCode), 999, *(14, 15, 16, 22, 25, 27, 30, 82, 110) * 8)
"""All there are, and mostly those that concern membership."""
_TROUBLE = 0.15
TOPIC_IDS = {UUID(int=1): "orders", UUID(int=2): "refunds"}
_REMEMBERED = 8
_HISTORY = 0.07
_MINE = TopicPartition("orders", 0)
PAST: tuple[ev.Command, ...] = (
    ev.SendJoin(1, "me", (), (), "long ago"),
    ev.MakePlan(1, "range", ()),
    ev.SendSync(1, "me", "range", {}),
    ev.SendHeartbeat(1, "me", 0.0),
    ev.SendLeave(1, "me", "long ago"),
    ev.SendConsumerHeartbeat(1, "me", True, (), 0.0),
    ev.NameTopics(frozenset(TOPIC_IDS)),
    ev.Revoke((_MINE,)),
)
"""Requests of an earlier life: answers to these mean nothing any more."""
Answer = Callable[["Storm", ev.Command], ev.Event]


class Storm:
    """One member, and what it has ordered lately; `pairs` collects what happened in which state."""

    def __init__(self, rng: Random, *, consumer: bool) -> None:
        self.rng = rng
        self.now = 100.0
        self.instance_id = rng.choice((None, "pod-0"))
        self.member: ClassicMember | ConsumerMember
        if consumer:
            self.member = ConsumerMember("me", Timings(), rng, self.instance_id)
        else:
            name, cooperative = rng.choice((("range", False), ("cooperative-sticky", True)))
            self.member = ClassicMember({name: cooperative}, Timings(), rng, self.instance_id)
            self.assignor = name
        self.ordered: list[ev.Command] = []
        self.pairs: set[tuple[State, type]] = set()

    def play(self, most: int, leaving: float) -> int:
        """So many events at most, among them with that probability one that ends the story; returns how many."""
        for told in range(most):
            if self.member.state in OVER:
                return told
            self.tell(self.something(leaving))
        return most

    def tell(self, event: ev.Event) -> None:
        """Raises `IllegalTransition` where the tables have no row for what the member makes of it."""
        self.pairs.add((self.member.state, type(event)))
        self.now += self.rng.choice((0.0, 0.0, 0.1, 1.0, 60.0))
        commands = self.member.receive(event, self.now)
        self.ordered = [*self.ordered, *commands][-_REMEMBERED:]

    def something(self, leaving: float) -> ev.Event:
        """Anything that might happen."""
        if self.rng.random() < leaving:
            return ev.LeaveWanted("stopped")
        if self.rng.random() < _HISTORY:
            past = self.rng.choice(PAST)
            return self.rng.choice(ANSWERS[type(past)])(self, past)
        asked = [command for command in self.ordered if type(command) in ANSWERS]
        if asked and self.rng.random() < 0.7:
            # Mostly what was asked last: stories that never get anywhere show little.
            command = asked[-1] if self.rng.random() < 0.7 else self.rng.choice(asked)
            if isinstance(command, get_args(ev.Request)) and self.rng.random() < 0.1:
                return ev.Unanswered(command, "timed out")
            return self.rng.choice(ANSWERS[type(command)])(self, command)
        # Nothing is ever committed under no generation.
        generation = max(0, self.rng.choice((self.member.generation, self.member.generation, 0)))
        return self.rng.choice((
            ev.Tick(),
            ev.JoinWanted(),
            ev.TopicsChanged("more partitions"),
            ev.CommitRefused(generation, self.member.member_id, self.rng.choice(ERRORS)),
            ev.SessionTold(self.rng.choice((6.0, 60.0))),
        ))  # fmt: skip

    def error(self) -> int:
        return self.rng.choice(ERRORS) if self.rng.random() < _TROUBLE else 0

    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self.rng.sample(range(4), self.rng.randrange(5))))


def _joined(storm: Storm, request: ev.Command) -> ev.Event:
    assert isinstance(request, ev.SendJoin)
    error, leader = storm.error(), storm.rng.choice(("me", "other", ""))
    answer = JoinAnswer(
        error, max(request.generation, 0) + 1, "me", leader, "consumer", getattr(storm, "assignor", None)
    )
    return ev.Joined(request, answer)


def _synced(storm: Storm, request: ev.Command) -> ev.Event:
    assert isinstance(request, ev.SendSync)
    partitions = tuple(TopicPartition("orders", number) for number in storm.numbers())
    unreadable = "junk" if storm.rng.random() < _TROUBLE else ""
    return ev.Synced(request, SyncAnswer(storm.error(), partitions, unreadable=unreadable), storm.now)


def _consumer_heartbeat(storm: Storm, request: ev.Command) -> ev.Event:
    assert isinstance(request, ev.SendConsumerHeartbeat)
    assignment = storm.rng.choice((None, ((storm.rng.choice(list(TOPIC_IDS)), storm.numbers()),)))
    answer = ConsumerHeartbeatAnswer(storm.error(), "", storm.rng.choice((-1, 0, 1, 2, 3)), assignment)
    return ev.ConsumerHeartbeatAnswered(request, answer, storm.rng.random() < 0.2)


def _named(storm: Storm, request: ev.Command) -> ev.Event:
    assert isinstance(request, ev.NameTopics)
    return ev.TopicsNamed(request, storm.rng.choice(({}, TOPIC_IDS)))


def _released(storm: Storm, request: ev.Command) -> ev.Event:
    assert isinstance(request, ev.Revoke)
    can_revoke_later = storm.member.can_revoke_later and len(request.partitions) > 1
    return ev.Released(request, frozenset(request.partitions[:1]) if can_revoke_later else frozenset())


ANSWERS: Mapping[type, tuple[Answer, ...]] = {
    ev.FindCoordinator: (
        lambda storm, _: ev.CoordinatorFound(storm.rng.choice((None, 6.0))),
        lambda storm, _: ev.CoordinatorRefused(storm.error(), "refused"),
    ),
    ev.SendJoin: (_joined,),
    ev.MakePlan: (
        lambda _, request: ev.Planned(request, {}),  # type: ignore[arg-type]
        lambda _, request: ev.PlanFailed(request, "no metadata"),  # type: ignore[arg-type]
    ),
    ev.SendSync: (_synced,),
    ev.SendHeartbeat: (
        lambda storm, request: ev.HeartbeatAnswered(request, storm.error(), storm.rng.random() < 0.2),  # type: ignore[arg-type]
    ),
    ev.SendLeave: (lambda storm, request: ev.LeaveAnswered(request, storm.error()),),  # type: ignore[arg-type]
    ev.SendConsumerHeartbeat: (_consumer_heartbeat,),
    ev.NameTopics: (_named,),
    ev.Revoke: (_released,),
}
