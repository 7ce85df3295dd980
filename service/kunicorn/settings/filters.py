"""The tables [[handler.filters]]: which records come to the handler. Pure. Small, as [handler] takes them whole."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from kunicorn.settings.checks import Section, is_entrypoint, is_part_of_record
from kunicorn.settings.rules import Rule


class FilterSettings(Section):
    """A condition that records have to meet to come to the handler, looked at before they are decoded."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None,
        examples=["orders only"],
        json_schema_extra={"default": "`function`, or `on`"},
        description="What kunicorn_filtered_records_total calls it.",
    )
    on: Annotated[str, AfterValidator(is_part_of_record)] | None = Field(
        None,
        examples=["header:type"],
        description='What of the record is looked at: "key", or "header:" and a name. Of a header that comes several '
        "times, one value that meets the condition will do (none_of: all have to).",
    )
    one_of: Annotated[tuple[str, ...], Strict(False)] = Field(
        (), examples=[["order", "refund"]], description="Texts of which it has to be one."
    )
    none_of: Annotated[tuple[str, ...], Strict(False)] = Field(
        (), examples=[["test"]], description="Texts of which it may be none; records without it come through."
    )
    prefix: Annotated[str, Field(min_length=1)] | None = Field(
        None, examples=["eu-"], description="Text that it has to begin with."
    )
    exists: bool | None = Field(None, examples=[False], description="Whether the record has to have it, or must not.")
    function: Annotated[str, AfterValidator(is_entrypoint)] | None = Field(
        None,
        examples=["shop.filters:wanted"],
        description="In place of `on`: a plain function of the undecoded record, as package.module:function, that "
        "returns True for records which the handler is to get, and False for others.",
    )


def _conditions(rule: FilterSettings) -> int:
    return sum((bool(rule.one_of), bool(rule.none_of), rule.prefix is not None, rule.exists is not None))


FILTER_RULES = (
    Rule(
        "on",
        lambda s: (s.on is None) != (s.function is None),
        'goes without function, which decides by itself, and one of the two is needed; say on = "key", '
        'on = "header:<name>", or function = "package.module:function"',
    ),
    Rule(
        "on",
        lambda s: s.on is None or _conditions(s) == 1,
        "needs one condition, and not several; set one of one_of, none_of, prefix and exists, and add another table "
        "[[handler.filters]] for another condition",
    ),
    Rule(
        "function",
        lambda s: s.function is None or _conditions(s) == 0,
        "decides by itself; remove one_of, none_of, prefix and exists",
    ),
)
"""Of one table of [[handler.filters]]."""
