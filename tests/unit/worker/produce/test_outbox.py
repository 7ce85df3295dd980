"""What is handled and not delivered yet, without threads: time and the sender are the test's."""

from __future__ import annotations

from kunicorn.handler.outputs import Outgoing
from kunicorn.positions import TopicPartition
from kunicorn.worker.produce.outbox import Entry, Limits, Outbox, Shipment, Succession
from kunicorn.worker.progress import Grant

OUTPUT = Outgoing("out", b"v", None, None, -1, 0)


def grant(number: int = 1) -> Grant:
    return Grant(number, TopicPartition("in", number), 0, 0)


def entry(of: Grant, offset: int, count: int = 1) -> Entry:
    return Entry(of, offset, offset + count, [OUTPUT])


def outbox(records: int = 100, nbytes: int = 1000, seconds: float = 0.0) -> Outbox:
    return Outbox(Limits(records, nbytes, seconds))


def taken(box: Outbox, sender: int = 0) -> Shipment:
    """What is due."""
    box.hurry()
    shipment = box.take(sender)
    assert shipment is not None
    return shipment


def test_everything_so_far_is_one_shipment_and_in_order() -> None:
    box, one, two = outbox(), grant(1), grant(2)
    entries = [entry(one, 0), entry(two, 5), entry(one, 1)]
    for each in entries:
        box.put(each, 1, 10)
    assert taken(box).entries == entries
    assert (one.handled_to, two.handled_to) == (2, 6)


def test_a_full_shipment_leaves_no_room_until_it_is_taken() -> None:
    box = outbox(records=2)
    box.put(entry(grant(), 0), 2, 0)
    assert box.room() == 0
    assert not box.wait_for_room(0.0)
    box.take()
    assert box.room() == 2


def test_bytes_that_are_under_way_count_until_they_are_delivered() -> None:
    box = outbox(nbytes=100)
    box.put(entry(grant(), 0), 1, 100)
    shipment = taken(box)
    assert box.room() == 0
    box.done(shipment)
    assert box.room() > 0


def test_a_shipment_that_has_not_arrived_for_ten_seconds_is_late_until_it_is_done() -> None:
    now = 100.0
    box = Outbox(Limits(100, 1000, 0.0), lambda: now)
    box.put(entry(grant(), 0), 1, 10)
    now = 200.0
    assert box.late() is None, "it was not under way yet"
    shipment = taken(box)
    now = 209.0
    assert box.late() is None
    now = 212.0
    assert box.late() == "its outputs have waited 12 s for delivery: no broker has answered yet"
    box.trouble = "Local: Message timed out"
    assert box.late() == "its outputs have waited 12 s for delivery: Local: Message timed out"
    box.done(shipment)
    assert box.late() is None
    assert box.trouble == ""


def test_a_shipment_waits_for_its_time_unless_a_partition_is_given_up() -> None:
    box = Outbox(Limits(100, 1000, seconds=3600))
    box.put(entry(grant(), 0), 1, 0)
    box.hurry()
    shipment = box.take()
    assert shipment is not None
    assert len(shipment.entries) == 1


def test_of_a_lost_partition_nothing_goes_out() -> None:
    box, lost, kept = outbox(), grant(1), grant(2)
    for each in (entry(lost, 0), entry(kept, 0)):
        box.put(each, 1, 0)
    shipment = taken(box)
    lost.discarded = True
    assert [each.origin for each in box.live(shipment)] == [kept]
    box.put(entry(lost, 1), 1, 0)
    assert lost.handled_to == 1, "what comes later is not even kept"


def test_behind_a_refused_record_nothing_of_its_partition_goes_out_and_what_is_before_does() -> None:
    box, one, other = outbox(), grant(1), grant(2)
    for each in (entry(one, 0), entry(one, 1), entry(one, 2), entry(other, 0)):
        box.put(each, 1, 0)
    shipment = taken(box)
    box.put(entry(one, 3), 1, 0)
    error = ValueError("too large")
    box.refuse(shipment.entries[1], error)
    assert [(each.origin.number, each.offset) for each in box.live(shipment)] == [(1, 0), (2, 0)]
    assert (one.refusal, one.refused_before) == (error, 1)
    box.put(entry(other, 1), 1, 0)
    assert [each.origin for each in taken(box).entries] == [other]


def test_what_is_not_to_be_delivered_any_more_takes_no_room() -> None:
    box, one, other = outbox(records=3, nbytes=100), grant(1), grant(2)
    box.put(entry(one, 0), 1, 10)
    shipment = taken(box)
    for each in (entry(one, 1), entry(other, 0), entry(one, 2)):
        box.put(each, 1, 10)
    assert box.room() == 0
    box.refuse(shipment.entries[0], ValueError("too large"))
    assert box.room() == 2
    box.put(entry(other, 1), 2, 70)
    assert box.room() == 0
    assert taken(box).nbytes == 80


def test_of_a_refused_batch_nobody_knows_the_record_so_they_are_handled_one_by_one() -> None:
    box, one = outbox(), grant()
    box.put(entry(one, 5, count=10), 10, 0)
    (batch,) = taken(box).entries
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


def test_what_is_under_way_behind_a_refused_record_does_not_go_out_though_it_is_rewound_meanwhile() -> None:
    box, one, other = Outbox(Limits(100, 1000, 0.0), senders=2), grant(1), grant(2)
    box.put(entry(one, 0), 1, 0)
    first = taken(box)
    for each in (entry(one, 1), entry(other, 0)):
        box.put(each, 1, 0)
    second = taken(box, 1)
    box.refuse(first.entries[0], ValueError("too large"))
    one.refused_at = -1  # It is rewound, and handles them anew.
    assert list(box.live(first)) == []
    assert [each.origin for each in box.live(second)] == [other]


def test_several_senders_take_in_turns_and_each_shipment_knows_the_one_before() -> None:
    box, one = Outbox(Limits(1, 1000, 0.0), senders=2), grant()
    shipments = []
    for offset, sender in enumerate((0, 1, 0)):
        box.put(entry(one, offset), 1, 0)
        shipments.append(taken(box, sender))
    first, second, third = shipments
    assert (second.before, third.before) == (first, second)
    box.done(first)
    assert box.late() is None
    box.done(second)
    assert (second.before, second.entries) == (None, []), "else all that was ever sent stays in memory"


def test_a_shipment_that_is_settled_late_counts_for_those_behind_some_that_were_settled_before_it() -> None:
    box, one, succession = Outbox(Limits(1, 1000, 0.0), senders=4), grant(), Succession()
    shipments = []
    for offset in range(4):
        box.put(entry(one, offset), 1, 0)
        shipments.append(taken(box, offset))
    first, second, third, fourth = shipments
    for settled in (second, third):
        succession.delivered(settled)
        assert first in fourth.all_before(), "else the fourth commits an offset before the first"
        box.done(settled)
        assert first in fourth.all_before()
    succession.delivered(first)
    box.done(first)
    assert not any(each.entries for each in fourth.all_before())
    succession.delivered(fourth)
    box.done(fourth)
    assert fourth.before is None, "else all that was ever sent stays in memory"


def test_room_is_what_no_shipment_under_way_takes() -> None:
    box = Outbox(Limits(100, 100, 0.0), senders=2)
    shipments = []
    for sender in (0, 1):
        box.put(entry(grant(), 0), 1, 50)
        shipments.append(taken(box, sender))
    assert box.room() == 0
    box.done(shipments[1])
    assert box.room() > 0, "whichever of them it is"
