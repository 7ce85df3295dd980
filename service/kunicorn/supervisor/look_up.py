"""The look-up of the group's coordinator: what came of it as an event, and in the log as often as that helps."""

from __future__ import annotations

from kunicorn.errors import PeerError
from kunicorn.group import events as ev
from kunicorn.observe import logs
from kunicorn.pipes import clock
from kunicorn.supervisor.consumer_requests import ConsumerRequests
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.errors import CoordinatorUnavailable

log = logs.get("kunicorn.membership")

_TOLD_EVERY = 10.0
"""Seconds. A dead coordinator is named by the brokers for as long as that, and asked for up to ten times a second."""


class LookUp:
    """Caller: the membership, one at a time."""

    def __init__(self, group_id: str, coordinator: Coordinator, consumer: ConsumerRequests) -> None:
        self._group_id = group_id
        self._coordinator = coordinator
        self._consumer = consumer
        self._told_at = float("-inf")

    async def ask(self, protocol: str) -> ev.CoordinatorFound | ev.CoordinatorRefused:
        """Who it is and, where the group has the consumer protocol, what of it has to be known before joining.

        Raises `ConfigError` where joining would convert a group that nobody asked to convert.
        """
        try:
            node = await self._coordinator.find()
            session_timeout = None
            if protocol == "consumer":
                await self._consumer.check_conversion()
                session_timeout = await self._consumer.session_timeout()
        except CoordinatorUnavailable as error:
            return self._refused(error.error, str(error))
        except PeerError as error:
            return self._refused(0, str(error))
        log.info(f"the coordinator of group {self._group_id!r} is node {node.node_id} at {node.host}:{node.port}")
        self._told_at = float("-inf")
        return ev.CoordinatorFound(session_timeout)

    def _refused(self, error: int, why: str) -> ev.CoordinatorRefused:
        if clock.now() >= self._told_at + _TOLD_EVERY:
            self._told_at = clock.now()
            log.warning(f"the coordinator of group {self._group_id!r} is not known: {why}")
        return ev.CoordinatorRefused(error, why)
