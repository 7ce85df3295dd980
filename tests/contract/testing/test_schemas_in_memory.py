"""Handlers with encoded outputs under `kunicorn.testing`, with a schema registry in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kunicorn import Send, TopicPartition
from kunicorn.testing import HandlerTest, record
from tests.contract.encoding.shop_models import TOTALS, ProtoTotal

AVRO = {"type": "record", "name": "Total", "fields": [{"name": "amount", "type": "long"}]}
SCHEMAS: dict[str, Any] = {"totals-value": AVRO, "protos-value": ProtoTotal}


@dataclass
class Order:
    """What comes in."""

    total: int


@dataclass
class Total:
    """What goes out."""

    amount: Any


def sending(handle: Any, delivery: str = "transactions", **more: Any) -> HandlerTest:
    producing = {"delivery": delivery, "topic": "totals", "value": "avro", "key": "json", **more}
    return HandlerTest(handle, settings={"producing": producing}, schemas=SCHEMAS, max_attempts=1)


@pytest.mark.parametrize("delivery", ["transactions", "at_least_once"])
def test_what_was_sent_is_shown_decoded(delivery: str) -> None:
    def handle(order: Order) -> Send:
        return Send(key=["a"], value=Total(order.total))

    run = sending(handle, delivery).run(record(json={"total": 3}))
    (sent,) = run.sent
    assert sent.value is not None
    assert sent.value[:1] == b"\0"
    assert (sent.data, sent.key_data) == ({"amount": 3}, ["a"])


def test_of_an_order_whose_output_does_not_fit_nothing_is_sent() -> None:
    def handle(order: Order) -> Any:
        yield Total(order.total)
        yield Total("4111")

    run = sending(handle).run(record(json={"total": 3}))
    assert (run.outcomes, run.sent) == (["halted"], [])
    assert "Total.amount: expected long, got str" in run.halted[TopicPartition("test", 0)]
    assert "4111" not in run.halted[TopicPartition("test", 0)]


@pytest.mark.parametrize(("mode", "in_hand"), [("record", {}), ("batch", {}), ("record", {"concurrency": 4})])
def test_in_every_mode_models_are_sent(mode: str, in_hand: Any) -> None:
    async def one(order: Any) -> Any:
        return [Total(each["total"]) for each in order.data()] if mode == "batch" else Total(order.data["total"])

    producing = {"delivery": "transactions", "topic": "totals", "value": "avro"}
    test = HandlerTest(one, settings={"producing": producing}, schemas=SCHEMAS, mode=mode, value="json", **in_hand)
    run = test.run(record(json={"total": 1}), record(json={"total": 2}))
    assert [each.data for each in run.sent] == [{"amount": 1}, {"amount": 2}]


def test_messages_and_topics_with_encoders_of_their_own() -> None:
    def handle(order: Order) -> Any:
        return [Send("protos", ProtoTotal(customer="Ada", amount=order.total)), Send("notes", "plain")]

    tables = [{"topic": "protos", "value": TOTALS, "register_schemas": True}, {"topic": "notes"}]
    run = sending(handle, topics=tables).run(record(json={"total": 3}))
    assert [each.data for each in run.sent] == [ProtoTotal(customer="Ada", amount=3), b"plain"]


def test_what_was_decoded_goes_on_as_it_was() -> None:
    made = HandlerTest(
        lambda order: Total(order.data["total"]),
        settings={"producing": {"delivery": "at_least_once", "topic": "totals", "value": "avro"}},
        schemas=SCHEMAS,
        value="json",
    )
    (first,) = made.run(record(json={"total": 3})).sent

    def route(order: Any) -> Send:
        assert order.data == {"amount": 3}
        return Send.of(order, "copies")

    producing = {"delivery": "at_least_once", "topic": "totals", "value": "avro"}
    test = HandlerTest(route, settings={"producing": producing}, schemas=SCHEMAS, value="avro")
    (copy,) = test.run(record(first.value, key="k", headers={"a": "1"}, timestamp=1700)).sent
    assert (copy.topic, copy.value, copy.key) == ("copies", first.value, b"k")
    assert (copy.raw_headers, copy.timestamp) == ((("a", b"1"),), 1700)


def test_a_dead_letter_is_shown_as_it_came() -> None:
    def handle(order: Order) -> Any:
        return Total("x")

    producing = {"delivery": "transactions", "topic": "totals", "value": "avro"}
    test = HandlerTest(
        handle, settings={"producing": producing}, schemas=SCHEMAS, max_attempts=1, on_failure="dead_letter"
    )
    (letter,) = test.run(record(json={"total": 3})).dead_letters
    assert letter.data == b'{"total":3}'
    assert letter.error_type == "kunicorn.Unencodable"
