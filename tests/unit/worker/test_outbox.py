"""What is handled and not delivered yet, without threads: time and the sender are the test's."""

from __future__ import annotations

from kunicorn.handling.outputs import Outgoing
from kunicorn.topics import TopicPartition
from kunicorn.worker.grants import Grant
from kunicorn.worker.outbox import Entry, Limits, Outbox

OUTPUT = Outgoing("out", b"v", None, None, -1, 0)


def grant(number: int = 1) -> Grant:
    return Grant(number, TopicPartition("in", number), 0, 0)


def entry(of: Grant, offset: int, count: int = 1) -> Entry:
    return Entry(of, offset, offset + count, [OUTPUT])


def outbox(records: int = 100, nbytes: int = 1000, seconds: float = 0.0) -> Outbox:
    return Outbox(Limits(records, nbytes, seconds))


def test_everything_so_far_is_one_batch_and_in_order() -> None:
    box, one, two = outbox(), grant(1), grant(2)
    entries = [entry(one, 0), entry(two, 5), entry(one, 1)]
    for each in entries:
        box.put(each, 1, 10)
    assert box.take() == entries
    assert (one.handled_to, two.handled_to) == (2, 6)


def test_a_full_batch_leaves_no_room_until_it_is_taken() -> None:
    box = outbox(records=2)
    box.put(entry(grant(), 0), 2, 0)
    assert box.room() == 0
    assert not box.wait_for_room(0.0)
    box.take()
    assert box.room() == 2


def test_bytes_that_are_under_way_count_until_they_are_delivered() -> None:
    box = outbox(nbytes=100)
    box.put(entry(grant(), 0), 1, 100)
    box.take()
    assert box.room() == 0
    box.done()
    assert box.room() > 0


def test_a_batch_that_has_not_arrived_for_ten_seconds_is_late_until_it_is_done() -> None:
    now = 100.0
    box = Outbox(Limits(100, 1000, 0.0), lambda: now)
    box.put(entry(grant(), 0), 1, 10)
    now = 200.0
    assert box.late() is None, "it was not under way yet"
    box.take()
    now = 209.0
    assert box.late() is None
    now = 212.0
    assert box.late() == "its outputs have waited 12 s for delivery: no broker has answered yet"
    box.trouble = "Local: Message timed out"
    assert box.late() == "its outputs have waited 12 s for delivery: Local: Message timed out"
    box.done()
    assert box.late() is None
    assert box.trouble == ""


def test_a_batch_waits_for_its_time_unless_a_partition_is_given_up() -> None:
    box = Outbox(Limits(100, 1000, seconds=3600))
    box.put(entry(grant(), 0), 1, 0)
    box.hurry()
    assert len(box.take()) == 1


def test_of_a_lost_partition_nothing_goes_out() -> None:
    box, lost, kept = outbox(), grant(1), grant(2)
    for each in (entry(lost, 0), entry(kept, 0)):
        box.put(each, 1, 0)
    batch = box.take()
    lost.discarded = True
    assert [each.origin for each in box.live(batch)] == [kept]
    box.put(entry(lost, 1), 1, 0)
    assert lost.handled_to == 1, "what comes later is not even kept"


def test_behind_a_refused_record_nothing_of_its_partition_goes_out_and_what_is_before_does() -> None:
    box, one, other = outbox(), grant(1), grant(2)
    for each in (entry(one, 0), entry(one, 1), entry(one, 2), entry(other, 0)):
        box.put(each, 1, 0)
    batch = box.take()
    box.put(entry(one, 3), 1, 0)
    error = ValueError("too large")
    box.refuse(batch[1], error)
    assert [(each.origin.number, each.offset) for each in box.live(batch)] == [(1, 0), (2, 0)]
    assert (one.refusal, one.refused_before) == (error, 1)
    box.put(entry(other, 1), 1, 0)
    assert [each.origin for each in box.take()] == [other]


def test_of_a_refused_batch_nobody_knows_the_record_so_they_are_handled_one_by_one() -> None:
    box, one = outbox(), grant()
    box.put(entry(one, 5, count=10), 10, 0)
    (batch,) = box.take()
    box.refuse(batch, ValueError())
    assert one.refusal is None
    assert (one.refused_at, one.singly_until) == (5, 15)


def test_refusals_of_one_record_are_counted_and_another_ones_begin_anew() -> None:
    one = grant()
    counts = []
    for offset in (4, 4, 7):
        one.refuse(offset, offset + 1, ValueError())
        counts.append(one.refusals)
        one.refused_at = -1  # It is rewound, and handled again.
    assert counts == [1, 2, 1]
