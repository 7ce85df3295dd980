"""Letters that some topics take and others do not, on a producer whose answers the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from kunicorn.backoff import Backoff
from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.outputs import Outgoing
from kunicorn.worker.produce import letters as letters_module
from kunicorn.worker.produce.letters import LetterSender
from kunicorn.worker.produce.outbox import Entry, GivenUp, Outbox
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import LetterRefused, LetterTooLarge
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.stats import Counters
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import outbox, taken

TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)
FATAL = KafkaError(KafkaError._FATAL)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
GIVEN_UP = GivenUp(dead_letters("letters"), Cause("ValueError", "no", "", 1))
Answer = Callable[[str, bytes], KafkaError | None]
Told = Callable[[KafkaError | None, Message], None]


class World:
    """A sender of letters, its brokers and its table."""

    def __init__(self) -> None:
        self.outbox: Outbox = outbox()
        self.done: list[int] = []
        """Numbers of the origins that were told as delivered, in order."""
        self.rewound: list[int] = []
        self.answers: Answer = lambda topic, value: None
        self.polls = 0
        self.meanwhile: Callable[[int], None] = lambda polls: None
        """Called with each poll; what it raises ends the delivery."""
        self.producers: list[Producer] = []
        self.sent: list[str] = []
        """Topics of the letters that producers were given, in order."""
        sizes, telemetry = RequestSizes({}), SendTelemetry(Counters())
        self.sender = LetterSender(self._make, sizes, self.outbox, self, telemetry)
        self.held: set[str] = set()
        """Topics that do not answer."""

    def _make(self) -> Any:
        self.producers.append(Producer(self))
        return self.producers[-1]

    def put(
        self, number: int, topic: str = "letters", values: int = 1, size: int = 1, given_up: GivenUp = GIVEN_UP
    ) -> FakeOrigin:
        """A call's records have so many letters there."""
        origin = FakeOrigin(number)
        outputs = [Outgoing(topic, b"x" * size, None, None, -1, 0) for _ in range(values)]
        self.outbox.put([Entry(origin, 0, values, outputs, given_up)], values, size)
        return origin

    def deliver(self) -> None:
        """What is in the outbox, and what comes meanwhile."""
        batch = taken(self.outbox)
        self.sender.deliver(batch)
        self.outbox.done(batch)

    # -- the table -----------------------------------------------------------------------------------------------------

    def delivered(self, reached: Mapping[int, int]) -> None:
        self.done += reached

    def rewind(self, refusals: Mapping[int, int]) -> None:
        self.rewound += refusals


