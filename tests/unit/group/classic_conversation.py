"""A classic member that is told events one by one, and what it orders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from kunicorn.group import events as ev
from kunicorn.group.classic import ClassicMember
from kunicorn.group.member import Timings
from kunicorn.group.protocol import JoinAnswer, SyncAnswer
from kunicorn.group.states import State
from kunicorn.positions import TopicPartition

T = TypeVar("T")
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, MEMBER_ID_REQUIRED, FENCED = 22, 25, 27, 79, 82
UNKNOWN_SERVER_ERROR = -1
NOT_AVAILABLE, NOT_COORDINATOR, LOADING, GROUP_NOT_FOUND = 15, 16, 14, 69


def tps(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("orders", n) for n in numbers)


class Conversation:
    """A member, a clock, and everything the member ordered since one last looked."""

    def __init__(
        self, *, cooperative: bool = True, instance_id: str | None = None, timings: Timings | None = None
    ) -> None:
        name = "cooperative-sticky" if cooperative else "range"
        self.assignor = name
        self.member = ClassicMember({name: cooperative}, timings or Timings(), random.Random(1), instance_id)
        self.now = 100.0
        self.ordered: list[ev.Command] = []
        self.beat: ev.SendHeartbeat | None = None

    def tell(self, event: ev.Event, after: float = 0.0) -> list[ev.Command]:
        self.now += after
        self.ordered = self.member.receive(event, self.now)
        for command in self.ordered:
            self.beat = command if isinstance(command, ev.SendHeartbeat) else self.beat
        return self.ordered

    def order(self, kind: type[T]) -> T:
        found = [command for command in self.ordered if isinstance(command, kind)]
        assert len(found) == 1, f"expected one {kind.__name__} in {self.ordered}"
        return found[0]

    def kinds(self) -> list[str]:
        return [type(command).__name__ for command in self.ordered]

    def may_commit(self) -> bool:
        return self.member.may_commit

    # -- whole stretches of a conversation

    def find(self) -> ev.SendJoin:
        self.tell(ev.JoinWanted())
        self.order(ev.FindCoordinator)
        self.tell(ev.CoordinatorFound())
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
        if self.beat is None:
            self.tell(ev.Tick(), after=max(0.0, self.member.deadline() - self.now))
        beat, self.beat = self.beat, None
        assert beat is not None
        return self.tell(ev.HeartbeatAnswered(beat, error, commit_pending))
