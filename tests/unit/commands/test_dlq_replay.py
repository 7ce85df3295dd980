"""What a replay says of letters that did not arrive, with a topic and a producer that are played."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message, Producer

from kunicorn.commands import dlq
from kunicorn.commands.dlq import NotAllReplayed, Plan, plan, replay, too_old
from kunicorn.commands.dlq_topic import Found, LettersTopic, Replayed, Selection
from kunicorn.errors import ConfigError, ExitCode, FatalGroupError
from kunicorn.handler.dead_letters import Cause, Told
from kunicorn.handler.record import Record
from kunicorn.kafka.errors import ConnectionLost
from kunicorn.settings.checks import has_legal_name
from tests.fakes.complete_settings import settings_of

NOW = 1_700_000_000_000
Delivered = Callable[[KafkaError | None, Message | None], None]


class PlayedProducer:
    """Answers the records of the values that it is given answers for; the others it keeps."""

    def __init__(self, answers: Mapping[bytes, KafkaError | None]) -> None:
        self._answers = answers
        self._kept: list[tuple[bytes, Delivered]] = []
        self.waited: list[float] = []
        self.partitions: list[int] = []

    def produce(
        self, topic: str, value: bytes, key: bytes, on_delivery: Delivered, partition: int = -1, **_: Any
    ) -> None:
        self.partitions.append(partition)
        self._kept.append((value, on_delivery))

    def poll(self, seconds: float) -> None:
        for value, answer in [each for each in self._kept if each[0] in self._answers]:
            self._kept.remove((value, answer))
            answer(self._answers[value], None)

    def flush(self, seconds: float) -> int:
        self.waited.append(seconds)
        self.poll(0)
        return len(self._kept)


class PlayedTopic:
    """Dead-letter topic of one partition with these values; `producer` sends them. `fails`: by the value of the letter
    that it fails behind.
    """

    name = "orders.dead-letters"
    group = "shop"
    delivery_seconds = 300.0

    def __init__(
        self, values: Iterable[bytes], producer: PlayedProducer, groups: Mapping[bytes, str] | None = None
    ) -> None:
        self.groups = groups or {}
        self.values = dict(enumerate(values))
        self.bounds = {0: (0, len(self.values))}
        self.fails: dict[bytes, Callable[[], None]] = {}
        self.remembered: dict[int, int] = {}
        self.by_others = Replayed()
        """What another replay has committed."""
        self._producer = producer
        self.of_topic, self.came_from = "orders", 0
        """Topic and partition, as the letters tell."""

    def letters(self, starts: Mapping[int, int] | None = None) -> Iterator[Found]:
        for offset, value in self.values.items():
            message = Message(topic=self.name, partition=0, offset=offset, key=b"k", value=value)
            group = self.groups.get(value, self.group)
            told = Told(self.of_topic, self.came_from, offset, group, Cause("E", "", "", 1), NOW, 0, [])
            yield Found(0, offset, Record.of(message), told)
            if starts is not None and value in self.fails:
                self.fails[value]()

    def partitions_of(self, topic: str) -> int:
        assert has_legal_name(topic), "brokers refuse to be asked, in words that name no topic"
        return 1

    def producer(self) -> Producer:
        return cast(Producer, self._producer)

    def replayed(self) -> dict[int, Replayed]:
        return {0: self.by_others}

    def forgets(self) -> bool:
        return False

    def retention_ms(self, topics: Iterable[str]) -> dict[str, int]:
        return {}

    def remember(self, replayed: Mapping[int, Replayed]) -> None:
        self.remembered = {number: each.upto for number, each in replayed.items()}


def planned(topic: PlayedTopic) -> tuple[LettersTopic, Plan, dict[int, Replayed]]:
    letters, done = cast(LettersTopic, topic), {0: Replayed()}
    return letters, plan(letters, Selection(), done, None), done


def replayed(told: list[dict[str, Any]]) -> None:
    """Plan, confirm and send; `told` gets the answer for a program."""
    dlq.run(
        settings_of(),
        Selection(),
        None,
        from_beginning=False,
        confirm=lambda: True,
        say=lambda _: None,
        answer=told.append,
    )


def test_letters_that_are_all_acknowledged_are_counted_and_remembered() -> None:
    topic = PlayedTopic([b"a", b"b"], PlayedProducer({b"a": None, b"b": None}))
    assert replay(*planned(topic), lambda: None) == 2
    assert topic.remembered == {0: 2}


@pytest.mark.parametrize(("came_from", "goes_to"), [(0, 0), (1, -1), (-3, -1)], ids=["there", "gone", "of no topic"])
def test_a_letter_goes_back_to_its_partition_and_by_its_key_where_there_is_none_of_that_number(
    came_from: int, goes_to: int
) -> None:
    """Whoever else writes letters may put anything into their headers; the client refuses a number below -1."""
    producer = PlayedProducer({b"a": None})
    topic = PlayedTopic([b"a"], producer)
    topic.came_from = came_from
    assert replay(*planned(topic), lambda: None) == 1
    assert producer.partitions == [goes_to]


def test_nothing_is_sent_that_could_not_be_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the side group the user may read the offsets, and not commit them: each further replay would repeat it all."""
    producer = PlayedProducer({b"a": None})
    topic = PlayedTopic([b"a"], producer)

    def refused(_: Mapping[int, Replayed]) -> None:
        raise FatalGroupError("not authorized to access the group")

    monkeypatch.setattr(topic, "remember", refused)
    with pytest.raises(FatalGroupError):
        replay(*planned(topic), lambda: None)
    assert producer.partitions == []


