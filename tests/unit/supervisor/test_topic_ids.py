"""When another id is another topic, and when it is a broker that has not heard of it."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from uuid import UUID

from kunicorn.supervisor.topics import TopicIds

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def changes(ids: TopicIds, answers: Iterable[UUID | None]) -> list[UUID | None]:
    """What counted after each answer that has changed it."""
    return [ids.now("orders") for answer in answers if ids.hear("orders", answer)]


def test_an_id_that_two_answers_in_a_row_name_is_another_topic() -> None:
    ids = TopicIds()
    assert changes(ids, [A, A, B]) == []
    assert ids.now("orders") == A
    assert ids.is_unsure("orders")
    assert changes(ids, [B, B, B]) == [B]
    assert ids.changed_since_first("orders")
    assert not ids.is_unsure("orders")


def test_a_topic_that_was_gone_is_another_one_at_once() -> None:
    assert changes(TopicIds(), [A, None, B]) == [B]


def test_a_topic_that_comes_back_under_its_own_id_was_never_gone() -> None:
    assert changes(TopicIds(), [A, None, A, B, A]) == []


def test_a_topic_that_is_created_anew_twice_is_another_one_twice() -> None:
    assert changes(TopicIds(), [A, B, B, C, C]) == [B, C]


def test_brokers_of_different_age_take_nothing_back_by_turns() -> None:
    assert changes(TopicIds(), [A, *[B, A] * 1000]) == []
    assert changes(TopicIds(), [A, B, B, *[A, A, B, B] * 1000]) == [B]


def test_what_a_broker_of_the_age_between_says_does_not_hide_the_truth_for_ever() -> None:
    """The topic was created anew twice; the first of the two ids is seen last."""
    assert changes(TopicIds(), [A, C, C, B, B, *[C] * 100]) == [C, B, C]


def test_the_longer_brokers_disagree_the_rarer_are_decisions() -> None:
    for seed in range(20):
        rng = Random(seed)
        told: list[UUID] = [A]
        while len(told) < 100_000:
            told += [rng.choice((A, B))] * rng.randint(1, 5)
        assert len(changes(TopicIds(), told)) <= 6, seed


def test_an_id_under_which_partitions_are_assigned_counts_at_once() -> None:
    ids = TopicIds()
    assert not ids.adopt("orders", A)
    assert ids.adopt("orders", B)
    assert changes(ids, [A, A, A]) == []
