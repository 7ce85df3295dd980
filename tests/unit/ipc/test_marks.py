"""The ledger's bits and their text form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.ipc.bitmap import (
    RING_BYTES,
    WINDOW,
    Ahead,
    Marks,
    epoch,
    epoch_word,
    is_of_another_topic,
    partitions,
    read,
    read_committed,
    topic_in,
    topic_word,
    with_partitions,
    written,
)
from kunicorn.ipc.ledger import HAND_END, Ledger
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position

FIRSTS = st.integers(0, 1 << 50)
DISTANCES = st.sets(st.integers(0, WINDOW - 1), max_size=200)
TOPIC = "wSxxVB44ToOXA7+nwvf/WQ"


@given(FIRSTS, DISTANCES)
def test_what_is_marked_is_read_whatever_the_offset(first: int, distances: set[int]) -> None:
    marks = Marks(memoryview(bytearray(RING_BYTES)), 0)
    for distance in distances:
        marks.mark(first + distance)
    assert marks.from_offset(first) == {first + distance for distance in distances}


@given(FIRSTS, DISTANCES, st.integers(1, WINDOW))
def test_bits_that_the_window_has_just_left_are_not_taken_for_later_offsets(
    first: int, distances: set[int], moved: int
) -> None:
    """A worker killed between the store of the offset and the clearing of the bits behind it."""
    marks = Marks(memoryview(bytearray(RING_BYTES)), 0)
    for distance in distances:
        marks.mark(first + distance)
    assert marks.from_offset(first + moved) == {first + d for d in distances if d >= moved}


@given(FIRSTS, DISTANCES, DISTANCES, st.integers(-2 * WINDOW, 2 * WINDOW))
def test_what_two_windows_say_is_united_in_the_later_one_or_the_earlier(
    first: int, distances: set[int], others: set[int], moved: int
) -> None:
    ours, theirs = {first + each for each in distances}, {first + moved + each for each in others}
    both = Ahead.of(first, ours).with_those(Ahead.of(first + moved, theirs))
    assert both.offsets() == ours | {each for each in theirs if first <= each < first + WINDOW}
    assert read(first, both.text()) == both.offsets()


@given(FIRSTS, DISTANCES)
def test_the_text_says_the_same_and_fits_into_a_commit(first: int, distances: set[int]) -> None:
    offsets = {first + distance for distance in distances}
    text = written(first, offsets)
    assert read(first, text) == offsets
    assert len(text) <= 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "kunicorn:done:1:?",
        "kunicorn:done:1:" + "A" * 4000,
        "kunicorn:done:2:AQ==",
        "kunicorn:done:2:7:AQ==",
        "kunicorn:done:2:7::?",
        "kunicorn:done:2:07::AQ==",
        "kunicorn:done:2:7::" + "A" * 4000,
        "kunicorn:done:3:7::AQ==",
    ],
)
def test_what_others_committed_with_their_offsets_says_nothing(text: str) -> None:
    assert read(7, text) == frozenset()


@given(FIRSTS, DISTANCES, st.integers(-2 * WINDOW, 2 * WINDOW).filter(bool), st.sampled_from(["", TOPIC]))
def test_beside_another_offset_than_it_was_written_for_a_text_says_nothing(
    first: int, distances: set[int], moved: int, topic: str
) -> None:
    """MirrorMaker moves a group's offsets and copies their metadata; so does a script that commits what it has read
    with another offset in it."""
    text = written(first, {first + distance for distance in distances}, topic)
    assert read(first + moved, text) == frozenset()
    assert read_committed(first + moved, text, topic).offsets() == frozenset()


def test_a_commit_that_names_another_topic_says_nothing_of_this_one() -> None:
    text = written(7, {9}, TOPIC)
    assert topic_in(text) == TOPIC
    assert read_committed(7, text, TOPIC).offsets() == {9}
    assert read_committed(7, text, "AAAAAAAAAAAAAAAAAAAAAA").offsets() == frozenset()
    assert read_committed(7, text, "").offsets() == frozenset(), "whose id is not known: it may be another one"
    assert read_committed(7, written(7, {9}), TOPIC).offsets() == {9}, "as brokers before 2.8 have no ids"


@given(FIRSTS, DISTANCES, st.integers(0, 2**31 - 1), st.sampled_from(["", "\0"]))
def test_the_number_of_partitions_travels_beside_what_is_done(
    first: int, distances: set[int], count: int, end: str
) -> None:
    """Whoever commits through a C client commits the text's end as well."""
    offsets = {first + distance for distance in distances}
    text = with_partitions(count, written(first, offsets)) + end
    assert partitions(text) == count
    assert read(first, text) == offsets
    assert len(with_partitions(count, written(first, offsets, TOPIC)) + end) <= 775
    assert with_partitions(None, written(first, offsets)) == written(first, offsets)


@pytest.mark.parametrize(
    "text", ["", "NaN", "kunicorn:partitions:", "kunicorn:partitions:x", "kunicorn:partitions:" + "9" * 5000]
)
def test_without_a_number_of_partitions_nothing_is_said_of_them(text: str) -> None:
    assert partitions(text) is None


