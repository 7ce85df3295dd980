"""The tables [handler.circuit_breaker] and [handler.rate_limit]: when a handler is not called, though there are
records. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from kunicorn.settings.checks import Count, Milliseconds, Section, is_class_name
from kunicorn.settings.rules import Rule, check


class CircuitBreakerSettings(Section):
    """When the handler is not called for a while: what it needs is away. Each worker has its own breaker."""

    exceptions: Annotated[
        tuple[Annotated[str, AfterValidator(is_class_name)], ...], Strict(False), Field(min_length=1)
    ] = Field(
        description="Exception classes, subclasses included, as package.module.Class, that say so; other failures are "
        "those of a record.",
        examples=[["builtins.ConnectionError", "builtins.TimeoutError"]],
    )
    failure_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The breaker opens when so large a share of the calls has failed.",
    )
    window_ms: Milliseconds = Field(10_000, description="Calls of so long ago, and later, count.")
    min_calls: Count = Field(10, description="With fewer calls in the window the breaker stays closed.")
    open_ms: Milliseconds = Field(
        30_000,
        description="So long the handler is not called; then single records probe it, and one that fails opens the "
        "breaker for as long again.",
    )
    probes: int = Field(1, ge=1, le=1000, description="So many probes in a row have to succeed to close it.")


_RULES = (
    Rule(
        "header",
        lambda s: s.header is None or s.per == "key",
        'set, but per = "{s.per}" looks at no key; set per = "key", or remove it',
    ),
    Rule(
        "members",
        lambda s: s.members is None or s.is_divided,
        "set, but nothing is divided by it: each worker, or each key, has the whole rate; remove it",
    ),
)


class RateLimitSettings(Section):
    """How many records a second may begin."""

    per_second: float = Field(
        ge=0.000_001,  # One in eleven days. Of far less the wait for a token has no end that a clock could tell.
        le=1_000_000,
        description="So many a second, for all that `per` names together.",
        examples=[50],
    )
    burst: Count | None = Field(
        None,
        examples=[10],
        json_schema_extra={"default": "as `per_second`, at least 1"},
        description="So many may begin at once after a pause.",
    )
    per: Literal["service", "key", "worker"] = Field(
        "service",
        description="What has the rate: all members of the group together, each key, or each worker.",
    )
    header: str | None = Field(
        None,
        min_length=1,
        examples=["tenant"],
        description='With per = "key": the value of this header is the key, in place of the record\'s key.',
    )
    counts: Literal["records", "calls"] = Field(
        "records", description="What is counted; they differ where a call gets a batch."
    )
    members: Count | None = Field(
        None,
        examples=[4],
        json_schema_extra={"default": "as the coordinator describes the group"},
        description="Number of the group's members, which the rate is divided by.",
    )

    @property
    def is_divided(self) -> bool:
        """Whether members have the rate together."""
        return self.per == "service" or (self.per == "key" and self.header is not None)

    @property
    def whole_burst(self) -> float:
        """Burst, given or not."""
        return float(self.burst) if self.burst is not None else max(1.0, self.per_second)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check(self, "handler.rate_limit", _RULES)
        return self
