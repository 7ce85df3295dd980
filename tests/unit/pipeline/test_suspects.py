"""Which records are kept from the handler after processes have died."""

from __future__ import annotations

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.pipeline.tasks.in_hand_file import Suspects
from kunicorn.pipeline.tasks.in_hand_notes import Hand


def messages(*offsets: int) -> list[Message]:
    return [Message(topic="orders", partition=3, offset=each, value=b"v") for each in offsets]


def pieces(suspects: Suspects, *offsets: int, begin: int = 0, most: int | None = None) -> list[tuple[list[int], int]]:
    found = suspects.pieces(messages(*offsets), begin, most)
    return [([message.offset() or 0 for message in piece.messages], piece.deaths) for piece in found]


def test_without_deaths_nothing_is_cut_but_batches() -> None:
    assert pieces(Suspects(), 1, 2, 5) == [([1, 2, 5], 0)]
    assert pieces(Suspects(), 1, 2, 5, most=2) == [([1, 2], 0), ([5], 0)]


def test_a_record_is_kept_from_the_handler_after_so_many_deaths_and_not_before() -> None:
    hand = Hand(2, 3)
    assert pieces(Suspects([hand]), 1, 2, 5) == [([1, 2, 5], 0)]
    assert pieces(Suspects([hand, hand]), 1, 2, 5) == [([1], 0), ([2], 2), ([5], 0)]
    assert pieces(Suspects([hand], max_crashes=1), 1, 2, 5) == [([1], 0), ([2], 1), ([5], 0)]


def test_in_a_gap_the_next_record_was_in_hand_and_only_that_one() -> None:
    twice = Suspects([Hand(3, 4)] * 2)
    assert pieces(twice, 1, 2, 7, 8) == [([1, 2], 0), ([7], 2), ([8], 0)]
    assert pieces(twice, 7, 8, begin=3) == [([7], 2), ([8], 0)]
    assert pieces(twice, 9, 10, begin=9) == [([9, 10], 0)]


def test_a_batch_is_looked_through_one_record_at_a_time_and_the_next_death_names_one() -> None:
    batches = [Hand(2, 5)] * 2
    assert pieces(Suspects(batches), *range(8), most=3) == [
        ([0, 1], 0), ([2], 0), ([3], 0), ([4], 0), ([5, 6, 7], 0),
    ]  # fmt: skip
    assert pieces(Suspects([*batches, Hand(3, 4)]), *range(6), most=3) == [
        ([0, 1], 0), ([2], 0), ([3], 3), ([4], 0), ([5], 0),
    ]  # fmt: skip


@given(
    st.sets(st.integers(0, 30)),
    st.lists(st.builds(lambda start, size: Hand(start, start + size), st.integers(0, 30), st.integers(1, 6))),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_no_record_is_left_out_or_given_twice(offsets: set[int], hands: list[Hand], most: int | None) -> None:
    found = pieces(Suspects(hands), *sorted(offsets), most=most)
    assert [offset for piece, _ in found for offset in piece] == sorted(offsets)
    assert all(len(piece) == 1 for piece, deaths in found if deaths)