@given(FIRSTS, DISTANCES, st.integers(0, 2**31 - 1), st.sampled_from(["", "\0", " spark:over"]))
def test_a_leader_epoch_travels_beside_what_is_done(first: int, distances: set[int], number: int, end: str) -> None:
    offsets = {first + distance for distance in distances}
    told = with_partitions(3, written(first, offsets, TOPIC))
    text = f"{told} {epoch_word(first, TOPIC, number)}{end}"
    assert epoch(first, text, TOPIC) == number
    assert (set(read(first, text)), partitions(text)) == (offsets, 3)
    assert len(text) - len(told) - len(end) <= 72


def test_a_leader_epoch_counts_beside_the_offset_and_the_topic_that_it_names_alone() -> None:
    """Of another cluster's topic, which MirrorMaker has copied it to, the offset would pass for truncated."""
    word = epoch_word(7, TOPIC, 3)
    assert epoch(7, word, TOPIC) == 3
    assert epoch(8, word, TOPIC) == NO_EPOCH
    assert epoch(7, word, "AAAAAAAAAAAAAAAAAAAAAA") == NO_EPOCH
    assert epoch(7, word, "") == NO_EPOCH, "whose id is not known: it may be another one"
    assert epoch(7, epoch_word(7, "", 3), TOPIC) == 3, "as brokers before 2.8 have no ids"
    assert epoch_word(7, TOPIC, NO_EPOCH) == ""


@pytest.mark.parametrize("number", ["", "-1", "x", "\N{SUPERSCRIPT TWO}", "2147483648", "9" * 4000, "3:3"])
def test_a_leader_epoch_that_no_request_can_have_is_none(number: str) -> None:
    assert epoch(7, f"kunicorn:epoch:1:7::{number}", "") == NO_EPOCH


def test_slots_do_not_share_bits() -> None:
    ledger = Ledger.create(3)
    for slot in range(3):
        ledger.done(slot).mark(slot)
        ledger.in_hand(slot).mark(10 + slot)
    assert [set(ledger.done(slot).from_offset(0)) for slot in range(3)] == [{0}, {1}, {2}]
    assert [set(ledger.in_hand(slot).from_offset(0)) for slot in range(3)] == [{10}, {11}, {12}]
    ledger.done(1).unmark(1)
    ledger.in_hand(2).clear()
    assert not ledger.done(1).from_offset(0)
    assert not ledger.in_hand(2).from_offset(0)
    assert ledger.slots == 3
    ledger.close()


def test_what_a_slot_says_beside_its_line_shares_no_word_with_slots_or_bits() -> None:
    ledger = Ledger.create(3)
    for slot in range(3):
        ledger.open_slot(slot, 7 + slot, Position(slot))
        ledger.done(slot).mark(slot)
        ledger.cells[ledger.busy_index(slot)] = -1
        ledger.cells[ledger.busy_index(slot) + HAND_END] = -2
    assert [ledger.read(slot, 7 + slot).consumed.offset for slot in range(3)] == [0, 1, 2]
    assert [set(ledger.done(slot).from_offset(0)) for slot in range(3)] == [{0}, {1}, {2}]
    ledger.open_slot(1, 99, Position(5))
    assert [ledger.busy_ns(slot) for slot in range(3)] == [-1, 0, -1]
    assert [ledger.read(slot, grant).hand_end for slot, grant in enumerate((7, 99, 9))] == [-2, NO_OFFSET, -2]
    ledger.close()


def test_a_committed_offset_says_of_which_topic_it_is_and_one_of_another_one_is_known_by_that() -> None:
    said = f"{with_partitions(3, written(250, {251}, TOPIC))} {topic_word(250, 'cluster', TOPIC)}"
    assert (partitions(said), read_committed(250, said, TOPIC).offsets()) == (3, frozenset({251}))
    assert not is_of_another_topic(250, said, "cluster", TOPIC)
    assert is_of_another_topic(250, said, "cluster", "another")
    assert is_of_another_topic(250, said + "\0", "cluster", "another")


@pytest.mark.parametrize(
    ("first", "cluster", "topic"), [(251, "cluster", "another"), (250, "other", "another"), (250, "cluster", "")]
)
def test_what_was_copied_elsewhere_and_what_nobody_knows_is_taken_for_no_other_topic(
    first: int, cluster: str, topic: str
) -> None:
    assert not is_of_another_topic(first, topic_word(250, "cluster", TOPIC), cluster, topic)
    assert topic_word(250, "", TOPIC) == topic_word(250, "cluster", "") == ""


@given(st.text(), FIRSTS)
def test_what_other_clients_have_committed_is_of_no_other_topic(text: str, first: int) -> None:
    assert not is_of_another_topic(first, text, "cluster", TOPIC)
    assert not is_of_another_topic(first, f"kunicorn:topic:1:{text}", "cluster", TOPIC) or ":" in text
