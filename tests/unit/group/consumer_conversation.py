"""A member with the consumer protocol that is told events one by one, and what it orders."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from kunicorn.group import events as ev
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.member import Timings
from kunicorn.group.protocol import ConsumerHeartbeatAnswer
from kunicorn.group.states import State
from kunicorn.positions import TopicPartition

T = TypeVar("T")
ORDERS = UUID("00000000-0000-4000-8000-000000000001")
ORDERS_ANEW = UUID("00000000-0000-4000-8000-000000000002")
NAMES = {ORDERS: "orders", ORDERS_ANEW: "orders"}
NOT_AVAILABLE, NOT_COORDINATOR, LOADING, UNKNOWN_MEMBER, FENCED_INSTANCE = 15, 16, 14, 25, 82
FENCED_EPOCH, UNRELEASED, STALE_EPOCH, UNSUPPORTED_VERSION = 110, 111, 113, 35


def tps(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", number) for number in numbers)


def owned(*numbers: int, topic_id: UUID = ORDERS) -> tuple[tuple[UUID, tuple[int, ...]], ...]:
    return ((topic_id, numbers),) if numbers else ()


class Conversation:
    """A member, a clock, and everything the member ordered since one last looked."""

    def __init__(
        self, *, instance_id: str | None = None, names: Mapping[UUID, str] = NAMES, timings: Timings | None = None
    ) -> None:
        self.member = ConsumerMember("me", timings or Timings(), random.Random(1), instance_id)
        self.names = names
        self.now = 100.0
        self.ordered: list[ev.Command] = []
        self.beat: ev.SendConsumerHeartbeat | None = None
        self.epoch = 1

    def tell(self, event: ev.Event, after: float = 0.0) -> list[ev.Command]:
        """Names of topics are answered at once."""
        self.now += after
        self.ordered = []
        events = [event]
        while events:
            commands = self.member.receive(events.pop(), self.now)
            self.ordered += commands
            for command in commands:
                self.beat = command if isinstance(command, ev.SendConsumerHeartbeat) else self.beat
                if isinstance(command, ev.NameTopics) and self.names:
                    known = {each: self.names[each] for each in command.topic_ids if each in self.names}
                    events.append(ev.TopicsNamed(command, known))
        return self.ordered

    def order(self, kind: type[T]) -> T:
        found = [command for command in self.ordered if isinstance(command, kind)]
        assert len(found) == 1, f"expected one {kind.__name__} in {self.ordered}"
        return found[0]

    def kinds(self) -> set[str]:
        return {type(command).__name__ for command in self.ordered}

    def next_beat(self) -> ev.SendConsumerHeartbeat:
        """The heartbeat that is out, or the next one."""
        if self.beat is None:
            self.tell(ev.Tick(), after=max(0.0, self.member.deadline() - self.now))
        assert self.beat is not None
        return self.beat

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

    def state(self) -> State:
        return self.member.state

    # -- whole stretches of a conversation

    def find(self) -> ev.SendConsumerHeartbeat:
        self.tell(ev.JoinWanted())
        self.order(ev.FindCoordinator)
        self.tell(ev.CoordinatorFound())
        return self.order(ev.SendConsumerHeartbeat)

    def settle(self, *numbers: int) -> None:
        """Become stable with these partitions."""
        self.find()
        self.answer(owned(*numbers), epoch=2)
        self.answer()
        assert self.member.state is State.STABLE
