"""Which outputs are sent again, and together with which, where brokers refuse a batch as too large."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.outputs import Outgoing
from kunicorn.worker.produce.outbox import Entry, GivenUp
from kunicorn.worker.produce.request_sizes import RequestSizes, with_following
from kunicorn.worker.produce.telemetry import Output
from tests.fakes.origins import FakeOrigin

TOO_LARGE, AWAY = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), KafkaError(KafkaError._MSG_TIMED_OUT)
GIVEN_UP = GivenUp(dead_letters("letters"), Cause("ValueError", "no", "", 1))
ORIGIN = FakeOrigin()


def output(nbytes: int = 5000, topic: str = "out", key: bytes | None = b"k", given_up: GivenUp | None = None) -> Output:
    outgoing = Outgoing(topic, b"x" * nbytes, key, None, -1, 0)
    return Entry(ORIGIN, 0, 1, [outgoing], given_up), outgoing


def refused(*outputs: Output) -> list[tuple[Output, KafkaError]]:
    return [(each, TOO_LARGE) for each in outputs]


def nbytes(outputs: list[Output]) -> int:
    return sum(len(outgoing.value or b"") for _, outgoing in outputs)


def test_while_nothing_is_refused_everything_is_sent_at_once() -> None:
    outputs = [output() for _ in range(1000)]
    (piece,) = RequestSizes({}).pieces(outputs)
    assert piece is outputs


def test_what_was_refused_beside_others_is_sent_again_in_smaller_pieces_until_each_is_alone() -> None:
    sizes, outputs = RequestSizes({}), [output(100_000) for _ in range(40)]
    piece, counts = outputs, list[int]()
    while sizes.refused_together(piece, refused(*piece)) == piece:
        pieces = list(sizes.pieces(outputs))
        assert [each for some in pieces for each in some] == outputs
        piece = list(pieces[0])
        counts.append(len(piece))
    assert counts == [2, 1], "a quarter of librdkafka's batch, and one by one"


def test_a_topic_that_has_refused_a_batch_keeps_its_size_and_others_are_not_split() -> None:
    sizes, outputs = RequestSizes({}), [output() for _ in range(500)]
    assert sizes.refused_together(outputs, refused(*outputs)) == outputs
    assert max(nbytes(list(piece)) for piece in sizes.pieces([output() for _ in range(500)])) <= 250_000
    others = [output(topic="others") for _ in range(500)]
    assert [list(piece) for piece in sizes.pieces(others)] == [others]


@pytest.mark.parametrize("alone", [[output(300_000)], [output(300_000), output(topic="others")]])
def test_what_was_its_topics_only_output_is_too_large_by_itself(alone: list[Output]) -> None:
    sizes = RequestSizes({})
    assert sizes.refused_together(alone, refused(alone[0])) == []
    assert not sizes


@pytest.mark.parametrize(("batch_size", "beside_others"), [(None, False), (4_000_000, True)])
def test_an_output_larger_than_the_clients_batches_had_one_of_its_own(
    batch_size: int | None, beside_others: bool
) -> None:
    sizes = RequestSizes({} if batch_size is None else {"batch.size": batch_size})
    large = output(2_000_000)
    assert sizes.refused_together([output(), large, output()], refused(large)) == ([large] if beside_others else [])


def test_other_errors_are_none_of_a_batchs_size() -> None:
    sizes, outputs = RequestSizes({}), [output(), output()]
    assert sizes.refused_together(outputs, [(each, AWAY) for each in outputs]) == []


def test_a_refusal_that_is_told_twice_makes_no_piece_smaller() -> None:
    sizes, outputs = RequestSizes({}), [output() for _ in range(500)]
    for _ in range(2):
        sizes.refused_together(outputs, refused(*outputs))
    assert len(list(sizes.pieces(outputs))) == 11


def test_what_came_behind_a_refused_output_with_its_key_is_sent_again_behind_it() -> None:
    before, first, other, behind = output(), output(), output(key=b"other"), output()
    assert with_following([before, first, other, behind], [first]) == [first, behind]


def test_letters_that_arrived_behind_a_refused_one_are_not_sent_twice() -> None:
    first, behind = (output(topic="letters", given_up=GIVEN_UP) for _ in range(2))
    assert with_following([first, behind], [first]) == [first]
