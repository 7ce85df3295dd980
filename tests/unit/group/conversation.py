"""A member of either protocol that is told events one by one, and what it orders."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar
from uuid import UUID

from kunicorn.group import events as ev
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.member import Timings
from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, SyncAnswer
from kunicorn.group.states import State
from kunicorn.positions import TopicPartition

T = TypeVar("T")
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, MEMBER_ID_REQUIRED, FENCED = 22, 25, 27, 79, 82
UNKNOWN_SERVER_ERROR = -1
NOT_AVAILABLE, NOT_COORDINATOR, LOADING, GROUP_NOT_FOUND = 15, 16, 14, 69
FENCED_EPOCH, UNRELEASED, STALE_EPOCH, UNSUPPORTED_VERSION = 110, 111, 113, 35
ORDERS = UUID("00000000-0000-4000-8000-000000000001")
ORDERS_ANEW = UUID("00000000-0000-4000-8000-000000000002")
NAMES = {ORDERS: "orders", ORDERS_ANEW: "orders"}


def tps(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", number) for number in numbers)


def owned(*numbers: int, topic_id: UUID = ORDERS) -> tuple[tuple[UUID, tuple[int, ...]], ...]:
    return ((topic_id, numbers),) if numbers else ()


class _Conversation:
    """A member, a clock, and everything the member ordered since one last looked."""

    member: ClassicMember | ConsumerMember

    def __init__(self) -> None:
        self.now = 100.0
        self.ordered: list[ev.Command] = []
        self.beat: Any = None
        """The heartbeat that is out."""

    @classmethod
    def settled(cls, *numbers: int, **given: Any) -> Self:
        """With a member that is stable and has these partitions. `given`: what it is made with."""
        talk = cls(**given)
        talk.settle(*numbers)
        return talk

    def settle(self, *numbers: int) -> None:
        raise NotImplementedError

    def tell(self, event: ev.Event, after: float = 0.0) -> list[ev.Command]:
        self.now += after
        self.ordered = self.receive(event)
        return self.ordered

    def receive(self, event: ev.Event) -> list[ev.Command]:
        commands = self.member.receive(event, self.now)
        for command in commands:
            if isinstance(command, ev.SendHeartbeat | ev.SendConsumerHeartbeat):
                self.beat = command
        return commands

    def order(self, kind: type[T]) -> T:
        found = [command for command in self.ordered if isinstance(command, kind)]
        assert len(found) == 1, f"expected one {kind.__name__} in {self.ordered}"
        return found[0]

    def kinds(self) -> list[str]:
        return [type(command).__name__ for command in self.ordered]

    def tick(self) -> None:
        """Wait for as long as the member has nothing to do."""
        self.tell(ev.Tick(), after=max(0.0, self.member.deadline() - self.now))

    def next_beat(self) -> Any:
        """The heartbeat that is out, or the next one."""
        if self.beat is None:
            self.tick()
        assert self.beat is not None
        return self.beat

    def look_up(self) -> None:
        """The coordinator is found."""
        self.order(ev.FindCoordinator)
        self.tell(ev.CoordinatorFound())

    def find_anew(self) -> None:
        """The coordinator was forgotten; it is found when it is looked up next."""
        self.tick()
        self.look_up()

    def leave(self) -> ev.Revoke:
        """The service stops."""
        self.tell(ev.LeaveWanted("SIGTERM"))
        return self.order(ev.Revoke)


class ClassicConversation(_Conversation):
    """With a member of a classic group."""

    member: ClassicMember

    def __init__(
        self, *, cooperative: bool = True, instance_id: str | None = None, timings: Timings | None = None
    ) -> None:
        super().__init__()
        self.assignor = "cooperative-sticky" if cooperative else "range"
        self.member = ClassicMember({self.assignor: cooperative}, timings or Timings(), random.Random(1), instance_id)

    def may_commit(self) -> bool:
        return self.member.may_commit

    def find(self) -> ev.SendJoin:
        self.tell(ev.JoinWanted())
        self.look_up()
        return self.order(ev.SendJoin)

    def join(
        self, request: ev.SendJoin, generation: int = 1, member_id: str = "me", leader: str = "other"
    ) -> ev.SendSync:
        self.tell(ev.Joined(request, JoinAnswer(0, generation, member_id, leader, "consumer", self.assignor)))
        return self.order(ev.SendSync)

    def sync(self, request: ev.SendSync, partitions: Sequence[TopicPartition]) -> None:
        self.tell(ev.Synced(request, SyncAnswer(0, tuple(partitions), "consumer", self.assignor), self.now))

    def settle(self, *numbers: int) -> None:
        """Become stable with these partitions."""
        self.sync(self.join(self.find()), tps(*numbers))
        assert self.member.state is State.STABLE

    def heartbeat(self, error: int = 0, *, commit_pending: bool = False) -> list[ev.Command]:
        """Answer the heartbeat that is out, or the next one."""
        beat, self.beat = self.next_beat(), None
        return self.tell(ev.HeartbeatAnswered(beat, error, commit_pending))

    def rejoin(self) -> ev.SendJoin:
        """It hears of a rebalance, and owns nothing that it would have to let go of before it joins."""
        self.heartbeat(REBALANCING)
        return self.order(ev.SendJoin)

    def certain_until(self, last: float, error: int = 0) -> float:
        """Until when membership is certain once heartbeats were answered so up to that time."""
        until = 0.0
        while self.now < last:
            self.heartbeat(error)
            until = self.order(ev.ExtendLease).until
        return until


class ConsumerConversation(_Conversation):
    """With a member that has the consumer protocol."""

    member: ConsumerMember

    def __init__(
        self, *, instance_id: str | None = None, names: Mapping[UUID, str] = NAMES, timings: Timings | None = None
    ) -> None:
        super().__init__()
        self.member = ConsumerMember("me", timings or Timings(), random.Random(1), instance_id)
        self.names = names
        self.epoch = 1

    def receive(self, event: ev.Event) -> list[ev.Command]:
        """Names of topics are answered at once."""
        ordered: list[ev.Command] = []
        events = [event]
        while events:
            commands = super().receive(events.pop())
            ordered += commands
            for command in commands:
                if isinstance(command, ev.NameTopics) and self.names:
                    known = {each: self.names[each] for each in command.topic_ids if each in self.names}
                    events.append(ev.TopicsNamed(command, known))
        return ordered

    def answer(
        self,
        assignment: Sequence[tuple[UUID, tuple[int, ...]]] | None = None,
        *,
        error: int = 0,
        epoch: int | None = None,
        message: str = "",
        commit_pending: bool = False,
    ) -> list[ev.Command]:
        """Answer the heartbeat that is out, or the next one."""
        beat, self.beat = self.next_beat(), None
        self.epoch = self.epoch if epoch is None else epoch
        target = None if assignment is None else tuple(assignment)
        answer = ConsumerHeartbeatAnswer(error, message, 0 if error else self.epoch, target)
        return self.tell(ev.ConsumerHeartbeatAnswered(beat, answer, commit_pending))

    def find(self) -> ev.SendConsumerHeartbeat:
        self.tell(ev.JoinWanted())
        self.look_up()
        return self.order(ev.SendConsumerHeartbeat)

    def settle(self, *numbers: int) -> None:
        """Become stable with these partitions."""
        self.find()
        self.answer(owned(*numbers), epoch=2)
        self.answer()
        assert self.member.state is State.STABLE
