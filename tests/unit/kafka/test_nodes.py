"""Whom to ask first."""

from __future__ import annotations

from kunicorn.kafka.cluster import NodeState, by_preference


def node(
    node_id: int,
    *,
    sick: bool = False,
    served: bool = False,
    connected: bool = False,
    in_flight: int = 0,
    tried_at: float = 0.0,
) -> NodeState:
    return NodeState(node_id, sick, served, connected, in_flight, tried_at)


def test_an_idle_connection_wins() -> None:
    nodes = [node(1), node(2, connected=True, in_flight=1), node(3, connected=True)]
    assert by_preference(nodes) == [3, 2, 1]


def test_without_connections_the_least_recently_tried_is_next() -> None:
    assert by_preference([node(1, tried_at=3.0), node(2, tried_at=1.0), node(3, tried_at=2.0)]) == [2, 3, 1]


def test_the_fewest_requests_in_flight_win_among_the_busy() -> None:
    nodes = [node(1, connected=True, in_flight=3), node(2, connected=True, in_flight=1)]
    assert by_preference(nodes) == [2, 1]


def test_a_sick_node_comes_last_even_if_it_is_connected() -> None:
    assert by_preference([node(1, sick=True, connected=True), node(2, tried_at=9.0)]) == [2, 1]


def test_equal_nodes_stay_in_the_order_given() -> None:
    assert by_preference([node(3), node(1), node(2)]) == [3, 1, 2]


def test_one_that_has_had_its_turn_comes_behind_the_others_and_before_the_sick() -> None:
    nodes = [node(1, served=True, connected=True), node(2, sick=True), node(3, tried_at=9.0)]
    assert by_preference(nodes) == [3, 1, 2]
