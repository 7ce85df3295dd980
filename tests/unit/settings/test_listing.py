"""`kunicorn config`: the settings in force, and their schema."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from kunicorn.settings import load
from kunicorn.settings.generate.pages import json_schema, listed
from tests.unit.settings.files import LEAST

SECRET = """
[kafka.librdkafka]
"ssl.crl.location" = "/crl"
[handler.options]
database = "hunter2"
"""


def shown(tmp_path: Path, text: str, *, every: bool = False, **environ: str) -> list[str]:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return list(listed(path, environ, load(path, environ), every=every))


def test_only_what_somebody_set_is_listed_with_where_it_was_set(tmp_path: Path) -> None:
    lines = shown(tmp_path, LEAST, KUNICORN_WORKERS__COUNT="3")
    assert f'id = "orders"  # {tmp_path}/config.toml' in lines
    assert "count = 3  # KUNICORN_WORKERS__COUNT" in lines
    assert not any(line.startswith("port") for line in lines)
    assert "port = 9400  # the default" in shown(tmp_path, LEAST, every=True)


def test_no_secret_is_listed(tmp_path: Path) -> None:
    login = 'sasl_username = "u"\nsasl_password = "hunter3"\nsasl_mechanism = "PLAIN"\nsecurity_protocol = "SASL_SSL"\n'
    text = LEAST.replace("[kafka]\n", f"[kafka]\n{login}") + SECRET
    lines = "\n".join(shown(tmp_path, text, every=True))
    assert "hunter" not in lines
    assert "/crl" in lines


def test_a_table_is_listed_as_toml_with_what_it_has(tmp_path: Path) -> None:
    handler = """rate_limit = {per_second = 2.5}
filters = [{on = "header:type", one_of = ["order"]}]
"""
    for every in (False, True):
        found = tomllib.loads("\n".join(shown(tmp_path, LEAST + handler, every=every)))["handler"]
        assert found["rate_limit"] == {"per_second": 2.5, "per": "service", "counts": "records"}
        assert found["filters"] == [{"on": "header:type", "one_of": ["order"], "none_of": []}]


def test_the_schema_knows_every_section_and_refuses_unknown_keys() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert set(schema["properties"]) >= {"kafka", "group", "handler", "workers", "http", "log"}
    assert schema["additionalProperties"] is False
    workers = schema["$defs"]["WorkerSettings"]
    assert workers["additionalProperties"] is False
    assert "default" not in workers["properties"]["count"], "a default in words is no default to a program"
    assert workers["properties"]["max_crashes"]["default"] == 2
