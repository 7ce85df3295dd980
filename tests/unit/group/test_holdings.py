"""What is owned by topic id, against what is assigned."""

from __future__ import annotations

from uuid import UUID

from kunicorn.group.consumer import Holdings
from kunicorn.positions import TopicPartition

OLD, NEW = UUID(int=1), UUID(int=2)


def test_partitions_of_a_topic_without_a_name_wait_for_it() -> None:
    holdings = Holdings()
    holdings.target = ((OLD, (0, 1)),)
    assert (holdings.take_up(), holdings.unnamed) == ((), frozenset({OLD}))
    holdings.name({OLD: "orders"})
    assert holdings.take_up() == (TopicPartition("orders", 0), TopicPartition("orders", 1))
    assert holdings.take_up() == (), "once"


def test_a_topic_created_anew_is_surplus_first_and_new_afterwards() -> None:
    holdings = Holdings()
    holdings.name({OLD: "orders", NEW: "orders"})
    holdings.target = ((OLD, (0,)),)
    zero = holdings.take_up()
    holdings.target = ((NEW, (0,)),)
    assert (holdings.surplus(), holdings.take_up()) == (zero, ())
    holdings.release(zero)
    assert (holdings.surplus(), holdings.take_up()) == ((), zero)


def test_the_report_names_each_topic_once_in_order() -> None:
    holdings = Holdings()
    holdings.name({OLD: "orders", NEW: "refunds"})
    holdings.target = ((NEW, (3,)), (OLD, (1, 0)))
    holdings.take_up()
    assert holdings.report() == ((OLD, (0, 1)), (NEW, (3,)))


def test_names_of_topics_that_come_and_go_are_dropped_as_others_come() -> None:
    holdings = Holdings()
    for day in range(1, 100):
        topic_id = UUID(int=day)
        holdings.target = ((topic_id, (0,)),)
        assert holdings.take_up() == ()
        holdings.name({topic_id: f"day-{day}"})
        assert holdings.take_up() == (TopicPartition(f"day-{day}", 0),)
        if day > 1:
            assert len(holdings._names) == 2, "what still drains has its name, too"
            holdings.release([TopicPartition(f"day-{day - 1}", 0)])
    assert holdings.owned == {TopicPartition("day-99", 0)}


def test_dropping_tells_what_was_owned_and_forgets_the_assignment() -> None:
    holdings = Holdings()
    holdings.name({OLD: "orders"})
    holdings.target = ((OLD, (0,)),)
    owned = holdings.take_up()
    assert holdings.drop() == owned
    assert (holdings.owned, holdings.take_up()) == (frozenset(), ())