def test_a_letter_of_a_topic_that_no_broker_can_have_is_named_with_the_way_past_it() -> None:
    topic = PlayedTopic([b"a"], PlayedProducer({}))
    topic.of_topic = "new orders"
    with pytest.raises(ConfigError, match=r"topic 'new orders', where letters came from, .*: filter by --topic"):
        planned(topic)


def test_letters_that_nobody_acknowledges_end_the_replay_with_an_exit_code_of_its_own() -> None:
    topic = PlayedTopic([b"a", b"b", b"c"], PlayedProducer({b"a": None}))
    with pytest.raises(NotAllReplayed, match="2 of 3 letters were not delivered: 2 are not acknowledged") as refused:
        replay(*planned(topic), lambda: None)
    assert refused.value.exit_code is ExitCode.NOT_ALL_COMMITTED
    assert topic.remembered == {0: 1}


def test_a_replay_waits_for_as_long_as_the_client_tries_to_deliver() -> None:
    producer = PlayedProducer({b"a": None})
    replay(*planned(PlayedTopic([b"a"], producer)), lambda: None)
    assert min(producer.waited) > PlayedTopic.delivery_seconds


def test_letters_that_retention_takes_between_the_plan_and_the_sending_are_told() -> None:
    topic = PlayedTopic([b"a", b"b"], PlayedProducer({b"a": None, b"b": None}))
    letters, chosen, done = planned(topic)
    del topic.values[0]
    with pytest.raises(NotAllReplayed, match=r"1 of 2 letters .*: 1 are not in 'orders\.dead-letters' any more"):
        replay(letters, chosen, done, lambda: None)


def test_a_topic_that_is_deleted_between_the_plan_and_the_sending_is_not_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = PlayedProducer({b"a": None})
    topic = PlayedTopic([b"a"], producer)
    letters, chosen, done = planned(topic)
    monkeypatch.setattr(topic, "partitions_of", lambda _: 0)
    with pytest.raises(NotAllReplayed, match="1 were refused, 1 of them: topic 'orders' does not exist any more"):
        replay(letters, chosen, done, lambda: None)
    assert producer.partitions == []


def interrupt() -> None:
    """Ctrl-C, which is ignored where the tests run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def away() -> None:
    raise ConfigError("the dead-letter topic: no record for 30 s with some still to come; see its brokers")


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (away, "no record for 30 s .*; see its brokers"),
        (interrupt, "it was interrupted"),
        (lambda: signal.raise_signal(signal.SIGTERM), "it was interrupted"),
    ],
    ids=["brokers", "Ctrl-C", "SIGTERM"],
)
def test_a_replay_that_ends_amid_its_letters_remembers_what_is_delivered_and_says_what_is_left(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[], None], why: str
) -> None:
    """Told by the exit code of a wrong setting, and with no answer for a program, it would pass for one that has sent
    nothing.
    """
    topic = PlayedTopic([b"a", b"b", b"c"], PlayedProducer({b"a": None, b"b": None}))
    topic.fails = {b"b": end}
    monkeypatch.setattr(dlq, "opened", lambda *_: nullcontext(topic))
    told: list[dict[str, Any]] = []
    with pytest.raises(NotAllReplayed, match=f"1 of 3 letters were not delivered: 1 were not sent: .*{why}; another"):
        replayed(told)
    assert (topic.remembered, told[0]["sent"]) == ({0: 2}, 2)


def test_sigterm_ends_a_replay_amid_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod it would go on, and be killed amid the letters."""
    producer = PlayedProducer({b"a": None})
    topic = PlayedTopic([b"a"], producer)

    def ended() -> dict[int, Replayed]:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)
        return {0: Replayed()}

    monkeypatch.setattr(topic, "replayed", ended)
    monkeypatch.setattr(dlq, "opened", lambda *_: nullcontext(topic))
    with pytest.raises(KeyboardInterrupt):
        replayed([])
    assert (producer.partitions, signal.getsignal(signal.SIGTERM)) == ([], signal.SIG_DFL)


