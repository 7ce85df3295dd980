"""Facts that one part of the supervisor writes and others read. Small, as it lies below all parts, who share only this.

- `MemberState`: our membership in the group, as of the last event. Written by the group driver alone; where [assign]
  names the partitions there is no group, and it stays as it was made.
- `SettingsInForce`: the settings as the last reload has left them. Written by `Reloader`, and by `Templates` what the
  handlers' code says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kunicorn.group.protocol import NO_GENERATION
from kunicorn.group.states import State
from kunicorn.observe import logs
from kunicorn.settings import Settings, WorkerSettings, shown
from kunicorn.settings.load import Reloaded, reloaded
from kunicorn.supervisor.notifier import Notifier


@dataclass(slots=True)
class MemberState:
    """Our membership: who we are to the coordinator, and whether it takes commits of ours."""

    instance_id: str | None = None
    state: State = State.IDLE
    consumer_protocol: bool = False
    member_id: str = ""
    generation: int = NO_GENERATION
    """The member epoch with the consumer protocol."""
    joined: bool = False
    """Has been stable at least once."""
    coordinator_known: bool = False
    cluster_id: str = ""
    """Of the brokers; empty where they tell none."""
    generation_commits: bool = False
    """Whether the broker takes commits of our generation (invariant 2)."""
    changed: Notifier = field(default_factory=Notifier)
    """Notified after each event of the member."""

    @property
    def may_commit(self) -> bool:
        """Whether a commit can be sent, and would be taken."""
        return self.generation_commits and self.coordinator_known

    @property
    def stable(self) -> bool:
        """Whether no rebalance is under way."""
        return self.state is State.STABLE

    @property
    def reader(self) -> tuple[str | None, int]:
        """Member id and epoch to read committed offsets under; neither where the protocol has no use for them."""
        return (self.member_id, self.generation) if self.consumer_protocol else (None, NO_GENERATION)


@dataclass(frozen=True, slots=True)
class TopicHandling:
    """How the records of a topic are handled, as far as it matters in the supervisor."""

    poison_halts: bool = True
    batches: bool = False
    timeout_ms: int | None = None
    batch_ms: int = 0
    """How long a record may wait for a fuller batch."""


class SettingsInForce:
    """Settings that a reload may change: each part reads them here whenever it needs one."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings]) -> None:
        """`reread` loads the settings again, may block, and raises `ConfigError`."""
        self.settings = settings
        self.shown = shown(settings)
        """What may be shown of them: no secrets."""
        self._reread = reread
        self._keepers: frozenset[str] = frozenset()
        self._delays_ms: dict[str, int] = {}

    @property
    def workers(self) -> WorkerSettings:
        """The settings of the pool."""
        return self.settings.workers

    def handling(self, topic: str) -> TopicHandling:
        """The handling of a topic's records, by its handler's settings."""
        handler = self.settings.handler_of(topic)
        return TopicHandling(
            handler.on_failure == "halt", handler.mode != "record", handler.handler_timeout_ms, handler.batch_max_ms
        )

    def delay_ms(self, topic: str) -> int:
        """How long after their timestamps that topic's records are handled at the earliest."""
        if (found := self._delays_ms.get(topic)) is None:
            found = self._delays_ms[topic] = self.settings.delay_ms_of(topic)
        return found

    def forget(self, topic: str) -> None:
        """Forget what was looked up for a topic that is gone."""
        self._delays_ms.pop(topic, None)

    def keeps_offsets(self, topic: str) -> bool:
        """Whether that topic's handler keeps the offsets itself, beside its effects."""
        return bool(self._keepers) and self.settings.handler_of(topic).entrypoint in self._keepers

    @property
    def all_keep_offsets(self) -> bool:
        """Whether every handler keeps its offsets itself."""
        return all(handler.entrypoint in self._keepers for handler in self.settings.every_handler)

    async def read_again(self) -> Reloaded:
        """The settings that a reload would put in force. Raises `ConfigError`."""
        return reloaded(self.settings, await asyncio.to_thread(self._reread))

    def replace(self, settings: Settings) -> None:
        """Put these in force. Caller: `Reloader`."""
        self.settings, self.shown, self._delays_ms = settings, shown(settings), {}
        logs.adjust(settings.log.level, settings.log.format)

    def code_in_use(self, keepers: frozenset[str]) -> None:
        """`keepers`: entry points of handlers that keep their offsets. Caller: `Templates`, with the code in use."""
        self._keepers = keepers
