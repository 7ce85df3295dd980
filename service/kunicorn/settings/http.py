"""[http]: who is answered, and who may act. Reads the token's file."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, Strict, model_validator

from kunicorn.errors import ConfigError
from kunicorn.settings.checks import is_long_secret
from kunicorn.settings.problems import Contradictions, Problem
from kunicorn.settings.rules import Rule, check
from kunicorn.settings.section import Section
from kunicorn.settings.security import file_content

_RULES = (
    Rule(
        "token_file",
        lambda s: s.token is None or s.token_file is None,
        "token is set, too; remove one of them",
    ),
)


class HttpSettings(Section):
    """Probes, metrics and the status page; read-only unless there is a token."""

    enabled: bool = Field(True, description="Serve the status page at /, and /livez, /readyz, /metrics and /status.")
    host: str = Field(
        "0.0.0.0",  # noqa: S104 - a pod is scraped from outside
        min_length=1,
        description="Address to listen on; 127.0.0.1 keeps it to this machine. With `kunicorn run --reload`, which is "
        "for a desk, that is the default.",
    )
    port: int = Field(9400, ge=0, le=65_535, description="Port to listen on; 0 takes a free one and logs it.")
    allowed_hosts: Annotated[tuple[Annotated[str, AfterValidator(str.lower)], ...], Strict(False)] = Field(
        (),
        examples=[["orders.example.com"]],
        description="Further names under which the pages are shown. Addresses, names without a dot, this machine's "
        "name, and those that end in .svc, .local, .internal or .localhost always are. Others are refused on all but "
        "/livez, /readyz and /metrics: whoever owns a name may point it here, and read by the browser of a visitor.",
    )
    partition_metrics_max: int = Field(
        2000, ge=0, description="With more assigned partitions than this, /metrics leaves out the series per partition."
    )
    token: Annotated[SecretStr, AfterValidator(is_long_secret)] | None = Field(
        None,
        examples=["a-long-and-random-text"],
        description="Permits whoever sends it to pause, resume and seek partitions, recycle workers and drain the "
        "service over HTTP. Not set: nothing can be done over HTTP.",
    )
    token_file: str | None = Field(
        None,
        min_length=1,
        examples=["/run/secrets/http_token"],
        description="A file that holds the token; in place of token.",
    )

    @property
    def acts(self) -> bool:
        """Whether anybody may act over HTTP."""
        return self.token is not None or self.token_file is not None

    def secret_token(self) -> str:
        """The token; its file is read at every call, as it may be rotated. Raises `ConfigError`. Blocks on the disk."""
        if self.token_file is None:
            assert self.token is not None
            return self.token.get_secret_value()
        try:
            return is_long_secret(file_content(self.token_file)).get_secret_value()
        except ValueError as error:
            raise ConfigError(f"http.token_file = {self.token_file!r} {error}") from error

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(self, "http", _RULES)
        if self.token_file is not None:
            try:
                self.secret_token()
            except ConfigError as error:
                why = str(error).partition(" = ")[2].partition(" ")[2]
                raise Contradictions([Problem("http.token_file", self.token_file, why)]) from error
        return self
