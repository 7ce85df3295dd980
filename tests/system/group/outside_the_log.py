"""How a position comes to lie outside the log, and what a member says of it."""

from __future__ import annotations

import re

from tests.system.members import MemberProcess


def says_where_it_goes_on(member: MemberProcess, position: int, target: int) -> bool:
    """Whether the log tells of a position outside the log and of its replacement."""
    return bool(
        re.search(rf"WARNING .*position {position} is not in the log.* going on at {target}\b", member.output())
    )


def resets(member: MemberProcess) -> float:
    """The counter of positions that were not in the log."""
    return member.metric("kunicorn_offset_resets_total")