class Producer:
    """In confluent-kafka's place."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.queued: list[tuple[str, bytes, Told]] = []

    def __len__(self) -> int:
        return len(self.queued)

    def produce(self, topic: str, value: bytes, key: Any, partition: int, told: Told, *more: Any) -> None:
        self._world.sent.append(topic)
        self.queued.append((topic, value, told))

    def poll(self, seconds: float) -> int:
        self._world.polls += 1
        assert self._world.polls < 100, "the letters are not answered"
        self._world.meanwhile(self._world.polls)
        queued, self.queued = self.queued, []
        for topic, value, told in queued:
            if topic in self._world.held:
                self.queued.append((topic, value, told))
            else:
                told(self._world.answers(topic, value), Message(topic=topic))
        return len(queued)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(letters_module, "BACKOFF", Backoff(0.0001, 0.0001))
    return World()


def test_a_letter_that_is_not_acknowledged_holds_up_no_other_neither_those_with_it_nor_those_that_come_later(
    world: World,
) -> None:
    world.put(1, "away")
    world.put(2)
    world.held.add("away")
    seen: list[list[int]] = []

    def look(polls: int) -> None:
        seen.append(list(world.done))
        if polls == 2:
            world.put(3)
        if polls == 5:
            world.held.clear()
            world.answers = lambda topic, value: TIMED_OUT if topic == "away" else None

    world.meanwhile = look
    world.deliver()
    assert seen[4] == [2, 3]
    assert (world.done, world.rewound) == ([2, 3], [1])
    assert not world.outbox.waits


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._UNKNOWN_TOPIC])
def test_a_letter_that_fails_waits_whatever_the_error(world: World, code: int) -> None:
    origin = world.put(1)
    world.answers = lambda topic, value: KafkaError(code)
    world.deliver()
    ((_, _, error),) = origin.refusals
    assert isinstance(error, LetterRefused)
    assert (world.done, world.rewound) == ([], [1])


def test_of_several_letters_of_one_call_the_table_is_told_once_all_are_answered(world: World) -> None:
    origin = world.put(1, values=3)
    answers = iter([None, TIMED_OUT, None])
    world.answers = lambda topic, value: next(answers)
    world.deliver()
    assert ([each[:2] for each in origin.refusals], world.rewound) == ([(0, 3)], [1])


def test_of_several_letters_of_one_call_those_that_have_arrived_are_not_sent_again(world: World) -> None:
    given_up = GIVEN_UP
    for refused, sent in (({1, 2}, 4), ({0}, 2), (set[int](), 1)):
        answers = iter(TIMED_OUT if number in refused else None for number in range(sent))
        world.answers = lambda topic, value, answers=answers: next(answers)  # type: ignore[misc]
        del world.sent[:]
        origin = world.put(1, values=4, given_up=given_up)
        world.deliver()
        assert len(world.sent) == sent
        for _, _, error in origin.refusals:
            assert isinstance(error, LetterRefused)
            given_up = error.given_up
    assert (world.done, world.rewound) == ([1], [1, 1])


def test_what_is_given_up_meanwhile_is_told_nobody(world: World) -> None:
    origin = world.put(1)
    origin.discarded = True
    world.deliver()
    assert (world.done, world.rewound) == ([], [])


def test_of_a_partition_that_is_lost_no_letter_goes_out_that_has_waited(world: World) -> None:
    world.put(1, "away")
    world.put(2).discarded = True
    world.held.add("away")

    def look(polls: int) -> None:
        if polls == 2:
            world.put(3).discarded = True
        if polls == 4:
            world.put(4)
        if polls == 6:
            world.held.clear()

    world.meanwhile = look
    world.deliver()
    assert world.sent == ["away", "letters"]
    assert (world.done, world.outbox.late()) == ([4, 1], None)
    world.put(5).discarded = True
    world.deliver()
    assert (len(world.sent), world.rewound) == (2, [])
    assert world.outbox.room() == 100, "nothing is under way"


def test_a_letter_of_a_partition_that_is_lost_while_it_waits_behind_another_producers_letters_does_not_go_out(
    world: World,
) -> None:
    world.put(1, "away")
    origin = world.put(2)
    world.held.add("away")
    world.answers = lambda topic, value: FATAL if len(world.producers) == 1 else None

    def look(polls: int) -> None:
        if polls == 4:
            origin.discarded = True
            world.held.clear()

    world.meanwhile = look
    world.deliver()
    assert (world.done, world.sent) == ([1], ["away", "letters", "away"])


def test_behind_a_fatal_error_letters_go_out_by_another_producer_once_all_of_the_first_ones_are_answered(
    world: World,
) -> None:
    world.put(1, "away")
    world.put(2)
    world.held.add("away")
    world.answers = lambda topic, value: FATAL if len(world.producers) == 1 else None

    def look(polls: int) -> None:
        assert len(world.producers) == (1 if "away" in world.held else len(world.producers))
        if polls == 4:
            world.held.clear()

    world.meanwhile = look
    world.deliver()
    assert (sorted(world.done), world.rewound, len(world.producers)) == ([1, 2], [], 2)


@pytest.mark.parametrize(("others_arrive", "producers"), [(False, 2), (True, 1)])
def test_a_producer_by_which_nothing_arrives_while_a_letter_is_on_its_way_in_vain_is_replaced(
    world: World, others_arrive: bool, producers: int
) -> None:
    """A client that has lost all brokers looks for none any more (confluentinc/librdkafka 5301)."""
    world.put(1, "away")
    if others_arrive:
        world.put(2)
    world.answers = lambda topic, value: TIMED_OUT if topic == "away" else None
    world.deliver()
    assert world.rewound == [1], "its record waits, and sends it again"
    world.put(1)
    world.deliver()
    assert (world.done[-1], len(world.producers)) == (1, producers)


def test_letters_that_are_too_large_together_are_sent_in_smaller_batches(world: World) -> None:
    for number in range(1, 9):
        world.put(number, size=1000)
    together: list[int] = []

    def answer(topic: str, value: bytes) -> KafkaError | None:
        return TOO_LARGE if together[-1] > 2 else None

    world.answers = answer
    world.meanwhile = lambda polls: together.append(len(world.producers[0].queued))
    world.deliver()
    assert (sorted(world.done), world.rewound) == (list(range(1, 9)), [])
    assert together[0] == 8


def refuse_two_together(world: World, topic: str) -> None:
    """Have that topic refuse two letters together, and take them one by one: it gets smaller batches from then on."""
    world.put(1, topic, size=1000)
    world.put(2, topic, size=1000)
    answers = iter([TOO_LARGE, TOO_LARGE])
    world.answers = lambda topic, value: next(answers, None)
    world.deliver()
    world.done.clear()


def test_a_topic_that_refused_letters_together_has_none_of_other_topics_wait_for_letters_on_their_way(
    world: World,
) -> None:
    refuse_two_together(world, "small")
    world.put(3, "away")
    world.held.add("away")
    begun, seen = world.polls, list[list[int]]()

    def look(polls: int) -> None:
        seen.append(list(world.done))
        if polls == begun + 2:
            for number in (4, 5):
                world.put(number)
            world.put(6, "small")
        if polls == begun + 6:
            world.held.clear()

    world.meanwhile = look
    world.deliver()
    assert (sorted(seen[5]), world.done[3:]) == ([4, 5, 6], [3])


def test_a_topic_that_refused_letters_together_gets_its_next_ones_when_it_has_answered_and_others_wait_for_nothing(
    world: World,
) -> None:
    refuse_two_together(world, "small")
    del world.sent[:]
    world.held.add("small")
    for number in range(3, 6):
        world.put(number, "small", size=1000)
        world.put(number + 10)
    begun = world.polls

    def look(polls: int) -> None:
        if polls == begun + 4:
            assert (sorted(world.sent), sorted(world.done)) == (["letters"] * 3 + ["small"], [13, 14, 15])
            world.held.clear()

    world.meanwhile = look
    world.deliver()
    assert (world.done[3:], world.rewound) == ([3, 4, 5], [])


def test_a_letter_that_is_too_large_by_itself_says_so(world: World) -> None:
    origin = world.put(1, values=2)
    world.answers = lambda topic, value: TOO_LARGE
    world.deliver()
    ((_, _, error),) = origin.refusals
    assert isinstance(error, LetterTooLarge)
