"""What is left of a turn when its time is over, on a real client that has no broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from confluent_kafka import KafkaError, Message

from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import TurnBuffer
from kunicorn.worker.fetch import Run
from kunicorn.worker.progress import Grant
from tests.unit.worker.batch_buffer import Scene, messages, shown
from tests.unit.worker.tables import P0, P1

P2 = TopicPartition("t", 2)


def run(tp: TopicPartition, *offsets: int, epoch: int = 0) -> Run:
    return Run(tp, epoch, messages(tp, *offsets))


class Turns(Scene):
    """Partitions 0 and 1 are fetched, and something is left over of them."""

    def __init__(self) -> None:
        super().__init__()
        self.turn_buffer = TurnBuffer(self.fetcher)

    def grant(self, tp: TopicPartition) -> Grant:
        """The partition's, which goes on."""
        grant = self.fetcher.fetching(tp)
        assert grant is not None
        return grant

    def turn(self, arrived: Iterable[Run], records: int) -> list[tuple[int, int]]:
        """Has so many records handled, then the time is over; which."""
        handled: list[tuple[int, int]] = []
        self.turn_buffer.arrived(arrived)
        for each in self.turn_buffer.runs():
            while each.messages and len(handled) < records:
                handled.append((each.tp.partition, each.messages.pop(0).offset() or 0))
            if each.messages:
                self.turn_buffer.put_back(each)
            if len(handled) == records:
                self.turn_buffer.served(each.tp)
                break
        return handled


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns()
    yield made
    made.consumer.close()
    made.ledger.close()


def test_what_is_left_is_handled_next_and_what_is_fetched_of_it_meanwhile_behind_it(turns: Turns) -> None:
    assert turns.turn([run(P0, 0, 1, 2), run(P0, 3, epoch=1)], 1) == [(0, 0)]
    kept = turns.turn_buffer.bytes
    assert turns.turn([run(P0, 4, epoch=1)], 9) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert kept > 0
    assert (bool(turns.turn_buffer), turns.turn_buffer.bytes) == (False, 0)


def test_a_partition_that_has_just_arrived_comes_before_what_is_left_of_others(turns: Turns) -> None:
    assert turns.turn([run(P0, 0, 1, 2, 3)], 2) == [(0, 0), (0, 1)]
    assert turns.turn([run(P1, 7)], 2) == [(1, 7), (0, 2)]


def test_partitions_take_turns(turns: Turns) -> None:
    first = [run(P0, 0, 1), run(P1, 0, 1)]
    assert [turns.turn(arrived, 1) for arrived in (first, [], [], [])] == [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)]]


def test_what_comes_anew_with_each_turn_does_not_keep_what_is_left_of_others_waiting(turns: Turns) -> None:
    turns.turn([run(P0, 0, 1)], 1)
    fill_turns = [turns.turn([run(P1, offset)], 1) for offset in range(3)]
    assert fill_turns == [[(1, 0)], [(0, 1)], [(1, 1)]], "each of partition 1's records takes a whole turn"


def test_the_consumed_offset_does_not_follow_the_client_while_something_is_left(turns: Turns) -> None:
    turns.turn([run(P0, 0, 1)], 1)
    assert turns.grant(P0).waits_for_turn
    turns.turn([], 1)
    assert not turns.grant(P0).waits_for_turn


def test_what_is_left_of_a_partition_that_ends_is_let_go_of(turns: Turns) -> None:
    turns.turn([run(P0, 0, 1), run(P1, 0)], 1)
    turns.fetcher.stop([1])
    assert turns.turn([], 9) == [(1, 0)]
    assert turns.turn_buffer.bytes == 0


def test_what_is_left_of_a_partition_that_is_fetched_anew_is_let_go_of(turns: Turns) -> None:
    turns.turn([run(P0, 0, 1, 2)], 1)
    turns.grant(P0).assignments += 1
    assert turns.turn([run(P0, 0)], 9) == [(0, 0)], "what was left comes again behind it"


def test_a_partition_that_nobody_has_any_more_leaves_nothing(turns: Turns) -> None:
    turns.turn_buffer.keep([run(P2, 0)])
    assert not turns.turn_buffer


def test_what_is_put_back_comes_before_what_is_left_behind_it(turns: Turns) -> None:
    turns.turn_buffer.keep([run(P0, 0, 1), run(P0, 2, epoch=1)])
    first = next(turns.turn_buffer.runs())
    turns.turn_buffer.put_back(Run(first.tp, 0, first.messages[1:]))
    assert shown(turns.turn_buffer.runs()) == [[1], [2]]


# -- errors in place of records --------------------------------------------------------------------------------------

ERROR = Message(topic=P0.topic, partition=0)


def test_an_error_comes_behind_what_is_left_of_its_partition(turns: Turns) -> None:
    turns.turn([run(P0, 0, 1), run(P1, 0, 1, 2)], 1)
    turns.turn_buffer.end(P0, ERROR)
    assert turns.turn_buffer.ends(P0)
    assert not turns.turn_buffer.ends(P1)
    assert turns.turn_buffer.ending() == []
    turns.turn([], 4)
    assert turns.turn_buffer.ending() == [P0], "though something is left of the other one"
    assert turns.turn_buffer.take_error(P0) is ERROR
    assert not turns.turn_buffer.errors


def test_of_several_errors_behind_one_another_the_first_one_says_what_is_wrong(turns: Turns) -> None:
    turns.turn([run(P0, 0, 1)], 1)
    turns.turn_buffer.end(P0, ERROR)
    turns.turn_buffer.end(P0, Message(topic="t", partition=0, error=KafkaError(KafkaError._NOT_IMPLEMENTED)))
    turns.turn([], 2)
    assert turns.turn_buffer.take_error(P0) is ERROR


@pytest.mark.parametrize("given_anew", ["to the client", "by the supervisor"])
def test_an_error_does_not_end_what_its_partition_began_with_since(turns: Turns, given_anew: str) -> None:
    turns.turn([run(P0, 0, 1)], 1)
    turns.turn_buffer.end(P0, ERROR)
    if given_anew == "to the client":
        turns.grant(P0).assignments += 1
    else:
        turns.fetcher.stop([1])
    assert not turns.turn_buffer.ends(P0), "records come behind it"
    assert turns.turn_buffer.ending() == []
    assert not turns.turn_buffer.errors
