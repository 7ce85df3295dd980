"""What every section of the settings is."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_MILLISECONDS = 2**31 - 1
"""Kafka's messages carry times as int32."""

Milliseconds = Annotated[int, Field(ge=1, le=MOST_MILLISECONDS)]


class Section(BaseModel):
    """One table of the file. Strict: a port is a number, not a text that looks like one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, hide_input_in_errors=True
    )
