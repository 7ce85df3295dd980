"""What this member would be given, were it started now. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kunicorn.check.findings import Finding
from kunicorn.errors import ExitCode
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.protocol import Member, Subscription
from kunicorn.group.sharing import workers_wanted
from kunicorn.settings import Settings
from kunicorn.wire.consumer_protocol import decode_subscription
from kunicorn.wire.group_admin import Described, conversion_refused

_NEWCOMER = "\uffff this member"
"""Sorts behind the members there are, as a newcomer's id usually does not, but its share does not depend on it."""


def predicted(settings: Settings, group: Described, topics: Mapping[str, int]) -> Finding:
    """How many partitions this member would have beside those that `group` has, and its workers each.

    With the classic protocol as the group's own strategy would plan it; with the consumer protocol the brokers plan
    (KIP-848), evenly.
    """
    if group.classic and settings.group.group_protocol == "consumer" and not settings.group.allow_protocol_upgrade:
        return Finding("members", conversion_refused(settings.group.id, group), ExitCode.CONFIGURATION)
    total, others = sum(topics.values()), len(group.members)
    instance = settings.group.group_instance_id
    if instance is not None and any(member.instance_id == instance for member in group.members):
        return Finding(
            "members", f"{others}; one of them is {instance}: this member would take its place and partitions"
        )
    share = _planned(settings, group, topics) if others and group.strategy in ASSIGNORS else None
    if share is None:
        share = -(-total // (others + 1))
    if total and not share:
        return Finding("members", f"{others} already share {total} partitions: this member would idle", warning=True)
    workers = workers_wanted(share, settings.workers.count)
    return Finding(
        "members",
        f"{others or 'none'} now; this member would get {share} of {total} partitions, "
        f"for {min(workers, share) or 'no'} of its {settings.workers.count} workers",
    )


def _planned(settings: Settings, group: Described, topics: Mapping[str, int]) -> int:
    members = [
        Member(each.member_id, decode_subscription(group.strategy, each.member_id, each.metadata), each.instance_id)
        for each in group.members
    ]
    newcomer = Member(_NEWCOMER, Subscription(tuple(topics), rack=settings.kafka.client_rack))
    # In a first round a cooperative plan gives nobody what another one still has to give back (KIP-429).
    strategy = "sticky" if ASSIGNORS[group.strategy].cooperative else group.strategy
    return len(ASSIGNORS[strategy].plan([*members, newcomer], topics)[_NEWCOMER])
