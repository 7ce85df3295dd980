"""Error codes for people."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as EveryErrorCode

from kunicorn.group.errors import ErrorCode
from kunicorn.kafka.codec import describe


def test_codes_have_their_names() -> None:
    assert describe(27) == "REBALANCE_IN_PROGRESS (27)"
    assert describe(ErrorCode.UNKNOWN_SERVER_ERROR) == "UNKNOWN_SERVER_ERROR (-1)"
    assert describe(58) == "SASL_AUTHENTICATION_FAILED (58)"


def test_a_code_from_the_future_has_its_number() -> None:
    assert describe(999) == "error 999"


@pytest.mark.parametrize("code", ErrorCode)
def test_our_numbers_are_kafkas(code: ErrorCode) -> None:
    assert EveryErrorCode(code.value).name.upper() == code.name
