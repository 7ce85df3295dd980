"""The chart's schema and defaults say what the settings say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from kunicorn.settings import workers
from kunicorn.settings.generate.chart import settings_defaults, values_schema
from kunicorn.settings.load import sections

SECRETS = {
    "kafka": {"ssl_key_password", "sasl_password", "sasl_oauthbearer_client_secret"},
    "schema_registry": {"password"},
    "http": {"token"},
    "otlp": {"headers"},
}
CHART = Path(__file__).parents[3] / "deploy" / "helm"


def test_the_schema_is_current() -> None:
    assert (CHART / "values.schema.json").read_text() == values_schema(), "run `python -m kunicorn.settings`"


def test_the_defaults_are_current() -> None:
    assert (CHART / "settings-defaults.json").read_text() == settings_defaults(), "run `python -m kunicorn.settings`"


def test_the_defaults_are_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(cpus: int) -> str:
        monkeypatch.setattr(workers, "usable_cpus", lambda: cpus)
        return settings_defaults()

    monkeypatch.setattr(workers, "_quotas", lambda *_: iter(()))
    assert written(cpus=1) == written(cpus=64)


def test_every_setting_can_be_given_but_for_secrets() -> None:
    tables = json.loads(values_schema())["properties"]["config"]["properties"]
    several = tables.pop("handlers")["items"]["properties"]
    assert set(several) == set(tables["handler"]["properties"]) | {"topics"}
    named = {name: set(table["properties"]) for name, table in tables.items()}
    assert named == {name: set(model.model_fields) - SECRETS.get(name, set()) for name, model in sections().items()}


def test_secrets_are_all_that_is_declared_as_one() -> None:
    """By the types that the settings have, whatever they are in: a table of secrets is one."""
    declared = {
        name: {setting for setting, field in model.model_fields.items() if "SecretStr" in repr(field.annotation)}
        for name, model in sections().items()
    }
    assert {name: secrets for name, secrets in declared.items() if secrets} == SECRETS


def test_no_table_of_ours_takes_what_it_does_not_know() -> None:
    def open_tables(schema: Any, path: str) -> list[str]:
        found = [path] if schema.get("properties") and schema.get("additionalProperties") is not False else []
        for name, inner in schema.get("properties", {}).items():
            found += open_tables(inner, f"{path}.{name}")
        return found

    assert open_tables(json.loads(values_schema()), "") == []


@pytest.mark.parametrize("enabled", [True, False])
def test_a_chart_above_may_switch_this_one_by_a_condition(enabled: bool) -> None:
    """Helm hands down what `condition: orders.enabled` looks at, and checks it with all other values."""
    schema = json.loads(values_schema())
    jsonschema.validate({"enabled": enabled}, schema)
    with pytest.raises(jsonschema.ValidationError, match="'yes' is not of type 'boolean'"):
        jsonschema.validate({"enabled": "yes"}, schema)


def test_limits_of_settings_are_limits_of_values() -> None:
    tables = json.loads(values_schema())["properties"]["config"]["properties"]
    assert tables["workers"]["properties"]["count"]["maximum"] == 1024
    assert tables["handler"]["properties"]["handler_timeout_ms"]["minimum"] == 1
    assert tables["group"]["properties"]["group_protocol"]["enum"] == ["classic", "consumer"]
