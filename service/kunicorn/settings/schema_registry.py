"""The section [schema_registry]: where the schemas are for the decoders avro, protobuf and jsonschema. Reads the
password's file.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from kunicorn.errors import ConfigError
from kunicorn.settings.checks import Milliseconds, Section, http_address, needs_registry
from kunicorn.settings.problems import Contradictions, Problem
from kunicorn.settings.rules import Rule, check
from kunicorn.settings.security import Secret, SecretFiles, Text


def _is_registry_url(url: str) -> str:
    http_address(url, "https://registry.example.com:8081", "schema_registry.username and password")
    return url


_RULES = (
    Rule("password_file", lambda s: s.password is None or s.password_file is None, "password is set, too; remove one"),
    Rule(
        "username",
        lambda s: (s.username is None) == (s.password is None and s.password_file is None),
        "goes with password (or password_file); set both, or neither",
    ),
    Rule(
        "url",
        lambda s: s.url is not None or s.username is None,
        "not set, although a username is; set it, or remove that",
    ),
    Rule(
        "ssl_key_location",
        lambda s: s.ssl_key_location is None or s.ssl_certificate_location is not None,
        "a key without its certificate; set ssl_certificate_location, too",
    ),
)


class SchemaRegistrySettings(Section):
    """Schema registry for the decoders avro, protobuf and jsonschema, which the extra `schema-registry` installs."""

    url: Annotated[str, AfterValidator(_is_registry_url)] | None = Field(
        None, examples=["https://registry.example.com:8081"], description="The registry's address."
    )
    username: Text | None = Field(None, examples=["orders"], description="Who logs in, by HTTP's basic authentication.")
    password: Secret | None = Field(None, examples=["changeme"], description="The password of username.")
    password_file: str | None = Field(
        None,
        min_length=1,
        examples=["/run/secrets/schema_registry_password"],
        description="A file that holds the password; in place of password.",
    )
    ssl_ca_location: Text | None = Field(
        None, examples=["/etc/kafka/ca.pem"], description="The CAs to trust, as a PEM file; not set: certifi's."
    )
    ssl_certificate_location: Text | None = Field(
        None, examples=["/etc/kafka/client.pem"], description="Our certificate in PEM, for a registry that asks."
    )
    ssl_key_location: Text | None = Field(
        None, examples=["/etc/kafka/client.key"], description="The key of ssl_certificate_location, in PEM."
    )
    timeout_ms: Milliseconds = Field(
        5000,
        description="How long the registry may take for an answer; after that the record waits and it is asked anew.",
    )

    _files: SecretFiles = PrivateAttr(default_factory=SecretFiles)

    def secret(self) -> str | None:
        """The password, from its file if it has one. Raises and blocks as `SecretFiles.read` does."""
        if self.password_file is None:
            return None if self.password is None else self.password.get_secret_value()
        return self._files.read("schema_registry.password_file", self.password_file)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(self, "schema_registry", _RULES)
        try:
            self.secret()
        except ConfigError as error:
            name = "schema_registry.password_file"
            raise Contradictions([Problem(name, self.password_file, str(error).partition(" = ")[2])]) from error
        return self


DECODING_RULES = tuple(
    Rule(
        f"handler.{part}",
        lambda s, part=part: (  # type: ignore[misc]
            s.schema_registry.url is not None
            or not any(needs_registry(getattr(each, part)) for each in s.every_handler)
        ),
        "needs schemas, but schema_registry.url is not set; set it",
    )
    for part in ("value", "key")
)
"""Of the settings as a whole."""
