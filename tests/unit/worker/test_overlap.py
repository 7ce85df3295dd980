"""Several transactions under way, step by step in whatever order, on brokers in memory: nothing overtakes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition
from hypothesis import example, given
from hypothesis import strategies as st

from kunicorn.handler.outputs import Outgoing
from kunicorn.positions import NO_OFFSET
from kunicorn.worker.produce.outbox import Entry, Limits, Outbox, OutputBatch, Step
from kunicorn.worker.produce.sender import Fenced
from tests.fakes.origins import FakeOrigin
from tests.fakes.stepped_senders import SteppedSenders, nobody_waits
from tests.fakes.transactional_brokers import (
    ABORTABLE,
    FATAL,
    RETRIABLE,
    TOO_LARGE_VALUE,
    TransactionalBrokers,
)

EACH = 2
"""Records of each partition in a batch."""
PARTITIONS = (0, 1)


pytestmark = pytest.mark.usefixtures("_nobody_waits")


@pytest.fixture
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_waits(monkeypatch)


def value_of(partition: int, offset: int) -> bytes:
    return b"%d@%d" % (partition, offset)


class World:
    """A worker with several producers, of which the test says which one takes its next step."""

    def __init__(self, faults: Mapping[tuple[str, int], KafkaError] | None = None, producers: int = 2) -> None:
        self.brokers = TransactionalBrokers(dict(faults or {}))
        self.outbox = Outbox(Limits(1000, 1 << 20, 0.0), senders=producers)
        self.grants = {partition: FakeOrigin(partition) for partition in PARTITIONS}
        self.settled: dict[int, int] = {}
        self.fetched: dict[int, int] = {}
        """Up to where; the outbox takes nothing of a partition between a refusal and its rewinding."""
        self.senders = SteppedSenders(self.brokers, self.outbox, cast(Any, self), producers)

    # -- the runner ------------------------------------------------------------------------------------------------

    def handle(self, partition: int, offset: int, value: bytes | None = None) -> None:
        """The handler has returned."""
        self.fetched[partition] = max(self.fetched.get(partition, 0), offset + 1)
        outputs = [Outgoing("out", value or value_of(partition, offset), None, None, -1, 0)]
        self.outbox.put([Entry(self.grants[partition], offset, offset + 1, outputs)], 1, 0)

    def ship(self, number: int, *bad: int) -> int:
        """Records of every partition for one batch, those at offsets in `bad` with too large an output, and take
        it; whose turn that was."""
        for partition in PARTITIONS:
            for offset in range(number * EACH, (number + 1) * EACH):
                self.handle(partition, offset, TOO_LARGE_VALUE if offset in bad and partition == 0 else None)
        return self.senders.take()

    # -- the table, as senders see it ----------------------------------------------------------------------------

    def delivered(self, reached: Mapping[int, int]) -> None:
        for number, following in reached.items():
            self.settled[number] = max(self.settled.get(number, 0), following)

    def rewind(self, refusals: Mapping[int, int]) -> None:
        """The refused record, and what is behind it, is handled again, at once; the record is given up this time."""
        for number in refusals:
            grant = self.grants[number]
            refused = grant.refused_at
            assert self.settled.get(number, 0) == refused, "everything before it is delivered"
            grant.refused_at = NO_OFFSET
            for offset in range(refused, self.fetched[number]):
                self.handle(number, offset, b"letter" if offset == refused else None)

    def places(self, batch: OutputBatch, live: Sequence[Entry], cluster_id: str) -> list[ClientPartition]:
        last = {entry.origin.number: entry.following for entry in live}
        return [ClientPartition("in", number, following) for number, following in last.items()]

    def both_until(self, step: Step) -> tuple[int, int]:
        """Two batches are shipped, and that step of each comes next; whose turns they were."""
        turns = self.ship(0), self.ship(1)
        for turn in turns:
            self.senders.until(turn, step)
        return turns

    def finish(self, batches: int, given_up: Iterable[int] = ()) -> None:
        """Everything, whoever can; then `check`."""
        self.senders.finish()
        self.check(batches, given_up)

    def check(self, batches: int, given_up: Iterable[int] = ()) -> None:
        """Every record has its output once, in the order of its partition, and is committed; no window is open."""
        values = self.brokers.committed_values()
        for partition in PARTITIONS:
            expected = [value_of(partition, offset) for offset in range(batches * EACH)]
            if partition == 0:
                expected = [b"letter" if offset in given_up else expected[offset] for offset in range(len(expected))]
            ours = [value for value in values if value.startswith(b"%d@" % partition) or value == b"letter"]
            if partition != 0:
                ours = [value for value in ours if value != b"letter"]
            assert ours == expected
            assert self.brokers.offsets[partition].offset == batches * EACH == self.settled[partition]
        assert (self.senders.windows, self.brokers.open) == (set(), set())
        for offsets in zip(self.brokers.commits, self.brokers.commits[1:], strict=False):
            assert all(offsets[1][partition] >= offset for partition, offset in offsets[0].items()), "committed back"


# -- one story at a time ---------------------------------------------------------------------------------------------


def test_while_one_transaction_commits_the_next_has_produced_and_sent_its_offsets() -> None:
    world = World()
    first, second = world.both_until(Step.COMMIT)
    assert len(world.brokers.open) == 2
    assert world.senders.advance(second) is Step.COMMIT, "its offsets would be committed past unfinished records"
    assert world.senders.advance(first) is Step.DONE
    assert world.senders.advance(second) is Step.DONE
    world.check(2)


def test_behind_one_of_which_nothing_is_left_none_is_committed_before_those_before_it() -> None:
    world = World(producers=3)
    world.handle(0, 0, TOO_LARGE_VALUE)
    world.handle(1, 0)
    first = world.senders.take()
    world.handle(0, 1)
    emptied = world.senders.take()
    world.handle(1, 1)
    third = world.senders.take()
    world.senders.until(first, Step.REST)
    for _ in range(10):
        assert world.senders.advance(emptied) is not Step.DONE
        assert world.senders.advance(third) is not Step.DONE
    assert world.brokers.offsets == {}
    world.senders.finish()
    assert [value for value in world.brokers.committed_values() if value.startswith(b"1@")] == [b"1@0", b"1@1"]


def test_nothing_is_produced_before_the_outputs_before_it_are_acknowledged() -> None:
    world = World()
    first, second = world.ship(0), world.ship(1)
    world.senders.until(second, Step.PRODUCE)
    assert world.senders.advance(second) is Step.PRODUCE
    world.senders.until(first, Step.OFFSETS)
    assert world.senders.advance(second) is Step.FLUSH
    world.finish(2)


def test_offsets_are_not_written_before_those_before_them() -> None:
    world = World()
    first, second = world.both_until(Step.OFFSETS)
    assert world.senders.advance(second) is Step.OFFSETS
    world.senders.until(first, Step.COMMIT)
    assert world.senders.advance(second) is Step.COMMIT
    world.finish(2)


@pytest.mark.parametrize("call", ["flush", "offsets", "commit"])
def test_what_was_produced_behind_an_aborted_transaction_is_aborted_and_sent_again_behind_it(call: str) -> None:
    world = World({(call, 0): ABORTABLE})
    first, second = world.ship(0), world.ship(1)
    world.senders.until(first, {"flush": Step.FLUSH, "offsets": Step.OFFSETS, "commit": Step.COMMIT}[call])
    if call == "commit":
        world.senders.until(second, Step.COMMIT)
    world.senders.until(first, Step.REST)
    world.senders.finish()
    assert world.brokers.calls.count("abort") == (2 if call == "commit" else 1)
    world.check(2)


def test_one_that_was_aborted_has_nothing_open_until_those_before_it_are_committed() -> None:
    world = World({("commit", 0): ABORTABLE})
    first, second = world.both_until(Step.COMMIT)
    world.senders.until(first, Step.REST)
    world.senders.until(second, Step.REST)
    assert (world.brokers.open, world.senders.windows) == (set(), set())
    world.senders.until(first, Step.COMMIT)
    assert world.senders.advance(second) is Step.REST
    assert world.senders.advance(first) is Step.DONE
    assert world.senders.advance(second) is Step.ASK
    world.finish(2)


def test_the_second_aborts_by_itself_and_the_first_does_not_notice() -> None:
    world = World({("offsets", 1): ABORTABLE})
    first, second = world.ship(0), world.ship(1)
    world.senders.until(first, Step.COMMIT)
    world.senders.until(second, Step.REST)
    assert world.senders.advance(second) is Step.REST
    assert world.senders.advance(first) is Step.DONE
    world.senders.finish()
    assert world.brokers.calls.count("abort") == 1
    world.check(2)


def test_an_undecided_commit_of_the_first_is_asked_about_again_and_the_second_waits() -> None:
    world = World({("commit", 0): RETRIABLE})
    first, second = world.both_until(Step.COMMIT)
    assert world.senders.advance(first) is Step.COMMIT
    assert world.senders.advance(second) is Step.COMMIT
    world.senders.finish()
    assert "abort" not in world.brokers.calls
    world.check(2)


def test_one_that_waits_too_long_for_the_one_before_is_aborted_before_the_brokers_do() -> None:
    world = World({("commit", 0): RETRIABLE})
    _, second = world.both_until(Step.COMMIT)
    world.senders.every[second]._opened_at -= 3601
    world.senders.until(second, Step.REST)
    assert len(world.brokers.open) == 1
    assert world.senders.advance(second) is Step.REST
    world.finish(2)


@pytest.mark.parametrize("fenced", [0, 1])
def test_a_fenced_producer_ends_the_worker_and_nothing_behind_it_is_committed(fenced: int) -> None:
    world = World({("commit", fenced): FATAL})
    first, second = world.ship(0), world.ship(1)
    world.senders.until(second, Step.PRODUCE)
    with pytest.raises(Fenced, match="transactional_id_prefix"):
        world.senders.finish()
    assert world.brokers.commits == [{0: EACH, 1: EACH}][:fenced]
    assert {first, second} == {0, 1}


def test_a_refused_output_of_the_first_takes_along_what_is_behind_it_in_its_partition_alone() -> None:
    world = World()
    first, second = world.ship(0, 1), world.ship(1)
    world.senders.until(second, Step.PRODUCE)
    world.senders.until(first, Step.REST)
    world.finish(2, given_up=[1])


def test_a_refused_output_of_the_second_leaves_the_first_alone() -> None:
    world = World()
    first, second = world.ship(0), world.ship(1, 2)
    world.senders.until(first, Step.COMMIT)
    world.senders.until(second, Step.REST)
    assert world.senders.advance(first) is Step.DONE
    world.finish(2, given_up=[2])


@pytest.mark.parametrize("step", [Step.ASK, Step.PRODUCE, Step.FLUSH, Step.OFFSETS])
def test_of_a_partition_that_is_lost_neither_goes_out_and_of_the_others_both(step: Step) -> None:
    world = World()
    first, second = world.ship(0), world.ship(1)
    world.senders.until(first, step)
    world.grants[0].discarded = True
    world.senders.finish()
    assert {number: found.offset for number, found in world.brokers.offsets.items()} == {1: 2 * EACH}
    assert not [value for value in world.brokers.committed_values() if value.startswith(b"0@")]
    assert {first, second} == {0, 1}


def test_of_a_partition_that_is_lost_while_its_offsets_are_looked_up_nothing_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How far it was the table does not know any more."""
    world = World()
    first = world.ship(0)
    world.senders.until(first, Step.OFFSETS)
    found = world.places

    def places(*arguments: Any) -> list[ClientPartition]:
        world.grants[0].discarded = True
        return found(*arguments)

    monkeypatch.setattr(world, "places", places)
    world.senders.finish()
    assert set(world.brokers.offsets) == {1}
    assert world.brokers.committed_values() == [value_of(1, offset) for offset in range(EACH)]


