"""`kunicorn leave`: removes a static member from its group (KIP-345). Small, as each command is loaded alone.

A static member that dies keeps its partitions until its session times out, and one that is stopped sends no LeaveGroup
on purpose. An operator who scales a StatefulSet down for good frees the partitions with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kunicorn.clients.session import NOT_TOLD, cluster_session
from kunicorn.commands.group_lag import described, member_json
from kunicorn.errors import ConfigError
from kunicorn.kafka.admin import Described, DescribedMember
from kunicorn.kafka_errors import ErrorCode
from kunicorn.settings import Settings
from kunicorn.text import listed, printable, tell

Say = Callable[[str], None]
Confirm = Callable[[], bool]
"""Whether the person who saw what was said wants it done. May block."""


@dataclass(frozen=True, slots=True)
class StaticMember:
    """The member that is to be removed, or is removed, and its group."""

    group_id: str
    group: Described
    member: DescribedMember

    def lines(self) -> Iterator[str]:
        member, partitions = self.member, sorted(self.member.partitions)
        yield f"group      {self.group_id}: {self.group.state}, {len(self.group.members)} members"
        yield printable(f"member     {member.instance_id}: {member.member_id}")
        yield printable(f"client     {member.client_id} at {member.address}")
        yield f"partitions {len(partitions)}: {listed(partitions)}".rstrip(": ")
        yield (
            "Removing it starts a rebalance. If its process still runs, it loses its partitions, uncommitted, and "
            "rejoins."
        )

    def as_json(self) -> dict[str, Any]:
        return {"group": self.group_id, "removed": member_json(self.member)}


def leave(settings: Settings, instance_id: str, say: Say, confirm: Confirm, *, as_json: bool = False) -> None:
    """Show the static member, ask for confirmation, remove it. With `as_json` say nothing before it is done. Blocks.

    Raises `ConfigError` if there is nothing to remove, nobody confirmed or no broker answers; `FatalGroupError` if the
    group refuses.
    """
    if settings.assigned:
        raise ConfigError("there is no group to leave: these settings assign partitions by name; see [assign]")
    group_id = settings.group.id
    with cluster_session(settings, when_lost="see whether the member is still there") as session:
        group = described(session)
        found = StaticMember(group_id, group, _static_member(group, group_id, instance_id))
        if not as_json:
            tell(found, say, as_json=False)
        if not confirm():
            raise ConfigError("nothing was removed")
        error = session.ask(lambda: session.group.remove(found.member, "removed by kunicorn leave"))
        if error:
            raise session.refused(error, f"static member {instance_id!r} was not removed")
    if as_json:
        tell(found, say, as_json=True)
    else:
        say(f"static member {instance_id} is removed: the others take its partitions over")


def _static_member(group: Described, group_id: str, instance_id: str) -> DescribedMember:
    if group.error == ErrorCode.GROUP_ID_NOT_FOUND:
        raise ConfigError(f"there is no group {group_id!r} on this cluster: correct group.id")
    if group.state == NOT_TOLD:
        raise ConfigError(
            f"group {group_id!r}: these brokers do not tell its members, as Kafka before 2.4 and the embedded one; "
            f"wait until the session of {instance_id!r} is over (group.session_timeout_ms)"
        )
    for member in group.members:
        if member.instance_id == instance_id:
            return member
    static = sorted(member.instance_id for member in group.members if member.instance_id is not None)
    there_are = f"its static members are {printable(', '.join(static))}" if static else "it has no static members"
    raise ConfigError(
        f"group {group_id!r} has no static member {instance_id!r}: {there_are}; correct --instance, or it has left"
    )
