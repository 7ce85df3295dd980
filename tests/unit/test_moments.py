"""Times as people say them on a command line."""

from __future__ import annotations

import pytest

from kunicorn.errors import ConfigError
from kunicorn.text import moment, span

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2h", NOW - 7_200_000),
        ("90s", NOW - 90_000),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
    ],
)
def test_a_moment_is_a_time_with_its_zone_or_an_age(text: str, ms: int) -> None:
    assert moment("--since", text, NOW) == ms


@pytest.mark.parametrize("text", ["yesterday", "2023-11-14T22:13:20", "2 h", ""])
def test_a_time_without_a_zone_and_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--until .* neither a time with its zone"):
        moment("--until", text, NOW)


def test_a_length_of_time_is_a_number_and_a_unit() -> None:
    assert [span("--for", text) for text in ("90s", "10m", "2h", "1d")] == [90, 600, 7200, 86_400]


@pytest.mark.parametrize("text", ["0s", "10", "ten minutes", "2023-11-14T22:13:20Z", "-5m"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--for .* no length of time"):
        span("--for", text)
