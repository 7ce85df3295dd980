"""Commands that try a handler whose workers would register a schema, beside a registry that speaks its REST API."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.clients.config import encoding_of, handler_configs
from kunicorn.commands import replay_one
from kunicorn.commands.check import trying
from kunicorn.commands.check.trial import Order
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.registry import HandlerRegistry
from kunicorn.settings import Settings
from tests.contract.encoding import shop_models
from tests.fakes.complete_settings import settings_of
from tests.fakes.handler_module import importable

MESSAGE = Message(topic="orders", partition=0, offset=7, value=b"{}", timestamp=(1, 1_700_000_000_000))
HANDLER = """
def handle(record):
    return {"n": 3}
"""
OLDER: dict[str, Any] = {**shop_models.COUNT, "fields": []}
"""By its rules nothing may be added without a default."""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(tmp_path, monkeypatch, "registering_shop", HANDLER)


@pytest.fixture
def own(registry_url: str) -> Settings:
    """Settings of a service whose workers register a schema of its own."""
    return settings_of(
        handler={"entrypoint": "registering_shop:handle", "max_attempts": 1},
        schema_registry={"url": registry_url},
        producing={
            "delivery": "at_least_once",
            "topic": "totals",
            "value": "avro",
            "value_schema": f"{shop_models.__name__}:COUNT",
            "register_schemas": True,
        },
    )


def test_replay_one_registers_no_schema_and_handles_as_if_it_had(own: Settings, schemas: Path) -> None:
    replayed = replay_one.replay(own, MESSAGE)
    assert replayed.outcome == "done"
    assert "output    would go to totals: key null, value {'n': 3}" in list(replayed.lines())
    assert json.loads(schemas.read_text()) == {}


def test_replay_one_tells_of_a_schema_that_the_registry_would_refuse(own: Settings, schemas: Path) -> None:
    has = {"1": {"schema": json.dumps(OLDER), "subject": "totals-value"}}
    schemas.write_text(json.dumps(has))
    text = "\n".join(replay_one.replay(own, MESSAGE).lines())
    assert "the subject 'totals-value' refuses our schema as incompatible" in text
    assert json.loads(schemas.read_text()) == has


def test_a_trial_registers_no_schema_and_shows_what_would_be_sent(
    own: Settings, schemas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    producing = own.producing
    order = Order("g", handler_configs(own), {}, None, [], 1, producing.delivery, producing.topic, encoding_of(own))
    shown, tally = trying._Shown(order), trying.Tally()
    worker = Worker(0, os.getpid(), "g", "kunicorn-check")
    handlings = HandlerRegistry.set_up(order.handlers, worker, trying._form(order, shown))
    trying.handle(handlings, [MESSAGE], tally, [None])
    for handling in handlings.every:
        handling.tear_down()
    assert (tally.passed, tally.failed, shown.count) == (1, 0, 1), tally.error
    assert capsys.readouterr().out == "would send to totals: key None, value {'n': 3}\n"
    assert json.loads(schemas.read_text()) == {}
