"""Records that wait for a fuller batch, on a real client that has no broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.ipc.messages import FetcherStart, FetcherStopped, Stopped
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import BatchBuffer, Bounds
from kunicorn.worker.fetch import Run
from tests.unit.worker.batch_buffer import WAIT, Scene, messages, shown
from tests.unit.worker.tables import LATER, P0, P1


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.consumer.close()
    made.ledger.close()


def test_records_wait_until_their_batch_is_full(scene: Scene) -> None:
    assert scene.add(P0, 0, 1) == []
    assert scene.add(P1, 0) == []
    assert scene.add(P0, 2, 3) == [[0, 1, 2]]
    assert scene.add(P0, 4, 5, 6, 7, 8) == [[3, 4, 5, 6, 7, 8]]


def test_no_record_waits_longer_than_it_may_counted_from_the_first(scene: Scene) -> None:
    scene.add(P0, 0, now=0)
    scene.add(P1, 0, now=50)
    scene.add(P0, 1, now=90)
    assert scene.due(99) == []
    assert scene.buffer.patience(90, 1.0) == pytest.approx(10e-9)
    assert scene.due(100) == [[0, 1]]
    assert scene.due(149) == []
    assert scene.due(150) == [[0]]
    assert scene.buffer.patience(150, 1.0) == 1.0


def test_a_stop_lets_go_of_what_waits_and_reports_it_as_not_handled(scene: Scene) -> None:
    scene.add(P0, 0, 1)
    scene.fetcher.stop([1])
    assert scene.reports == [FetcherStopped([Stopped(1, 0, -1)])]
    assert scene.due(WAIT) == []
    assert scene.add(P0, 2) == []


def test_what_waited_under_an_old_grant_never_comes_with_records_of_a_new_one(scene: Scene) -> None:
    scene.add(P0, 5, 6)
    scene.fetcher.stop([1])
    scene.fetcher.start([FetcherStart(3, 3, *P0, 5, -1)])
    scene.fetcher.begin_turn(1)
    assert scene.add(P0, 5, 6, now=10) == []
    assert scene.due(WAIT) == []
    assert scene.due(10 + WAIT) == [[5, 6]]


@pytest.mark.parametrize("epoch", [0, 1])
def test_what_waited_when_its_partition_was_rewound_is_forgotten(scene: Scene, epoch: int) -> None:
    scene.add(P0, 5, 6)
    grant = scene.fetcher.fetching(P0)
    assert grant is not None
    grant.assignments += 1
    assert scene.add(P0, 3, 4, now=10, epoch=epoch) == []
    assert scene.due(WAIT) == []
    assert scene.due(10 + WAIT) == [[3, 4]]


def test_nothing_is_due_of_a_partition_that_was_rewound(scene: Scene) -> None:
    scene.add(P0, 5, 6)
    grant = scene.fetcher.fetching(P0)
    assert grant is not None
    grant.assignments += 1
    assert scene.due(WAIT) == []
    assert scene.buffer.patience(WAIT, 1.0) == 1.0


def test_the_consumed_offset_does_not_follow_the_clients_position_past_what_waits(scene: Scene) -> None:
    scene.add(P0, 0, 1)
    scene.consumer.ahead = 10
    scene.fetcher.begin_turn(LATER)
    assert [scene.ledger.read(slot, slot).consumed.offset for slot in (1, 2)] == [0, 10]
    scene.due(LATER)
    scene.fetcher.begin_turn(2 * LATER)
    assert scene.ledger.read(1, 1).consumed.offset == 10, "nothing waits any more"


def test_a_batch_has_one_leader_epoch(scene: Scene) -> None:
    scene.add(P0, 0, epoch=1)
    assert scene.add(P0, 1, epoch=2) == [[0]]
    assert scene.due(WAIT) == [[1]]


def test_when_what_waits_takes_too_much_memory_the_oldest_goes_first(scene: Scene) -> None:
    scene.buffer = BatchBuffer(Bounds(100, None, WAIT, memory=5_000), scene.fetcher)
    assert scene.add(P0, *range(5), now=1) == []
    assert scene.add(P1, *range(6), now=2) == [[0, 1, 2, 3, 4]]
    assert shown(scene.buffer.add(Run(P0, 0, messages(P0, 5, size=10_000)), 3)) == [list(range(6)), [5]]


def test_keys_and_headers_count_as_memory_that_waits(scene: Scene) -> None:
    scene.buffer = BatchBuffer(Bounds(100, None, WAIT, memory=5_000), scene.fetcher)
    key = Message(topic=P0.topic, partition=0, offset=0, key=bytes(5_000), value=b"")
    header = Message(topic=P0.topic, partition=0, offset=1, value=b"", headers=[("large", bytes(5_000))])
    for each in (key, header):
        assert shown(scene.buffer.add(Run(P0, 0, [each]), 1)) == [[each.offset()]]


def test_records_of_a_batch_that_killed_workers_do_not_wait(scene: Scene) -> None:
    scene.fetcher.singly[P0] = 2
    assert scene.add(P0, 0, 1) == [[0, 1]]


def test_what_is_left_of_a_cut_batch_is_dropped_when_its_partition_parks(scene: Scene) -> None:
    handled = scene.buffer.add(Run(P0, 0, messages(P0, 0, 1, 2, 3)), 0)
    assert [message.offset() for message in next(handled).messages] == [0, 1, 2]
    scene.fetcher.stop([1])
    assert list(handled) == []
    assert scene.due(WAIT) == []


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 5), st.none() | st.integers(1, 20))
def test_full_batches_are_cut_so_that_nothing_more_would_have_fitted(
    sizes: list[int], records: int, most_bytes: int | None
) -> None:
    bounds = Bounds(records, most_bytes, WAIT, 0)
    some = [Message(topic="t", partition=0, offset=at, value=b"x" * size) for at, size in enumerate(sizes)]
    full = bounds.full(some)
    left = sizes[full:]
    assert len(left) < records
    assert most_bytes is None or len(left) <= 1 or sum(left) <= most_bytes


# -- when the time is over ---------------------------------------------------------------------------------------------


def put_back(scene: Scene, tp: TopicPartition, *offsets: int, epoch: int = 0) -> None:
    scene.buffer.put_back(Run(tp, epoch, messages(tp, *offsets)))


def test_who_asks_for_no_more_loses_nothing_of_what_waits_behind_a_full_batch(scene: Scene) -> None:
    assert shown(islice(scene.buffer.add(Run(P0, 0, messages(P0, 0, 1, 2, 3)), 0), 1)) == [[0, 1, 2]]
    assert scene.due(WAIT) == [[3]]
    scene.add(P0, 4)
    assert shown(scene.buffer.rest_of(P0)) == [[4]]
    put_back(scene, P0, 4, 5, 6, 7)
    assert shown(islice(scene.buffer.due(WAIT - 1), 1)) == [[4, 5, 6]]
    assert scene.due(WAIT) == [[7]]


def test_what_is_put_back_comes_before_what_waits_and_waits_for_nothing_but_the_next_turn(scene: Scene) -> None:
    for run in scene.buffer.add(Run(P0, 0, messages(P0, *range(8))), 0):
        scene.buffer.put_back(Run(P0, 0, run.messages[2:]))
    assert scene.buffer.puts_back
    assert scene.buffer.patience(1, 1.0) == 0.0
    assert scene.due(1) == [[2, 3, 4, 5, 6, 7]]


def test_what_is_put_back_and_makes_no_full_batch_waits_for_one_no_longer_than_from_the_first_on(scene: Scene) -> None:
    scene.add(P0, 0, now=0)
    assert scene.add(P0, 1, 2, 3, now=60) == [[0, 1, 2]]
    put_back(scene, P0, 2)
    assert scene.due(70) == []
    assert not scene.buffer.puts_back
    assert scene.due(99) == []
    assert scene.due(100) == [[2, 3]]


def test_what_is_put_back_after_its_wait_does_not_wait_anew(scene: Scene) -> None:
    scene.add(P0, 0, 1)
    assert scene.due(WAIT) == [[0, 1]]
    put_back(scene, P0, 1)
    assert scene.due(WAIT + 1) == [[1]]


def test_a_turn_that_is_over_sheds_no_more_memory_and_the_next_one_does(scene: Scene) -> None:
    scene.buffer = BatchBuffer(Bounds(3, None, WAIT, memory=1_000), scene.fetcher)
    seen = []
    for run in scene.buffer.add(Run(P0, 0, messages(P0, *range(9))), 0):
        seen.append(len(run.messages))
        scene.buffer.put_back(Run(P0, 0, run.messages[3:]))
    assert seen == [9, 6]
    assert scene.due(1) == [[6, 7, 8]]


def test_what_is_put_back_of_a_partition_that_ended_is_let_go_of(scene: Scene) -> None:
    scene.add(P0, 0, 1, 2)
    scene.fetcher.stop([1])
    put_back(scene, P0, 1, 2)
    assert scene.due(WAIT) == []
    assert scene.buffer.patience(WAIT, 1.0) == 1.0


def test_nothing_waits_of_a_partition_from_which_nothing_more_comes(scene: Scene) -> None:
    scene.add(P0, 0, 1)
    scene.add(P1, 0)
    assert shown(scene.buffer.rest_of(P0)) == [[0, 1]]
    assert shown(scene.buffer.rest_of(P0)) == []
    assert scene.due(WAIT) == [[0]]