def test_a_replay_that_ends_before_its_first_letter_tells_that_alone() -> None:
    topic = PlayedTopic([b"a"], PlayedProducer({}))
    letters, chosen, done = planned(topic)
    topic.values = {0: b""}
    topic.fails = {b"": away}
    chosen.chosen = {(0, 7)}
    with pytest.raises(ConfigError, match="no record for 30 s"):
        replay(letters, chosen, done, lambda: None)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({b"a": None, b"b": None}, "^2 were delivered and cannot be remembered: gone; another .* sends them once more"),
        ({b"a": None}, "^1 of 2 letters .* may arrive yet; another replay sends them; 1 were delivered and cannot be"),
    ],
    ids=["all delivered", "some delivered"],
)
def test_letters_that_are_delivered_and_cannot_be_remembered_are_told_as_ones_that_are_repeated(
    monkeypatch: pytest.MonkeyPatch, answers: dict[bytes, KafkaError | None], said: str
) -> None:
    """The coordinator goes away behind the first commit."""
    topic = PlayedTopic([b"a", b"b"], PlayedProducer(answers))
    remembers = iter([None, ConnectionLost("gone")])

    def remember(_: Mapping[int, Replayed]) -> None:
        if (failure := next(remembers)) is not None:
            raise failure

    monkeypatch.setattr(topic, "remember", remember)
    with pytest.raises(NotAllReplayed, match=said):
        replay(*planned(topic), lambda: None)


def test_letters_that_are_refused_are_told_with_the_most_frequent_reason() -> None:
    too_large = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    topic = PlayedTopic([b"a", b"b", b"c"], PlayedProducer({b"a": too_large, b"b": too_large, b"c": None}))
    with pytest.raises(NotAllReplayed, match=r"2 of 3 letters .*: 2 were refused, 2 of them: .*too large"):
        replay(*planned(topic), lambda: None)


@pytest.mark.parametrize("answers", [{b"a": None, b"b": None}, {b"a": None}])
def test_a_program_is_told_what_was_sent_also_where_that_was_not_all(
    monkeypatch: pytest.MonkeyPatch, answers: dict[bytes, KafkaError | None]
) -> None:
    topic = PlayedTopic([b"a", b"b"], PlayedProducer(answers))
    monkeypatch.setattr(dlq, "opened", lambda *_: nullcontext(topic))
    told: list[dict[str, Any]] = []
    with nullcontext() if len(answers) == 2 else pytest.raises(NotAllReplayed):
        replayed(told)
    assert [(each["sent"], each["planned"][0]["records"]) for each in told] == [(len(answers), 2)]


def test_the_plan_says_where_brokers_forget_what_was_replayed() -> None:
    _, plan, _ = planned(PlayedTopic([b"a"], PlayedProducer({})))
    assert not any("forget" in line for line in plan.lines())
    plan.forgotten = True
    assert any("offsets.retention.minutes" in line for line in plan.lines())
    assert plan.told(0)["forgotten_after_offsets_retention"] is True


def test_letters_of_other_groups_are_counted_and_those_without_a_group_are_sent() -> None:
    producer = PlayedProducer({b"a": None, b"c": None})
    topic = PlayedTopic([b"a", b"b", b"c"], producer, {b"b": "payments", b"c": ""})
    letters, chosen, done = planned(topic)
    assert chosen.chosen == {(0, 0), (0, 2)}
    assert any("1  of the group 'payments', passed over" in line for line in chosen.lines())
    assert chosen.told(0)["other_groups"] == {"payments": 1}
    assert replay(letters, chosen, done, lambda: None) == 2


HOUR = 3_600_000


def test_letters_that_no_handler_would_see_are_counted_by_what_they_are_too_old_for() -> None:
    settings = settings_of(group={"topics": ["orders", "refunds"]}, handler={"max_age_ms": HOUR})
    times = {"orders": [NOW - 3 * HOUR, NOW - 2 * HOUR, NOW], "refunds": [NOW]}
    old = too_old(times, settings, {"orders": 150 * 60_000, "refunds": HOUR}, NOW)
    assert [(each.topic, each.count, each.setting) for each in old] == [
        ("orders", 2, "handler.max_age_ms"),
        ("orders", 1, "the topic's retention.ms"),
    ]
    plan = Plan(old=old)
    assert any("2  to orders are older than handler.max_age_ms = 3600000" in line for line in plan.lines())
    assert [each["records"] for each in plan.told(0)["too_old"]] == [2, 1]


def test_each_topic_is_judged_by_its_own_handler() -> None:
    settings = settings_of(
        handlers=[
            {"topics": ["orders"], "entrypoint": "shop:pay", "max_age_ms": HOUR},
            {"topics": ["refunds"], "entrypoint": "shop:refund"},
        ]
    )
    times = {name: [NOW - 2 * HOUR] for name in ("orders", "refunds", "others")}
    assert [each.topic for each in too_old(times, settings, {}, NOW)] == ["orders"]


def test_letters_that_another_replay_has_sent_behind_the_plan_are_left_out_and_stay_remembered() -> None:
    topic = PlayedTopic([b"a", b"b", b"c"], PlayedProducer({b"a": None}))
    letters, chosen, done = planned(topic)
    for offset in (1, 2):
        topic.by_others.add(offset)
    assert replay(letters, chosen, done, lambda: None) == 1
    assert topic.remembered == {0: 3}


def test_a_replay_from_the_beginning_repeats_what_is_remembered() -> None:
    topic = PlayedTopic([b"a", b"b"], PlayedProducer({b"a": None, b"b": None}))
    letters, chosen, done = planned(topic)
    chosen.repeats = True
    topic.by_others.add(0)
    assert replay(letters, chosen, done, lambda: None) == 2
