"""Settings of [otlp]: what is refused, in which words, and that a header's value is in none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kunicorn.errors import ConfigError
from kunicorn.settings import Settings
from kunicorn.settings.load import load_tables, shown
from kunicorn.settings.security import without_secrets
from tests.fakes.complete_settings import tables_of

SECRET = "s3cr3t"


def loaded(**otlp: Any) -> Settings:
    return load_tables(Path("config.toml"), tables_of(otlp=otlp))


@pytest.mark.parametrize(
    ("otlp", "words"),
    [
        ({"endpoint": "collector:4318"}, "write it such as http://collector:4318/v1/metrics"),
        ({"endpoint": "grpc://collector:4317"}, "OTLP over HTTP"),
        ({"endpoint": "http://collector:4318"}, "collectors take metrics at /v1/metrics"),
        ({"endpoint": "http://collector:4317/v1/metrics"}, "port 4317 is for gRPC"),
        ({"endpoint": "http://collector:99999/v1/metrics"}, "not an address"),
        ({"endpoint": f"http://me:{SECRET}@collector:4318/v1/metrics"}, "set otlp.headers instead"),
        ({"endpoint": f"http://collector:4318/v1/metrics?api-key={SECRET}"}, "set otlp.headers instead"),
        ({"endpoint": f"http://collector:4318/v1/metrics#{SECRET}"}, "set otlp.headers instead"),
        ({"headers": {"authorization": f"{SECRET}\nx: y"}}, "printable ASCII"),
        ({"headers": {"authorization": f"{SECRET}ä"}}, "printable ASCII"),
        ({"headers": {f"no name {len(SECRET)}": SECRET}}, "no name of an HTTP header"),
        ({"headers": {"authorization": 7}}, "otlp.headers"),
        ({"headers": {"authorization": SECRET}, "headers_file": "/nowhere"}, "headers is set, too"),
        ({"headers_file": "/nowhere"}, "cannot be read"),
        ({"timeout_ms": 20_000, "interval_ms": 10_000}, "lower it"),
        ({"ssl_key_location": "/key"}, "set ssl_certificate_location, too"),
        ({"resource": {"": "shop"}}, "no name of an attribute"),
        ({"compression": "brotli"}, "otlp.compression"),
    ],
)
def test_what_cannot_work_is_refused_and_no_secret_is_shown(otlp: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(**otlp)
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_headers_value_is_neither_shown_nor_handed_on() -> None:
    settings = loaded(enabled=True, headers={"authorization": SECRET})
    assert settings.otlp.secret_headers() == {"authorization": SECRET}
    assert SECRET not in repr(settings) + str(shown(settings))
    environment = {"KUNICORN_OTLP__HEADERS": f'{{authorization="{SECRET}"}}', "PATH": "/bin"}
    assert without_secrets(environment) == {"PATH": "/bin"}


def test_a_file_of_headers(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text(f"authorization: Bearer {SECRET}\n\nx-tenant:shop\n")
    assert loaded(headers_file=str(file)).otlp.secret_headers() == {
        "authorization": f"Bearer {SECRET}",
        "x-tenant": "shop",
    }
    file.write_text(f"authorization {SECRET}\n")
    with pytest.raises(ConfigError, match="line 1") as refused:
        loaded(headers_file=str(file))
    assert SECRET not in str(refused.value)
