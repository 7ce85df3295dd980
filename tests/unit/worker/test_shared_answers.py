"""What is queued keeps none of the answers in memory that it came with: rows of our own fetcher."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from kunicorn.columns.decoding import compiled
from kunicorn.handler.call import OfSome
from kunicorn.handler.config import HandlerConfig, RateLimiting
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import Backpressure
from kunicorn.worker.delivery import ON_ACKNOWLEDGEMENT, ON_RETURN, Completion
from kunicorn.worker.limits.gate import gate_of
from kunicorn.worker.progress import Attempt, InFlight, Slots
from kunicorn.worker.scheduler import Scheduler
from kunicorn.worker.stats import Counters
from tests.fakes import fetched
from tests.unit.worker.tables import OUTPUT, Table

VERSION = 17
SMALL, LARGE = TopicPartition("small", 0), TopicPartition("large", 0)
IDS = {SMALL: b"s" * 16, LARGE: b"l" * 16}
AHEAD = 1_000_000
ANSWERS, ANSWER = 60, 200_000
BOUND = 3 * AHEAD
"""Twice what may be kept, and what comes until the next look."""


class Answers:
    """Each has one small record of one topic and much of another, by one broker."""

    def __init__(self) -> None:
        gc.collect()
        self._decoder = compiled()(read_committed=False, max_unpacked=1 << 28)
        self._before = self._decoder.held()
        for tp, topic_id in IDS.items():
            self._decoder.place(topic_id, tp.partition, tp.topic, 0)

    @property
    def shared_bytes(self) -> int:
        """Of the rows that are alive."""
        return self._decoder.held() - self._before

    def come(self, table: Table, number: int) -> None:
        small = fetched.record(0, b"%d" % number, key=b"slow")
        large = fetched.record(0, b"x" * ANSWER, key=b"quick")
        parts = {
            IDS[tp]: [fetched.partition(VERSION, 0, [fetched.batch([record], base_offset=number)])]
            for tp, record in ((SMALL, small), (LARGE, large))
        }
        response = self._decoder.decode(fetched.body(VERSION, parts, session_id=7), VERSION)
        for part in response.partitions:
            rows: Any = response.rows.cut(part.first_row, part.rows, 1)
            table.table.feed(TopicPartition(part.topic, part.partition), 1, rows, number)


class Scene:
    """Two handlers: what the one has does not get on, and the other handles at once what comes."""

    def __init__(self, ordering: str, completion: Completion = ON_RETURN, *, runs: bool) -> None:
        self.answers = Answers()
        self.slow, self.quick = Slots(ordering, 1, runs=runs), Slots("partition", 1, runs=True)
        self.table = Table(self.quick, completion, ahead_bytes=AHEAD, others={SMALL.topic: self.slow})
        self.table.client.shared_bytes = 0
        for grant, tp in enumerate((SMALL, LARGE), 1):
            self.table.start(tp, grant)
        self.table.table.begin_turn(0)
        self.most = 0

    def first(self) -> InFlight:
        self.come(0)
        flight = self.table.table.start_next(self.slow)
        assert flight is not None
        return flight

    def go_on(self) -> None:
        for number in range(1, ANSWERS):
            self.come(number)

    def come(self, number: int) -> None:
        self.answers.come(self.table, number)
        while (flight := self.table.table.start_next(self.quick)) is not None:
            self.table.table.returned(flight, len(flight.messages), 10, 1)
            del flight
        self.table.client.shared_bytes = self.answers.shared_bytes
        self.table.table.balance(number)
        self.most = max(self.most, self.answers.shared_bytes)

    def values(self) -> list[bytes | None]:
        """Of what is queued, in order."""
        tracker = next(each for each in self.table.table._open.values() if each.tp == SMALL).tracker
        flights = [flight for lane in tracker.lanes.values() for flight in lane.queue]
        return [message.value() for flight in flights for message in flight.messages]


@pytest.fixture(params=[("partition", True), ("key", False)], ids=["runs", "keys"])
def scene(request: pytest.FixtureRequest) -> Scene:
    ordering, runs = request.param
    return Scene(ordering, runs=runs)


def test_answers_are_let_go_behind_a_record_that_waits_for_its_next_try(scene: Scene) -> None:
    flight = scene.first()
    failed = scene.table.table.failed(flight, 0, 10, OfSome(OSError("away"), count=1)) if scene.slow.runs else flight
    assert failed is not None
    scene.table.table.park(Attempt(failed), "retry", "the database is away")
    scene.go_on()
    assert scene.most < BOUND
    assert scene.values() == [b"%d" % number for number in range(ANSWERS)]


def test_answers_are_let_go_behind_a_call_that_takes_its_time(scene: Scene) -> None:
    scene.first()
    scene.go_on()
    assert scene.most < BOUND
    assert scene.values() == [b"%d" % number for number in range(ANSWERS)]


def test_answers_are_let_go_where_no_slot_is_free(scene: Scene) -> None:
    scene.come(0)
    scene.go_on()
    assert scene.most < BOUND
    assert scene.values() == [b"%d" % number for number in range(ANSWERS)]


def test_what_copies_do_not_free_is_not_copied_with_every_turn() -> None:
    backpressure = Backpressure(Scheduler(), AHEAD)
    assert backpressure.is_to_copy(5 * AHEAD)
    backpressure.copied(5 * AHEAD)
    assert not backpressure.is_to_copy(6 * AHEAD - 1)
    assert backpressure.is_to_copy(6 * AHEAD)
    assert not backpressure.is_to_copy(AHEAD)
    assert backpressure.is_to_copy(2 * AHEAD)


def test_answers_are_let_go_of_records_that_wait_for_the_rate_of_their_key() -> None:
    limit = RateLimiting(0.001, 1, "key", "records")
    config = HandlerConfig("shop:handle", "record", {}, 1, 1, 0, 0, rate_limit=limit)
    scene = Scene("none", runs=False)
    scene.slow.most, scene.slow.gate = 2, gate_of(config, Counters())
    scene.first()
    for number in range(1, ANSWERS):
        scene.come(number)
        assert scene.table.table.start_next(scene.slow) is None
    assert scene.most < BOUND


@pytest.mark.parametrize(("ordering", "runs"), [("partition", True), ("none", False)], ids=["runs", "singly"])
def test_answers_are_let_go_of_records_whose_outputs_are_not_acknowledged(ordering: str, runs: bool) -> None:
    scene = Scene(ordering, ON_ACKNOWLEDGEMENT, runs=runs)
    for number in range(ANSWERS):
        scene.come(number)
        flight = scene.table.table.start_next(scene.slow)
        assert flight is not None
        flight.leave(number, number + 1, [OUTPUT])
        scene.table.ledger.cells[flight.tracker.cell] = number + 1
        if runs:
            scene.table.table.returned(flight, 1, 10, 1)
        else:
            assert scene.table.table.finish(flight) is None
    assert scene.most < BOUND
