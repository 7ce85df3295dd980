"""Security settings in [kafka]: one set for the supervisor's connections and for the workers' clients.

A secret X can be given in three ways: as X, as KUNICORN_KAFKA__X in the environment, or as the content of the file that
X_file names.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, model_validator

from kunicorn.errors import ConfigError
from kunicorn.settings.checks import Section, is_entrypoint, is_extensions, is_http_url, is_not_empty, is_token
from kunicorn.settings.problems import Contradictions, Problem
from kunicorn.settings.rules import FETCHER_RULES, SECURITY_RULES, Rule, broken
from kunicorn.settings.sources import variable_of

Text = Annotated[str, Field(min_length=1)]
Secret = Annotated[SecretStr, AfterValidator(is_not_empty)]

SECRETS = ("ssl_key_password", "sasl_password", "sasl_oauthbearer_client_secret")
_FILES = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location")


def _secret_file(name: str, what: str) -> str | None:
    """Declaration of the setting `<name>_file`."""
    file: str | None = Field(
        None,
        min_length=1,
        examples=[f"/run/secrets/{name}"],
        description=f"A file that holds {what}; in place of {name}.",
    )
    return file


class SecretFiles(dict[str, SecretStr]):
    """Secrets' files of a section: the last good content of each, by its setting."""

    def read(self, setting: str, file: str) -> str:
        """Content of the setting's file, which is read at every call, as it may be renewed.

        While a file that was good before is missing or empty, as one that is just being written, its last content
        counts. Raises `ConfigError` where there is none. Blocks on the disk.
        """
        try:
            self[setting] = file_content(file)
        except ValueError as error:
            if setting not in self:
                raise ConfigError(f"{setting} = {file!r} {error}") from error
        return self[setting].get_secret_value()


class SecuritySettings(Section):
    """Security of the connections to the brokers."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How connections are secured: SSL is TLS, SASL is a login."
    )
    ssl_ca_location: Text | None = Field(
        None,
        examples=["/etc/kafka/ca.pem"],
        description="The CAs to trust, as a PEM file or a directory of hashed ones; not set: the system's own.",
    )
    ssl_certificate_location: Text | None = Field(
        None,
        examples=["/etc/kafka/client.pem"],
        description="Our certificate and its chain in PEM, for brokers that ask.",
    )
    ssl_key_location: Text | None = Field(
        None, examples=["/etc/kafka/client.key"], description="The key of ssl_certificate_location, in PEM."
    )
    ssl_key_password: Secret | None = Field(
        None, examples=["changeme"], description="Opens ssl_key_location, if that is encrypted."
    )
    ssl_key_password_file: str | None = _secret_file("ssl_key_password", "the key's password")
    ssl_endpoint_identification_algorithm: Literal["https", "none"] = Field(
        "https",
        description="https: the broker's certificate must be for the name we connect to. none: any name will do, so "
        "that whoever has a certificate of the same CA can pose as the broker.",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = Field(
        None, examples=["SCRAM-SHA-512"], description="How to log in, with SASL_PLAINTEXT and SASL_SSL."
    )
    sasl_username: Text | None = Field(None, examples=["orders"], description="Who logs in, by PLAIN or SCRAM.")
    sasl_password: Secret | None = Field(None, examples=["changeme"], description="The password of sasl_username.")
    sasl_password_file: str | None = _secret_file("sasl_password", "the password")
    sasl_oauthbearer_token_endpoint_url: Annotated[str, AfterValidator(is_http_url)] | None = Field(
        None,
        examples=["https://login.example.com/oauth2/token"],
        description="Where OAUTHBEARER tokens are fetched, by the client credentials grant (RFC 6749, 4.4).",
    )
    sasl_oauthbearer_client_id: Text | None = Field(
        None, examples=["orders"], description="Our name at the token endpoint."
    )
    sasl_oauthbearer_client_secret: Secret | None = Field(
        None, examples=["changeme"], description="The secret of sasl_oauthbearer_client_id."
    )
    sasl_oauthbearer_client_secret_file: str | None = _secret_file("sasl_oauthbearer_client_secret", "the secret")
    sasl_oauthbearer_scope: Text | None = Field(
        None, examples=["kafka"], description="The scope to ask the token endpoint for."
    )
    sasl_oauthbearer_extensions: Annotated[str, AfterValidator(is_extensions)] | None = Field(
        None,
        examples=["logicalCluster=lkc-1,identityPoolId=pool-1"],
        description="SASL extensions to send beside the token (KIP-342), as name=value, separated by commas.",
    )
    sasl_oauthbearer_token_provider: Annotated[str, AfterValidator(is_entrypoint)] | None = Field(
        None,
        examples=["shop.kafka:token"],
        description="In place of an endpoint: a function of yours that returns a token, as package.module:function; "
        "docs/security.md says what it returns.",
    )

    _files: SecretFiles = PrivateAttr(default_factory=SecretFiles)

    @property
    def uses_tokens(self) -> bool:
        """Whether the mechanism is OAUTHBEARER."""
        return self.sasl_mechanism == "OAUTHBEARER"

    def secret(self, name: str) -> str | None:
        """The secret's value, from its file if it has one. Raises and blocks as `SecretFiles.read` does."""
        file: str | None = getattr(self, f"{name}_file")
        if file is None:
            value: SecretStr | None = getattr(self, name)
            return None if value is None else value.get_secret_value()
        return self._files.read(f"kafka.{name}_file", file)

    def warnings(self) -> tuple[str, ...]:
        """Warnings about settings that are allowed, and insecure."""
        in_clear = self.security_protocol == "SASL_PLAINTEXT" and self.sasl_mechanism in {"PLAIN", "OAUTHBEARER"}
        endpoint = urlsplit(self.sasl_oauthbearer_token_endpoint_url or "")
        to_endpoint_in_clear = endpoint.scheme == "http" and not _is_this_machine(endpoint.hostname or "")
        unchecked = self.security_protocol.endswith("SSL") and self.ssl_endpoint_identification_algorithm == "none"
        return tuple(
            text
            for applies, text in (
                (
                    in_clear,
                    f"kafka.sasl_mechanism = {self.sasl_mechanism} over SASL_PLAINTEXT sends the password or token in "
                    f"clear text: whoever listens on the network can use it; use SASL_SSL",
                ),
                (
                    to_endpoint_in_clear,
                    f"kafka.sasl_oauthbearer_token_endpoint_url = {self.sasl_oauthbearer_token_endpoint_url} gets the "
                    f"client's secret and sends the token in clear text: whoever listens on the network can use both; "
                    f"use https",
                ),
                (
                    unchecked,
                    'kafka.ssl_endpoint_identification_algorithm = "none": any certificate of a trusted CA passes for '
                    "the broker's; remove it once the certificates carry the brokers' names",
                ),
            )
            if applies
        )

    @model_validator(mode="after")
    def _secures(self) -> Self:
        problems = [*broken(self, "kafka", (*SECURITY_RULES, *FETCHER_RULES, *_ONE_OF_EACH)), *_unreadable(self)]
        if problems:
            raise Contradictions(problems)
        return self