def test_a_batch_of_which_nothing_is_left_holds_nobody_up() -> None:
    world = World()
    first, second = world.ship(0), world.ship(1)
    for grant in world.grants.values():
        grant.discarded = True
    world.handle(1, 99)
    world.senders.until(first, Step.DONE)
    world.senders.until(second, Step.DONE)
    assert world.brokers.calls == []


def test_while_the_member_may_not_commit_nothing_is_open() -> None:
    world = World()
    world.senders.may_commit = False
    first, second = world.ship(0), world.ship(1)
    for lane in (first, second) * 3:
        assert world.senders.advance(lane) is Step.ASK
    assert (world.brokers.calls, world.senders.windows) == ([], set())
    world.senders.may_commit = True
    world.senders.answer()
    world.finish(2)


def test_brokers_that_take_no_metadata_are_named_with_the_setting_that_lets_them() -> None:
    world = World({("offsets", 0): KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE, "too large", False, False, True)})
    world.senders.until(world.ship(0), Step.ABORT)
    assert "offset.metadata.max.bytes" in world.outbox.trouble
    world.finish(1)


# -- any order -------------------------------------------------------------------------------------------------------

FAULTS = st.dictionaries(
    st.tuples(st.sampled_from(["flush", "offsets", "commit"]), st.integers(0, 5)),
    st.sampled_from([ABORTABLE, RETRIABLE]),
    max_size=4,
) | st.dictionaries(st.tuples(st.sampled_from(["begin", "abort"]), st.integers(0, 3)), st.just(RETRIABLE), max_size=2)
NUMBER = 4


