"""`kunicorn dlq` on a real dead-letter topic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kunicorn.commands.dlq import NotAllReplayed
from kunicorn.commands.dlq_topic import LettersTopic
from kunicorn.errors import ConfigError
from kunicorn.handler.letter_styles import Facts, written
from tests.kafka import KafkaCluster
from tests.system.dlq.desk import Desk
from tests.system.producing import consumed, headers_of


@pytest.fixture
def desk(kafka: KafkaCluster, topic: str, tmp_path: Path) -> Desk:
    """Topics are made by `fill`."""
    return Desk(kafka, topic, tmp_path)


def test_list_counts_letters_and_show_shows_one_without_obeying_its_control_characters(desk: Desk) -> None:
    desk.fill()
    listed = desk.said("list")
    assert f"{desk.letters}: 3 dead letters, 2023-11-14T22:13:20Z to" in listed
    assert f"       2  shop.NoStock  {desk.topic}-0" in listed
    assert "       1  no dead letters of kunicorn's: no header kunicorn-topic" in listed
    told = json.loads(desk.said("list", "--json", "--latest", "1"))
    assert (told["letters"], told["foreign"], told["groups"][0]["count"]) == (3, 1, 2)
    assert [letter["place"] for letter in told["latest"]] == ["0@3"]
    shown = desk.said("show", "0@3")
    assert f"from      {desk.topic}-0@3, group {desk.topic}" in shown
    assert "error     shop.NoStock: no\\x1b[31m stock" in shown
    assert "value     v3" in shown
    letter = json.loads(desk.said("show", "0@3", "--json"))
    assert (letter["key"], letter["value"], letter["headers"]) == ("key", "v3", [["trace", "3"]])
    assert "no dead letter of kunicorn's" in desk.said("show", "0@2")
    for place, why in (("0@9", "there is no record"), ("7", "not the place of a letter")):
        with pytest.raises(ConfigError, match=why):
            desk.said("show", place)


def test_replay_sends_back_what_the_filters_mean_and_never_twice(desk: Desk) -> None:
    desk.fill()
    planned = desk.said("replay", "--yes", "--error", "NoStock", "--limit", "1")
    assert "to send back: 1" in planned
    assert "sent back and acknowledged: 1" in planned
    (back,) = consumed(desk.kafka.bootstrap, desk.topic, 5)[4:]
    assert (back.key(), back.value(), back.timestamp()[1]) == (b"key", b"v0", 1_700_000_000_000)
    assert headers_of(back) == [("trace", b"0"), ("kunicorn-replays", b"1")]
    assert "sent back and acknowledged: 1" in desk.said("replay", "--yes", "--error", "NoStock")
    assert "to send back: 0" in desk.said("replay", "--yes", "--error", "NoStock")
    assert "sent back and acknowledged: 1" in desk.said("replay", "--yes"), "what the filters left out is not forgotten"
    assert "to send back: 0" in desk.said("replay", "--yes")
    values = [message.value() for message in consumed(desk.kafka.bootstrap, desk.topic, 7)[4:]]
    assert values == [b"v0", b"v3", b"v1"]
    again = json.loads(desk.said("replay", "--yes", "--from-beginning", "--json"))
    assert (again["sent"], sum(each["records"] for each in again["planned"]), again["left_out"]) == (3, 3, 0)
    assert json.loads(desk.said("replay", "--yes", "--json"))["sent"] == 0


def test_letters_of_aborted_and_of_open_transactions_are_none(desk: Desk) -> None:
    """The records of aborted ones are handled again, and those of open ones may be: sent back as well, they would be
    handled twice."""
    desk.kafka.create_topic(desk.topic, 1)
    desk.kafka.create_topic(desk.letters, 1)
    sender = Producer({"bootstrap.servers": desk.kafka.bootstrap, "transactional.id": desk.letters})
    sender.init_transactions(30)
    for style, end in (("aborted", sender.abort_transaction), ("committed", sender.commit_transaction), ("open", None)):
        facts = Facts(desk.topic, 0, 7, None, desk.topic, "shop.NoStock", "no stock", "in pack", 3)
        sender.begin_transaction()
        headers: list[tuple[str, str | bytes | None]] = [*written("spring", facts)]
        sender.produce(desk.letters, style, "key", headers=headers)
        assert sender.flush(60) == 0
        if end is not None:
            end(30)
    told = json.loads(desk.said("list", "--json", "--latest", "3"))
    assert [letter["value"] for letter in told["latest"]] == ["committed"]
    with pytest.raises(ConfigError, match="there is no record"):
        desk.said("show", "0@0")
    assert "sent back and acknowledged: 1" in desk.said("replay", "--yes")
    assert [message.value() for message in consumed(desk.kafka.bootstrap, desk.topic, 1)] == [b"committed"]
    sender.commit_transaction(30)
    assert "sent back and acknowledged: 1" in desk.said("replay", "--yes"), "it is not passed over for good"


def test_letters_of_spring_connect_and_karafka_are_sent_back_as_they_were(desk: Desk) -> None:
    desk.kafka.create_topic(desk.topic, 1)
    desk.kafka.create_topic(desk.letters, 1)
    sender = Producer({"bootstrap.servers": desk.kafka.bootstrap})
    for style in ("spring", "connect", "karafka"):
        facts = Facts(desk.topic, 0, 7, None, desk.topic, "shop.NoStock", "no stock", "in pack", 3)
        headers: list[tuple[str, str | bytes | None]] = [("trace", "1"), *written(style, facts)]
        sender.produce(desk.letters, style, "key", headers=headers, timestamp=1_700_000_000_000)
    assert sender.flush(60) == 0
    told = json.loads(desk.said("list", "--json", "--latest", "3"))
    assert (told["letters"], told["foreign"]) == (3, 0)
    assert "sent back and acknowledged: 3" in desk.said("replay", "--yes")
    back = consumed(desk.kafka.bootstrap, desk.topic, 3)
    assert [message.value() for message in back] == [b"spring", b"connect", b"karafka"]
    assert all(headers_of(message) == [("trace", b"1"), ("kunicorn-replays", b"1")] for message in back)


def test_another_dead_letter_topic_is_read_by_its_name(desk: Desk) -> None:
    desk.fill()
    desk.kafka.create_topic(f"{desk.topic}.poison", 1)
    assert ".poison: 0 dead letters" in desk.said("list", "--letters", f"{desk.topic}.poison")
    assert "to send back: 0" in desk.said("replay", "--yes", "--letters", f"{desk.topic}.poison")
    with pytest.raises(ConfigError, match="'nowhere' does not exist"):
        desk.said("show", "0@0", "--letters", "nowhere")


def test_without_a_terminal_nothing_is_sent_unasked(desk: Desk) -> None:
    for arguments in ([], ["--json"]):
        with pytest.raises(ConfigError, match="--yes"):
            desk.said("replay", *arguments)


def test_a_missing_topic_is_named_and_an_empty_one_is_said_to_be_empty(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=f"'{desk.letters}' does not exist"):
        desk.said("list")
    desk.kafka.create_topic(desk.letters, 2)
    assert f"{desk.letters}: 0 dead letters" in desk.said("list")
    assert "to send back: 0" in desk.said("replay", "--yes")


def test_letters_of_another_group_are_counted_and_sent_only_when_it_is_named(desk: Desk) -> None:
    desk.fill(group="orders")
    planned = desk.said("replay", "--yes")
    assert "to send back: 0" in planned
    assert "3  of the group 'orders', passed over; --group sends them" in planned
    assert "sent back and acknowledged: 3" in desk.said("replay", "--yes", "--group", "orders")
    assert "to send back: 0" in desk.said("replay", "--yes", "--group", "orders")


def test_letters_that_retention_takes_while_a_person_decides_leave_the_others_to_be_sent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.fill()
    made = LettersTopic.producer

    def deleting(topic: LettersTopic) -> Producer:
        desk.kafka.delete_records(desk.letters, {0: 1})
        return made(topic)

    monkeypatch.setattr(LettersTopic, "producer", deleting)
    with pytest.raises(NotAllReplayed, match=f"1 of 3 letters .*: 1 are not in '{desk.letters}' any more"):
        desk.said("replay", "--yes")
    assert [message.value() for message in consumed(desk.kafka.bootstrap, desk.topic, 6)[4:]] == [b"v1", b"v3"]
    assert "to send back: 0" in desk.said("replay", "--yes")


def test_the_plan_counts_letters_that_are_older_than_their_topic_keeps_records(desk: Desk) -> None:
    desk.fill()
    desk.kafka.alter_topic(desk.topic, {"retention.ms": 86_400_000})
    planned = desk.said("replay", "--yes", "--error", "NoStock")
    assert f"2  to {desk.topic} are older than the topic's retention.ms = 86400000" in planned
