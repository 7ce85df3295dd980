"""Exception classes that settings name."""

from __future__ import annotations

import json

import pytest

from kunicorn.errors import ConfigError
from kunicorn.handler.retry import find


def test_a_class_is_found_by_module_and_name() -> None:
    assert find("builtins.ValueError") is ValueError
    assert find("json.decoder.JSONDecodeError") is json.JSONDecodeError


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("builtins.ValeError", "'builtins' has no 'ValeError'; did you mean 'ValueError'"),
        ("no_such_shop.Error", "there is no module 'no_such_shop'"),
        ("builtins.print", "it is no exception class"),
        ("builtins.int", "it is no exception class"),
    ],
)
def test_a_name_of_no_exception_is_refused_with_the_setting_and_the_reason(name: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find(name)
    assert str(refused.value).startswith(f"handler.failures names the exception {name!r}: {why}")
