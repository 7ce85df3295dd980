"""A group's offsets, committed by a job that is not its member. Every function blocks.

1. The broker is the fence: it refuses commits of strangers while the group has members (UNKNOWN_MEMBER_ID). So a live
   member that comes back stops a job, never the other way round.
2. Between two jobs the broker knows no difference. Each commits with its run's name as metadata, and before every
   commit checks that it finds its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

from kunicorn.clients.session import JOB_PATIENCE, ClusterSession, Passing, cluster_session
from kunicorn.errors import FatalGroupError
from kunicorn.group.reactions import Api, Reaction, reaction
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import NO_EPOCH, Offsets, Position, TopicPartition
from kunicorn.settings import Settings

_PAUSE = 1.0
_FENCED = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS,
     ErrorCode.NON_EMPTY_GROUP, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH}
)  # fmt: skip


def commit(
    session: ClusterSession,
    offsets: Offsets,
    metadata: str,
    own: Mapping[TopicPartition, str] | None = None,
    epochs: Mapping[TopicPartition, int] | None = None,
    retention: timedelta | None = None,
) -> None:
    """Commit for the session's group without being a member. `own`: metadata of single partitions in place of
    `metadata`. `epochs`: leader epochs that had these offsets, as far as they are known, so that whoever goes on from
    there notices a log that was truncated before them (KIP-320). `retention`: the brokers are asked to keep the offsets
    for so long, where they can be asked; that version of the request has no epochs, which `own` may have instead.
    Sends it again where the coordinator asks for that, for as long as the session is patient. Raises `FatalGroupError`
    where the broker refuses.
    """
    if not offsets:
        return
    positions = {
        tp: Position(at, (epochs or {}).get(tp, NO_EPOCH), (own or {}).get(tp, "")) for tp, at in offsets.items()
    }
    kept = retention if retention is not None and session.ask(session.group.takes_retention) else None

    async def decided() -> Mapping[TopicPartition, int]:
        answers = await session.group.commit(positions, metadata, kept)
        refused = {tp: error for tp in offsets if (error := answers.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR))}
        final = {tp: error for tp, error in refused.items() if not _passes(error)}
        if refused and not final:
            tp, error = next(iter(refused.items()))
            raise Passing(error, f"the commit of {tp} is refused")
        return final

    for tp, error in session.ask(decided).items():
        if error in _FENCED:
            raise FatalGroupError(
                f"group {session.group_id!r} has members again and refuses our commit ({ErrorCode(error).name}): the "
                f"live service goes on from what was committed and handles what was underway, too. "
                f"Stop it first to catch up; nothing is lost"
            )
        raise session.refused(error, f"the commit of {tp} is refused")


def _passes(error: int) -> bool:
    """Whether the commit may be taken when it is sent again, by the live service's reading of the code."""
    return error not in _FENCED and reaction(Api.COMMIT, error) in {Reaction.RETRY, Reaction.REDISCOVER}


def group_members(settings: Settings) -> list[str]:
    """Names of the group's members, for people; none where it is empty or does not exist.

    Raises `ConfigError`, `FatalGroupError`.
    """
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        members = session.described().members
    return [each.instance_id or f"{each.client_id} at {each.address}" for each in members]


def wait_until_empty(settings: Settings, seconds: float) -> None:
    """Wait up to `seconds` for the members to leave. Raises `FatalGroupError` where they do not."""
    deadline = time.monotonic() + seconds
    while members := group_members(settings):
        if time.monotonic() >= deadline:
            raise FatalGroupError(
                f"group {settings.group.id!r} has {len(members)} member(s): {', '.join(sorted(members)[:5])}. Stop the "
                f"live service first (--wait waits for it). A static member stays until its session times out: "
                f"kunicorn leave removes it"
            )
        time.sleep(min(_PAUSE, max(0.05, deadline - time.monotonic())))
