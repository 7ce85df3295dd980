"""The section [otlp]: the service's metrics to an OpenTelemetry collector, beside /metrics. Reads the headers' file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from kunicorn.errors import ConfigError
from kunicorn.settings.checks import Milliseconds, Section, http_address, is_header_value
from kunicorn.settings.problems import Contradictions, Problem
from kunicorn.settings.rules import Rule, check
from kunicorn.settings.security import Text, file_content

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LONGEST_NAME = 255


def _is_endpoint(url: str) -> str:
    parts = http_address(url, "http://collector:4318/v1/metrics (OTLP over HTTP)", "otlp.headers")
    if parts.query or parts.fragment:
        raise ValueError("has a ? or a #, and what follows is shown; a key is a header: set otlp.headers instead")
    if parts.path in {"", "/"}:
        raise ValueError("has no path; collectors take metrics at /v1/metrics")
    if parts.port == 4317:
        raise ValueError("port 4317 is for gRPC; collectors take HTTP at 4318")
    return url


def _are_headers(headers: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an HTTP header")
        if not is_header_value(value.get_secret_value()):
            raise ValueError(f"the value of {name} is none of an HTTP header: use printable ASCII, no blanks around it")
    return headers


def _are_attributes(attributes: Mapping[str, str]) -> Mapping[str, str]:
    for name in attributes:
        if not name.strip() or len(name) > _LONGEST_NAME:
            raise ValueError(f"{name!r} is no name of an attribute; write it such as deployment.environment.name")
    return attributes


_RULES = (
    Rule("headers_file", lambda s: not s.headers or s.headers_file is None, "headers is set, too; remove one of them"),
    Rule(
        "ssl_key_location",
        lambda s: s.ssl_key_location is None or s.ssl_certificate_location is not None,
        "a key without its certificate; set ssl_certificate_location, too",
    ),
    Rule(
        "timeout_ms",
        lambda s: s.timeout_ms <= s.interval_ms,
        "longer than interval_ms = {s.interval_ms}, and the next export would be due first; lower it",
    ),
)


class OtlpSettings(Section):
    """The metrics to an OpenTelemetry collector, by OTLP over HTTP, which the extra `otlp` installs."""

    enabled: bool = Field(False, description="Send the service's metrics to a collector.")
    endpoint: Annotated[str, AfterValidator(_is_endpoint)] | None = Field(
        None,
        examples=["http://collector:4318/v1/metrics"],
        json_schema_extra={"default": "as `OTEL_EXPORTER_OTLP_ENDPOINT` says, else `http://localhost:4318/v1/metrics`"},
        description="Where the collector takes metrics.",
    )
    headers: Annotated[Mapping[str, SecretStr], AfterValidator(_are_headers)] = Field(
        default={},
        examples=[{"authorization": "Bearer changeme"}],
        description="Headers of each request, as for a login; never shown.",
    )
    headers_file: str | None = Field(
        None,
        min_length=1,
        examples=["/run/secrets/otlp_headers"],
        description="A file with a line `name: value` for each header; in place of headers, and read anew for each "
        "export.",
    )
    interval_ms: Milliseconds = Field(60_000, description="Time between two exports.")
    timeout_ms: Milliseconds = Field(
        10_000, description="How long one export may take, tries included; the next one has its counts, too."
    )
    compression: Literal["none", "gzip"] = Field("gzip", description="How requests are compressed.")
    ssl_ca_location: Text | None = Field(
        None, examples=["/etc/otlp/ca.pem"], description="The CAs to trust, as a PEM file; not set: certifi's."
    )
    ssl_certificate_location: Text | None = Field(
        None, examples=["/etc/otlp/client.pem"], description="Our certificate in PEM, for a collector that asks."
    )
    ssl_key_location: Text | None = Field(
        None, examples=["/etc/otlp/client.key"], description="The key of ssl_certificate_location, in PEM."
    )
    resource: Annotated[Mapping[str, str], AfterValidator(_are_attributes)] = Field(
        default={},
        examples=[{"service.name": "shop", "deployment.environment.name": "production"}],
        description="Attributes of the resource, which go before those of `OTEL_RESOURCE_ATTRIBUTES`. Without "
        "service.name, the group's id is the service's name.",
    )

    def secret_headers(self) -> dict[str, str]:
        """The headers; their file is read at every call. Raises `ConfigError`. Blocks on the disk."""
        if self.headers_file is None:
            return {name: value.get_secret_value() for name, value in self.headers.items()}
        try:
            return _parsed(file_content(self.headers_file).get_secret_value())
        except ValueError as error:
            raise ConfigError(f"otlp.headers_file = {self.headers_file!r} {error}") from error

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(self, "otlp", _RULES)
        try:
            self.secret_headers()
        except ConfigError as error:
            why = str(error).partition(" = ")[2].partition(" ")[2]
            raise Contradictions([Problem("otlp.headers_file", self.headers_file, why)]) from error
        return self


def _parsed(text: str) -> dict[str, str]:
    headers = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"has no `name: value` in line {number}")
        headers[name.strip()] = SecretStr(value.strip())
    return {name: value.get_secret_value() for name, value in _are_headers(headers).items()}
