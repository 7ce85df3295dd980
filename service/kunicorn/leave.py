"""`kunicorn leave`: takes the slot of a static member from it that will not come back (KIP-345).

A static member that dies keeps its partitions until its session times out, and one that is stopped sends no LeaveGroup
on purpose. Whoever scales a StatefulSet down for good frees the partitions with this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kunicorn.errors import ConfigError, FatalGroupError, PeerError, ServiceError
from kunicorn.settings import Settings
from kunicorn.visits import REQUEST_TIMEOUT, fetch_token, open_cluster, patiently
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.errors import AuthenticationFailed, BrokersUnreachable, CoordinatorUnavailable
from kunicorn.wire.group_admin import Described, DescribedMember, GroupAdmin

_PARTITIONS_SHOWN = 20

Say = Callable[[str], None]
Confirm = Callable[[], bool]
"""Whether the person who saw what was said wants it done. May block."""


def leave(settings: Settings, instance_id: str, say: Say, confirm: Confirm) -> None:
    """Show the static member, have it confirmed, remove it. Blocks.

    Raises `ConfigError` if there is nothing to remove, nobody confirmed or no broker answers; `FatalGroupError` if the
    group refuses.
    """
    if settings.assigned:
        raise ConfigError("there is no group to leave: these settings assign partitions by name; see [assign]")
    group_id = settings.group.id
    try:
        # Not inside a coroutine: the loop would hold back a Ctrl-C until the person answers.
        with asyncio.Runner() as runner, _opened(settings, runner) as admin:
            group = runner.run(patiently(admin.describe))
            member = _static_member(group, group_id, instance_id)
            for line in _shown(group, group_id, member):
                say(line)
            if not confirm():
                raise ConfigError("nothing was removed")
            error = runner.run(patiently(lambda: admin.remove(member, "removed by kunicorn leave")))
    except BrokersUnreachable as failure:
        raise ConfigError(f"{failure}; correct kafka.bootstrap_servers, or start them") from failure
    except AuthenticationFailed as failure:
        raise ConfigError(str(failure)) from failure
    except CoordinatorUnavailable as failure:
        raise _refused(failure.error, group_id, str(failure)) from failure
    except PeerError as failure:
        raise ConfigError(f"group {group_id!r}: {failure}; see whether the member is still there") from failure
    if error:
        raise _refused(error, group_id, f"static member {instance_id!r} was not removed")
    say(f"static member {instance_id} is removed: the others take its partitions over")


@contextmanager
def _opened(settings: Settings, runner: asyncio.Runner) -> Iterator[GroupAdmin]:
    kafka = settings.kafka
    cluster = open_cluster(kafka, runner.run(fetch_token(kafka)))
    try:
        yield GroupAdmin(cluster, settings.group.id, REQUEST_TIMEOUT)
    finally:
        runner.run(cluster.close())


def _static_member(group: Described, group_id: str, instance_id: str) -> DescribedMember:
    if group.error == ErrorCode.GROUP_ID_NOT_FOUND:
        raise ConfigError(f"there is no group {group_id!r} on this cluster: correct group.id")
    if group.error:
        raise _refused(group.error, group_id, group.why or "its members cannot be read")
    for member in group.members:
        if member.instance_id == instance_id:
            return member
    static = sorted(member.instance_id for member in group.members if member.instance_id is not None)
    there_are = f"its static members are {', '.join(static)}" if static else "it has no static members"
    raise ConfigError(
        f"group {group_id!r} has no static member {instance_id!r}: {there_are}; correct --instance, or it has left"
    )


def _refused(error: int, group_id: str, what: str) -> ServiceError:
    remedy = _REMEDIES.get(error, "ask whoever runs the cluster")
    return FatalGroupError(f"group {group_id!r}: {what}: {describe(error)}; {remedy}")


def _shown(group: Described, group_id: str, member: DescribedMember) -> list[str]:
    partitions = sorted(member.partitions)
    listed = " ".join(map(str, partitions[:_PARTITIONS_SHOWN])) + (" …" if len(partitions) > _PARTITIONS_SHOWN else "")
    return [
        f"group      {group_id}: {group.state}, {len(group.members)} members",
        f"member     {member.instance_id}: {member.member_id}",
        f"client     {member.client_id} at {member.host.removeprefix('/')}",
        f"partitions {len(partitions)}: {listed}".rstrip(": "),
        "Removing it starts a rebalance. If its process still runs, it loses its partitions, uncommitted, and rejoins.",
    ]


_REMEDIES: Mapping[int, str] = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this user DESCRIBE and READ on the group",
    ErrorCode.UNKNOWN_MEMBER_ID: "it has left meanwhile",
    ErrorCode.FENCED_INSTANCE_ID: "it has come back meanwhile, under a new member id; ask again if it is to go",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the brokers that hold __consumer_offsets are down; try again",
}
