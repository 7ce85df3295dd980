"""Partitions that the group assigns: the membership, the commits and the revoke hook, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from kunicorn.group.states import State
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import GroupStatus, RebalanceStatus
from kunicorn.settings import Settings
from kunicorn.supervisor.brokers import Brokers
from kunicorn.supervisor.commits import Commits
from kunicorn.supervisor.fetchers import Fetchers
from kunicorn.supervisor.handover import Handover
from kunicorn.supervisor.membership import Membership
from kunicorn.supervisor.source import Words
from kunicorn.supervisor.starts import Starts, look_up
from kunicorn.supervisor.topics import Topics
from kunicorn.supervisor.windows import Windows
from kunicorn.topics import TopicPartition
from kunicorn.wire.coordinator import Coordinator


class GroupAssignment:
    """Implements `Source`."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        brokers: Brokers,
        topics: Topics,
        fetchers: Fetchers,
        metrics: Metrics,
        extend_lease: Callable[[int], None],
        fatal: Callable[[Exception], None],
    ) -> None:
        """Only puts the parts together."""
        self._settings = settings
        self._coordinator = coordinator
        self._brokers = brokers
        self._fetchers = fetchers
        self._membership = Membership(settings, coordinator, topics, fetchers, metrics, extend_lease, fatal)
        self.commits = Commits(self._membership, fetchers.table.consumed, fetchers.table.committed, metrics)
        self._handover = Handover(settings, fetchers, self.commits, metrics)
        self._membership.use(self.commits)
        if settings.producing.in_transactions:
            windows = Windows(settings.group.group_instance_id)
            windows.standing = self._membership
            fetchers.windows = self.commits.windows = windows
            fetchers.table.workers_commit = True
        self._membership.handover = self._handover
        brokers.identity = self._membership.identity

    @property
    def words(self) -> Words:
        """See `Source`."""
        static = self._settings.group.group_instance_id is not None
        last = "a static member keeps its place in the group" if static else "leaving the group"
        return Words(
            leaving=f"draining, committing; {last}",
            clean="everything handled is committed",
            unclean="not everything handled is committed: it will be handled again by the next owner",
            overdue="not out of the group",
        )

    @property
    def asked(self) -> asyncio.Event:
        """See `Source`."""
        return self._coordinator.join_sent

    @property
    def steady(self) -> bool:
        """See `Source`."""
        return self._membership.member.state is State.STABLE

    @property
    def over(self) -> bool:
        """See `Source`."""
        return self._membership.over.is_set()

    @property
    def unfinished(self) -> int:
        """See `Source`."""
        return self._handover.uncommitted

    async def run(self) -> None:
        """See `Source`."""
        await self._membership.run()

    def works(self) -> Sequence[Awaitable[None]]:
        """See `Source`."""
        return [self.commits.every(self._settings.group.commit_interval_ms / 1000)]

    def leave(self, reason: str) -> None:
        """See `Source`."""
        self._membership.leave(reason)

    def hurry(self) -> None:
        """See `Source`: the next owner handles what is in hand again."""
        self._handover.uncommitted += max(1, len(self._fetchers.table.consumed()))

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        """See `Source`: what the group has committed, else by policy."""
        settings = self._settings
        return await look_up(self._brokers, partitions, settings.group.auto_offset_reset, settings.retry_topics)

    def assign(self) -> None:
        """See `Source`."""

    def group(self, now: float) -> GroupStatus:
        """See `Source`."""
        member, node = self._membership.member, self._coordinator.node
        return GroupStatus(
            group_id=self._settings.group.id,
            protocol=self._membership.protocol,
            state=member.state.value,
            member_id=member.member_id,
            instance_id=member.instance_id,
            generation=member.generation,
            leader=member.leader,
            assignor=member.assignor,
            coordinator=f"{node.node_id} at {node.host}:{node.port}" if node is not None else None,
            joined=member.joined,
            heartbeat_age=None if member.heartbeat_ok_at is None else now - member.heartbeat_ok_at,
            lease_left=None if member.certain_until is None else member.certain_until - now,
            session_timeout=member.session_timeout,
            rebalances=member.history.count,
            last_rebalances=tuple(
                RebalanceStatus(r.generation, r.reason, r.result, r.seconds, now - r.ended_at)
                for r in member.history.recent
            ),
        )
