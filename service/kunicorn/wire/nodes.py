"""Whom to ask when any broker will do; pure.

After `NetworkClient.java`, leastLoadedNode, with one addition: a node that failed is remembered. A dead broker stays
in everybody's metadata until it is fenced, seven to twelve seconds later, and each try there costs a whole time-out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node as the choice sees it. `tried_at` is monotonic, 0 if never."""

    node_id: int
    sick: bool
    connected: bool
    in_flight: int
    tried_at: float


def by_preference(nodes: Iterable[NodeState]) -> list[int]:
    """Node ids, best first: healthy before sick; connected and idle, then connected, then least recently tried.

    Stable: equal nodes stay in the order given, which the caller shuffles.
    """
    return [
        node.node_id
        for node in sorted(
            nodes,
            key=lambda node: (
                node.sick,
                not (node.connected and node.in_flight == 0),
                not node.connected,
                node.in_flight,
                node.tried_at,
            ),
        )
    ]
