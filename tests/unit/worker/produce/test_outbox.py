"""What is handled and not delivered yet, without threads: time and the sender are the test's."""

from __future__ import annotations

from kunicorn.worker.produce.outbox import Limits, Outbox, TransactionOrder
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import entry, outbox, taken


def test_everything_so_far_is_one_batch_and_in_order() -> None:
    box, one, two = outbox(), FakeOrigin(1), FakeOrigin(2)
    entries = [entry(one, 0), entry(two, 5), entry(one, 1)]
    for each in entries:
        box.put([each], 1, 10)
    assert taken(box).entries == entries


def test_a_full_batch_leaves_no_room_until_it_is_taken() -> None:
    box = outbox(records=2)
    box.put([entry(FakeOrigin(), 0)], 2, 0)
    assert box.room() == 0
    box.take()
    assert box.room() == 2


def test_bytes_that_are_under_way_count_until_they_are_delivered() -> None:
    box = outbox(nbytes=100)
    box.put([entry(FakeOrigin(), 0)], 1, 100)
    batch = taken(box)
    assert box.room() == 0
    box.done(batch)
    assert box.room() > 0


def test_a_batch_that_has_not_arrived_for_ten_seconds_is_late_until_it_is_done() -> None:
    now = 100.0
    box = Outbox(Limits(100, 1000, 0.0), lambda: now)
    box.put([entry(FakeOrigin(), 0)], 1, 10)
    now = 200.0
    assert box.late() is None, "it was not under way yet"
    batch = taken(box)
    now = 209.0
    assert box.late() is None
    now = 212.0
    assert box.late() == "its outputs have waited 12 s for delivery: no broker has answered yet"
    box.note_trouble("Local: Message timed out")
    assert box.late() == "its outputs have waited 12 s for delivery: Local: Message timed out"
    box.done(batch)
    assert box.late() is None
    assert box.trouble == ""


def test_a_batch_waits_for_its_time_unless_a_partition_is_given_up() -> None:
    box = Outbox(Limits(100, 1000, seconds=3600))
    box.put([entry(FakeOrigin(), 0)], 1, 0)
    box.hurry()
    batch = box.take()
    assert batch is not None
    assert len(batch.entries) == 1


def test_of_a_lost_partition_nothing_goes_out() -> None:
    box, lost, kept = outbox(), FakeOrigin(1), FakeOrigin(2)
    for each in (entry(lost, 0), entry(kept, 0)):
        box.put([each], 1, 0)
    batch = taken(box)
    lost.discarded = True
    assert [each.origin for each in box.live(batch)] == [kept]
    box.put([entry(lost, 1)], 1, 0)
    assert not box.waits, "what comes later is not even kept"


def test_behind_a_refused_record_nothing_of_its_partition_goes_out_and_what_is_before_does() -> None:
    box, one, other = outbox(), FakeOrigin(1), FakeOrigin(2)
    for each in (entry(one, 0), entry(one, 1), entry(one, 2), entry(other, 0)):
        box.put([each], 1, 0)
    batch = taken(box)
    box.put([entry(one, 3)], 1, 0)
    error = ValueError("too large")
    box.refuse([(batch.entries[1], error)])
    assert [(each.origin.number, each.offset) for each in box.live(batch)] == [(1, 0), (2, 0)]
    assert one.refusals == [(1, 2, error)]
    box.put([entry(other, 1)], 1, 0)
    assert [each.origin for each in taken(box).entries] == [other]


def test_what_is_not_to_be_delivered_any_more_takes_no_room() -> None:
    box, one, other = outbox(records=3, nbytes=100), FakeOrigin(1), FakeOrigin(2)
    box.put([entry(one, 0)], 1, 10)
    batch = taken(box)
    for each in (entry(one, 1), entry(other, 0), entry(one, 2)):
        box.put([each], 1, 10)
    assert box.room() == 0
    box.refuse([(batch.entries[0], ValueError("too large"))])
    assert box.room() == 2
    box.put([entry(other, 1)], 2, 70)
    assert box.room() == 0
    assert taken(box).nbytes == 80


def test_what_is_put_of_several_entries_counts_once_and_in_part_where_some_are_not_wanted() -> None:
    box, one = outbox(records=10, nbytes=100), FakeOrigin(refused_at=2)
    box.put([entry(one, offset) for offset in range(4)], 4, 40)
    assert box.room() == 6
    batch = taken(box)
    assert ([each.offset for each in batch.entries], batch.nbytes) == ([0, 1], 40)


def test_what_is_under_way_behind_a_refused_record_does_not_go_out_though_it_is_rewound_meanwhile() -> None:
    box, one, other = Outbox(Limits(100, 1000, 0.0), senders=2), FakeOrigin(1), FakeOrigin(2)
    box.put([entry(one, 0)], 1, 0)
    first = taken(box)
    for each in (entry(one, 1), entry(other, 0)):
        box.put([each], 1, 0)
    second = taken(box, 1)
    box.refuse([(first.entries[0], ValueError("too large"))])
    one.refused_at = -1  # It is rewound, and handles them anew.
    assert list(box.live(first)) == []
    assert [each.origin for each in box.live(second)] == [other]


def test_what_was_left_out_by_a_refusal_before_it_is_refused_no_more() -> None:
    box, one = Outbox(Limits(100, 1000, 0.0), senders=2), FakeOrigin(1)
    box.put([entry(one, 0)], 1, 0)
    first = taken(box)
    box.put([entry(one, 1)], 1, 0)
    (behind,) = taken(box, 1).entries
    assert box.refuse([(first.entries[0], ValueError("too large"))]) == {1: 1}
    one.refused_at = -1  # It is rewound, and handles them anew.
    assert box.refuse([(behind, ValueError("too large"))]) == {}, "it is told late, of a call that counts no more"
    assert one.refused_at == -1


def test_several_senders_take_in_turns_and_each_batch_knows_the_one_before() -> None:
    box, one = Outbox(Limits(1, 1000, 0.0), senders=2), FakeOrigin()
    batches = []
    for offset, sender in enumerate((0, 1, 0)):
        box.put([entry(one, offset)], 1, 0)
        batches.append(taken(box, sender))
    first, second, third = batches
    assert (second.before, third.before) == (first, second)
    box.done(first)
    assert box.late() is None
    box.done(second)
    assert (second.before, second.entries) == (None, []), "else all that was ever sent stays in memory"


def test_a_batch_that_is_settled_late_counts_for_those_behind_some_that_were_settled_before_it() -> None:
    box, one, order = Outbox(Limits(1, 1000, 0.0), senders=4), FakeOrigin(), TransactionOrder()
    batches = []
    for offset in range(4):
        box.put([entry(one, offset)], 1, 0)
        batches.append(taken(box, offset))
    first, second, third, fourth = batches
    for settled in (second, third):
        order.delivered(settled)
        assert first in fourth.all_before(), "else the fourth commits an offset before the first"
        box.done(settled)
        assert first in fourth.all_before()
    order.delivered(first)
    box.done(first)
    assert not any(each.entries for each in fourth.all_before())
    order.delivered(fourth)
    box.done(fourth)
    assert fourth.before is None, "else all that was ever sent stays in memory"


def test_room_is_what_no_batch_under_way_takes() -> None:
    box = Outbox(Limits(100, 100, 0.0), senders=2)
    batches = []
    for sender in (0, 1):
        box.put([entry(FakeOrigin(), 0)], 1, 50)
        batches.append(taken(box, sender))
    assert box.room() == 0
    box.done(batches[1])
    assert box.room() > 0, "whichever of them it is"