@given(
    faults=FAULTS,
    order=st.lists(st.integers(0, 2), max_size=80),
    bad=st.none() | st.integers(0, NUMBER * EACH - 1),
    producers=st.integers(1, 3),
)
@example(faults={}, order=[0] * 8 + [1] * 4 + [0] * 2 + [1] * 2, bad=4, producers=2)
@example(faults={("flush", 3): RETRIABLE}, order=[], bad=1, producers=1)
@example(faults={("flush", 3): ABORTABLE}, order=[], bad=1, producers=1)
def test_in_whatever_order_and_whatever_is_aborted_every_record_is_committed_once_and_in_its_order(
    faults: dict[tuple[str, int], KafkaError], order: list[int], bad: int | None, producers: int
) -> None:
    world = World(faults, producers)
    left = list(range(NUMBER))
    given_up = [] if bad is None else [bad]

    def more() -> None:
        while left and world.senders.steps[world.outbox._turn] is None and not world.outbox.waits:
            world.ship(left.pop(0), *given_up)

    more()
    for lane in order:
        world.senders.advance(lane % producers)
        world.senders.take_if_possible()
        more()
    while left:
        world.senders.finish()
        more()
    world.finish(NUMBER, given_up)


def test_outputs_that_are_too_large_only_together_are_aborted_once_and_sent_in_pieces() -> None:
    world = World()
    values = [(b"%d" % offset).ljust(100, b"x") for offset in range(8)]
    world.brokers.largest_batch = 250
    for batch in (values[:4], values[4:]):
        for value in batch:
            world.handle(0, values.index(value), value)
        world.senders.take()
        world.senders.finish()
    assert world.grants[0].refusals == []
    assert world.brokers.committed_values() == values
    assert world.brokers.calls.count("abort") == 1, "the second batch comes in pieces at once"
