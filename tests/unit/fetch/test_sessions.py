"""Incremental fetch sessions: each request names what has changed, and a session that is over begins anew."""

from __future__ import annotations

import pytest

from kunicorn.fetch.sessions import Ask, Session
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER = b"i" * 16, b"o" * 16


def begun() -> Session:
    """A session, number 7, of both partitions."""
    session = Session()
    session.put(A, Ask(ID, 10))
    session.put(B, Ask(ID, 20))
    first = session.next()
    assert (first.session_id, first.epoch, set(first.asks)) == (0, 0, {A, B})
    session.answered(7)
    return session


@pytest.mark.scenario("testConsumingViaIncrementalFetchRequests")
def test_what_has_not_changed_is_not_named_again() -> None:
    session = begun()
    session.put(A, Ask(ID, 11))
    session.put(B, Ask(ID, 20))
    request = session.next()
    assert (request.session_id, request.epoch, dict(request.asks)) == (7, 1, {A: Ask(ID, 11)})
    session.answered(7)
    assert session.next()[:3] == (7, 2, {})


@pytest.mark.scenario("testFetchForgetTopicIdWhenUnassigned")
def test_a_partition_that_is_asked_for_no_more_is_forgotten_once() -> None:
    session = begun()
    session.remove(A)
    assert session.next().forgotten == [(A, ID)]
    session.answered(7)
    assert session.next().forgotten == []


@pytest.mark.scenario("testIncrementalPartitionRemoval")
def test_a_partition_that_comes_back_before_the_request_is_not_forgotten() -> None:
    session = begun()
    session.remove(A)
    session.put(A, Ask(ID, 5))
    request = session.next()
    assert (dict(request.asks), request.forgotten) == ({A: Ask(ID, 5)}, [])


def test_one_that_the_broker_never_heard_of_is_not_forgotten() -> None:
    session = begun()
    other = TopicPartition("t", 9)
    session.put(other, Ask(ID, 1))
    session.remove(other)
    assert session.next()[2:4] == ({}, [])


@pytest.mark.scenario("testFetchForgetTopicIdWhenReplaced")
def test_a_topic_made_anew_leaves_under_its_old_id() -> None:
    session = begun()
    session.put(A, Ask(OTHER, 0))
    request = session.next()
    assert (dict(request.asks), request.forgotten) == ({A: Ask(OTHER, 0)}, [(A, ID)])


@pytest.mark.scenario("testSessionless")
def test_a_broker_without_room_is_told_everything_each_time() -> None:
    session = begun()
    session.next()
    session.answered(0)
    assert session.next()[:3] == (0, 0, {A: Ask(ID, 10), B: Ask(ID, 20)})


def test_a_partition_that_had_records_is_named_last_so_that_the_others_have_their_turn() -> None:
    """A broker fills an answer in the order of the request. With sessions it keeps that order itself."""
    session = begun()
    session.next()
    session.answered(0)
    order = []
    for at in range(4):
        first, *_ = session.next().asks
        order.append(first)
        session.answered(0)
        session.put(first, Ask(ID, 100 + at))
    assert order == [A, B, A, B]


@pytest.mark.scenario("testFetchSessionIdError")
def test_a_session_that_the_broker_dropped_begins_without_its_number() -> None:
    session = begun()
    session.next()
    session.refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert session.next()[:3] == (0, 0, {A: Ask(ID, 10), B: Ask(ID, 20)})


@pytest.mark.scenario("testTopLevelErrorResetsMetadata")
def test_after_any_other_refusal_or_a_lost_answer_the_old_session_is_closed_by_the_new_one() -> None:
    for error in (ErrorCode.INVALID_FETCH_SESSION_EPOCH, None):
        session = begun()
        session.remove(B)
        session.next()
        if error is None:
            session.lost()
        else:
            session.refused(error)
        assert session.next() == (7, 0, {A: Ask(ID, 10)}, [], True)
        session.answered(8)
        assert session.next()[:2] == (8, 1)


def test_the_number_of_a_request_wraps_to_one() -> None:
    session = begun()
    session._epoch = 2**31 - 1
    session.answered(7)
    assert session.next().epoch == 1


def test_topics_are_named_by_their_ids_once_each_has_one_and_a_session_names_them_in_one_way() -> None:
    """KIP-516: a broker refuses a session of both ways, and a topic by the id that no topic has."""
    session = Session()
    session.put(A, Ask(b"", 10))
    session.put(B, Ask(ID, 20))
    assert session.next()[1:] == (0, {A: Ask(b"", 10), B: Ask(ID, 20)}, [], False)
    session.answered(7)
    session.put(B, Ask(ID, 21))
    assert session.next() == (7, 1, {B: Ask(ID, 21)}, [], False)
    session.answered(7)
    session.put(A, Ask(OTHER, 10))
    assert session.next() == (7, 0, {A: Ask(OTHER, 10), B: Ask(ID, 21)}, [], True)
    session.answered(8)
    session.remove(B)
    assert session.next() == (8, 1, {}, [(B, ID)], True)
    session.answered(8)
    session.put(B, Ask(b"", 21))
    assert session.next() == (8, 0, {A: Ask(OTHER, 10), B: Ask(b"", 21)}, [], False)
