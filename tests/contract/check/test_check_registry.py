"""What `kunicorn check` says of the schema registry, against one that speaks its REST API over a real connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kunicorn.commands.check.cluster import registry_findings
from kunicorn.errors import ExitCode
from kunicorn.settings import Settings
from tests.fakes.complete_settings import settings_of
from tests.fakes.schema_registry import registry

NOWHERE = "http://127.0.0.1:1"
LOGIN = {"username": "orders", "password": "correct-horse"}


def told(**given: Any) -> str:
    """The one finding, as a line."""
    (finding,) = registry_findings(settings_of(handler={"value": "avro"}, schema_registry=given))
    assert finding.failure in {None, ExitCode.CONFIGURATION}
    return str(finding)


def test_without_a_registry_there_is_nothing_to_say() -> None:
    assert list(registry_findings(settings_of())) == []


def test_one_that_answers_is_well_even_where_it_has_no_schema_yet(schemas: Path) -> None:
    with registry(schemas, "correct-horse") as url:
        assert told(url=url, **LOGIN) == f"ok      registry  {url} answers"


def test_a_wrong_login_an_outage_and_an_empty_port_are_told_with_the_setting_and_without_the_password(
    schemas: Path, registry_url: str
) -> None:
    with registry(schemas, "another") as url:
        said = told(url=url, **LOGIN)
        assert said.startswith("FAILED  registry")
        assert "401" in said
        assert "[schema_registry]" in said
        assert "correct-horse" not in said
    schemas.write_text("503")
    assert "503" in told(url=registry_url)
    assert f"{NOWHERE} cannot be asked: ConnectError" in told(url=NOWHERE)


@pytest.mark.parametrize("answer", [[404, "404 page not found"], [302, ""], [200, "<h1>maintenance</h1>"]], ids=str)
def test_what_answers_in_its_place_is_told(schemas: Path, registry_url: str, answer: list[Any]) -> None:
    schemas.write_text(json.dumps(answer))
    said = told(url=registry_url)
    assert said.startswith(f"FAILED  registry  {registry_url} cannot be asked: it")
    assert "maintenance" not in said


@pytest.mark.parametrize("of_outputs", [False, True])
def test_a_handler_whose_time_is_over_before_the_registrys_is_told(registry_url: str, of_outputs: bool) -> None:
    first, second = map(str, registry_findings(impatient(registry_url, 5000, of_outputs=of_outputs)))
    assert first.startswith("warning registry")
    assert "handler_timeout_ms = 5000 is over before schema_registry.timeout_ms = 5000" in first
    assert second == f"ok      registry  {registry_url} answers"
    assert len(list(registry_findings(impatient(registry_url, 5001, of_outputs=of_outputs)))) == 1


def impatient(url: str, handler_timeout_ms: int, *, of_outputs: bool) -> Settings:
    """Of a handler that decodes by the registry, or whose outputs are encoded by it."""
    handler = {"handler_timeout_ms": handler_timeout_ms, "value": "bytes" if of_outputs else "avro"}
    producing = {"producing": {"delivery": "at_least_once", "topic": "totals", "value": "avro"}} if of_outputs else {}
    return settings_of(handler=handler, schema_registry={"url": url}, **producing)
