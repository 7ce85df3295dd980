"""A scenario of another client's tests: what it is called there, and what it asks of a member of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Area = Literal[
    "join and sync",
    "heartbeat",
    "leave and close",
    "leader and metadata",
    "commit",
    "lost partitions",
    "consumer protocol (KIP-848)",
    "assignors and subscriptions",
    "connections and look-ups",
    "fetching",
    "coordinator",
    "whole clients",
]

NEVER_EXCUSED: frozenset[Area] = frozenset(
    {"join and sync", "heartbeat", "commit", "consumer protocol (KIP-848)"},
)
"""Areas in which every scenario has a test: whoever gets these wrong loses or repeats records."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`name` as in the client's own tests, for whoever wants to compare; `demand` in our words."""

    name: str
    area: Area
    demand: str
    cannot_apply: str | None = None
    """Why there is nothing of ours that could be put to this test."""
