"""What `kunicorn check` says of encoded outputs, with a schema registry that speaks its REST API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kunicorn.commands.check.outputs import output_findings
from kunicorn.commands.check.trying import _Shown
from kunicorn.handler.config import Encoding, OutputEncoding
from kunicorn.handler.outputs import Outgoing
from tests.contract.encoding.shop_models import AVRO
from tests.fakes.complete_settings import settings_of


def told(url: str, **producing: Any) -> list[str]:
    """The findings, as lines."""
    outputs = {"delivery": "at_least_once", "topic": "totals", **producing}
    return [str(each) for each in output_findings(settings_of(schema_registry={"url": url}, producing=outputs))]


def test_each_topics_schemas_are_asked_for_and_what_is_missing_is_told(schemas: Path, registry_url: str) -> None:
    schemas.write_text(json.dumps({"7": {"schema": json.dumps(AVRO), "subject": "totals-value"}}))
    assert told(registry_url) == []
    assert told(registry_url, value="json") == ["ok      outputs   encoders can be loaded"]
    first, second = told(registry_url, value="avro", topics=[{"topic": "notes", "key": "avro"}])
    assert first == "ok      outputs   totals: totals-value has the schema 7 for its values"
    assert second.startswith("FAILED  outputs")
    assert "the subject 'notes-key' does not have the schema of its keys" in second
    (missing,) = told(registry_url, value="protobuf:shop.no_such:Order")
    assert missing.startswith("FAILED  outputs   the encoder 'protobuf:shop.no_such:Order' names a class")
    schemas.write_text("503")
    (away,) = told(registry_url, value="avro")
    assert "503" in away
    assert away.endswith("records would wait")


def test_a_trial_prints_outputs_decoded_and_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    order: Any = type("Order", (), {"encoding": Encoding(OutputEncoding("json"))})
    shown = _Shown(order)
    shown.show(
        None, 0, 1, [Outgoing("totals", b'{"a":1}', b"k", None, -1, 0), Outgoing("raw", b"\xff", None, None, -1, 0)]
    )
    assert capsys.readouterr().out.splitlines() == [
        "would send to totals: key b'k', value {'a': 1}",
        "would send to raw: key None, value b'\\xff'",
    ]
    assert shown.count == 2
