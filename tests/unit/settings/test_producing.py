"""[producing]: what contradicts it, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from kunicorn.clients.config import producing_target
from tests.unit.settings.files import LEAST, loaded, problem, problems


@pytest.mark.parametrize(
    ("section", "line", "said"),
    [
        ("producing", 'topic = "orders"', "would be consumed again"),
        ("producing", 'delivery = "exactly_once"', "it can be 'at_least_once' or 'transactions'"),
        ("producing", 'librdkafka = {"transactional.id" = "x"}', "set [producing] transactional_id_prefix"),
        ("producing", 'librdkafka = {"bootstrap.servers" = "x"}', "set [kafka] bootstrap_servers"),
        ("producing", 'transactional_id_prefix = " "', "empty"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_be_right(tmp_path: Path, section: str, line: str, said: str) -> None:
    assert said in problem(tmp_path, section, line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[producing]\ndelivery = "transactions"\nacks = "1"', 'below "all", which transactions need'),
        ('[producing]\ndelivery = "at_least_once"\n[[producing.topics]]\ntopic = "orders"',
         "what is sent to one of them would be consumed again"),
        ('[producing]\ndelivery = "at_least_once"\nlinger_ms = 30000', "would be given up before it is sent"),
        ('[producing]\ndelivery = "transactions"\nlinger_ms = 15000', "would be given up before it is sent"),
        ('[producing]\ndelivery = "transactions"\ntransaction_timeout_ms = 999',
         "producing.transaction_timeout_ms = 999: too small"),
    ],
)  # fmt: skip
def test_contradictions_are_told(tmp_path: Path, text: str, said: str) -> None:
    head, _, handler = text.partition("[handler]")
    settings = LEAST.replace("[handler]", f"[handler]{handler}") + head
    assert any(said in each for each in problems(tmp_path, settings))


@pytest.mark.parametrize(
    "lines", ["linger_ms = 29999", 'delivery = "transactions"\nlinger_ms = 999\ntransaction_timeout_ms = 1000']
)
def test_the_client_takes_what_the_settings_take(tmp_path: Path, lines: str) -> None:
    delivery = "" if "delivery" in lines else 'delivery = "at_least_once"\n'
    target = producing_target(loaded(tmp_path, f"{LEAST}[producing]\n{delivery}{lines}\n"), "client", "orders-0-0")
    assert target is not None
    assert Producer({**target.client, "bootstrap.servers": ""}) is not None


def test_unset_nothing_is_sent(tmp_path: Path) -> None:
    assert producing_target(loaded(tmp_path), "client", "") is None


def test_in_transactions_delivery_takes_no_longer_than_the_transaction(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LEAST + '[producing]\ndelivery = "transactions"\ntransaction_timeout_ms = 5000\n')
    target = producing_target(settings, "client", "orders-0-0")
    assert target is not None
    assert target.client["transactional.id"] == "orders-0-0"
    assert target.client["delivery.timeout.ms"] == target.client["transaction.timeout.ms"] == 5000
    assert target.max_records == 10_000