def _is_this_machine(host: str) -> bool:
    """Whether what is sent there stays on this machine, as to a proxy beside us."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def file_content(file: str) -> SecretStr:
    """Content of a secret's file without one line break at the end, which editors add. Raises `ValueError`."""
    try:
        content = Path(file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {_why(error)}") from error
    if not content:
        raise ValueError("is empty: write the secret into it")
    return SecretStr(content)


def token_content(file: str) -> SecretStr:
    """Content of the file of `http.token`, without blanks and line breaks around it, which no request could send: it
    would be right, and everybody refused. Raises `ValueError`."""
    return is_token(SecretStr(file_content(file).get_secret_value().strip()))


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without kunicorn's secrets, for a process that runs the user's code."""
    others = {variable_of("http", "token"), variable_of("schema_registry", "password"), variable_of("otlp", "headers")}
    secret = {*others, *(variable_of("kafka", name) for name in SECRETS)}
    return {name: value for name, value in environ.items() if name.upper() not in secret}


def _one_of_both(name: str) -> Rule:
    return Rule(
        f"{name}_file",
        lambda s: getattr(s, name) is None or getattr(s, f"{name}_file") is None,
        f"{name} is set, too; remove one of them",
    )


_ONE_OF_EACH = tuple(_one_of_both(name) for name in SECRETS)


def _unreadable(settings: SecuritySettings) -> Iterator[Problem]:
    """Problems of files that are named but cannot be read: told at the start, not at the first connection."""
    files: dict[str, str | None] = {name: getattr(settings, name) for name in _FILES}
    if (ca := files["ssl_ca_location"]) is not None and os.path.isdir(ca):
        del files["ssl_ca_location"]
    yield from unreadable("kafka", files)
    for name in SECRETS:
        try:
            settings.secret(name)
        except ConfigError as error:
            yield Problem(f"kafka.{name}_file", getattr(settings, f"{name}_file"), str(error).partition(" = ")[2])


def unreadable(section: str, files: Mapping[str, str | None]) -> Iterator[Problem]:
    """Problems of those of a section's files, by their settings' names, that cannot be read."""
    for name, path in files.items():
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as error:
            yield Problem(f"{section}.{name}", path, f"cannot be read: {_why(error)}")


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
